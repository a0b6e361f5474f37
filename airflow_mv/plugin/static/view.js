// SPDX-License-Identifier: Apache-2.0
// One view: why it is as it is, what a refresh would do, its base tables, its refreshes, its place among the others.

import { address, airflowLink, runPath } from "./address.js";
import { ask, Problem } from "./api.js";
import { breakable, h, problem, running, show, tip, waiting } from "./dom.js";
import { failure } from "./errors.js";
import { agoExactly, bytes, checksText, clamped, count, duration, exact, lag, shortIds, snapshot, stretch, stretchExactly, unexpected, whyOf } from "./format.js";
import { drawGraph } from "./graph.js";
import { isCovered, statePill, Strip } from "./intervals.js";
import { drawPlot } from "./plot.js";
import { actions } from "./run.js";

const AGAIN_MS = 15000;
const RUNNING_MS = 3000;
const FIRST = 20;
const NOT_HERE = "No refresh of this view has run in this Airflow. These are the refreshes that the view has recorded.";
const NOT_YOURS = "No refresh of this view has run in a DAG that you may read. These are the refreshes that the view has recorded.";
const FILES = "Files of base tables";
const MAX_ERRORS = 5; // the logs of older failures are in their runs

export function showView(page, asked) {
  document.title = `${asked.view} · Materialized views`;
  const back = h("a", { class: "back", href: address({ dag: asked.dag }) }, "‹ All views");
  const head = h("div", null, h("h1", null, asked.view));
  const parts = { head, facts: h("div", null, waiting("Reading the view …")), plan: card("What a refresh would do now", waiting("Planning a refresh …", 3)), why: h("div"), graph: h("div"), intervals: h("div") };
  show(page, back, head, parts.facts);
  new View(asked, parts).start();
}

class View {
  constructor(asked, parts) {
    this.asked = asked;
    this.parts = parts;
    this.linkTo = (view) => address({ view, dag: asked.dag });
    const look = () => {
      show(parts.files, h("h2", null, FILES), waiting("Reading their manifests …", 2));
      this.load(parts.files, "tables", { view: asked.view }, files);
    };
    // Only if somebody asks: a large table has many manifests.
    parts.files = card(FILES, h("button", { type: "button", class: "plain", onclick: look }, "What of them makes refreshes slow?"));
  }

  start() {
    this.update();
    document.addEventListener("visibilitychange", () => document.hidden || this.update());
  }

  async update() {
    window.clearTimeout(this.timer);
    let again = AGAIN_MS;
    try {
      const facts = await ask("view", { view: this.asked.view });
      this.draw(facts);
      if (facts.history.some((item) => item.kind === "running")) again = RUNNING_MS;
    } catch (error) {
      this.fail(error);
      if (error.status >= 400 && error.status < 500) return;
    }
    if (!document.hidden) this.timer = window.setTimeout(() => this.update(), again);
  }

  fail(error) {
    if (!(error instanceof Problem)) throw error;
    // The earlier content stays, with the error above it.
    if (this.seen) show(this.parts.head, heading(this.seen, this.coverage), problem(error));
    else show(this.parts.facts, problem(error));
  }

  draw(facts) {
    const moved = this.seen?.refresh_id !== facts.refresh_id || this.seen?.state !== facts.state;
    this.seen = facts;
    show(this.parts.why, why(facts, this.coverage));
    show(this.parts.head, heading(facts, this.coverage), actions(facts, () => this.update()));
    show(
      this.parts.facts,
      this.parts.intervals,
      h("div", { class: "columns" }, this.parts.why, this.parts.plan),
      baseTables(facts.base_tables, this.linkTo),
      this.parts.files,
      refreshes(facts, this),
      this.parts.graph,
      definition(facts),
    );
    const work = JSON.stringify(facts.history.filter((item) => item.kind !== "refreshed"));
    if (isCovered(facts) && (moved || work !== this.work)) this.cover(facts);
    this.work = work;
    if (!moved) return;
    this.load(this.parts.plan, "plan", { view: this.asked.view }, (found) => plan(found, isCovered(facts)));
    this.load(this.parts.graph, "graph", { view: facts.view }, (found) => graph(found, facts.view, this.linkTo));
  }

  async cover(facts) {
    try {
      this.coverage = await ask("coverage", { view: facts.view });
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      show(this.parts.intervals, problem(error));
      return;
    }
    this.strip = new Strip(this.seen, this.coverage, () => this.update()).like(this.strip);
    show(this.parts.intervals, this.strip.draw());
    show(this.parts.why, why(this.seen, this.coverage));
    show(this.parts.head, heading(this.seen, this.coverage), actions(this.seen, () => this.update()));
  }

  async load(place, path, parameters, draw) {
    try {
      place.replaceChildren(...draw(await ask(path, parameters)).childNodes);
      place.className = "card";
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      const title = place.querySelector("h2")?.cloneNode(true);
      place.replaceChildren(...[title, problem(error)].filter(Boolean));
    }
  }
}

function card(title, ...children) {
  return h("section", { class: "card" }, h("h2", null, title), ...children);
}

function heading(facts, coverage) {
  const isRunning = facts.history.some((item) => item.kind === "running");
  const parts = [
    facts.rows === null || facts.rows === undefined ? null : [h("span", { class: "quiet" }, "rows "), count(facts.rows)],
    facts.rows_written === null || facts.rows_written === undefined ? null : [h("span", { class: "quiet" }, "written by the last refresh "), count(facts.rows_written)],
    facts.lag.seconds ? [h("span", { class: "quiet" }, "lag "), tip("lag", lag(facts.lag), `since ${exact(facts.lag.since)}`)] : null,
    facts.refreshed_at ? [h("span", { class: "quiet" }, "refreshed "), agoExactly("refreshed", facts.refreshed_at)] : null,
    [h("span", { class: "quiet" }, "strategy "), facts.strategy],
    facts.max_staleness ? [h("span", { class: "quiet" }, "max staleness "), facts.max_staleness, facts.late && [" ", h("span", { class: "pill late" }, "late")]] : null,
    facts.allow_stale_data ? [h("span", { class: "quiet" }, "engines may read stale rows")] : null,
    [h("span", { class: "quiet" }, "connection "), facts.conn_id],
  ];
  return h(
    "div",
    null,
    h("div", { class: "title" }, h("h1", null, h("span", { class: "quiet" }, `${facts.namespace}.`), facts.name), statePill(facts.state, coverage), running(isRunning)),
    h("p", { class: "facts" }, parts.filter(Boolean).map((part) => h("span", null, part))),
  );
}

// -- cards -----------------------------------------------------------------------------------------

// Ids are short, and whole behind the button, with the code of the reason.
function reasons(items, card) {
  return h("ul", { class: "reasons" }, items.map(({ code, message }) =>
    h("li", null, shortIds(message), " ", tip(`${card} ${message}`, "code", [h("p", null, message), "Reason code ", h("code", null, code)], { "aria-label": `Reason code of: ${shortIds(message)}` }))));
}

function why(facts, coverage) {
  const title = facts.state === "fresh" ? "Why it is fresh" : `Why it is ${facts.state.replace("-", " ")}`;
  const expiring = facts.expiring.map((text) => h("li", { class: "why" }, text));
  const counted = facts.state === "stale" && coverage?.behind ? [{ code: "INTERVALS", message: coverage.behind }] : [];
  return card(title, reasons([...counted, ...facts.reasons], "why"), expiring.length ? h("ul", { class: "reasons" }, expiring) : null);
}

function plan(found, hasIntervals) {
  const costs = found.estimates.map((item) => h("li", null, h("b", null, item.mode), " ", cost(item)));
  const runs = found.statements.length;
  return card(
    hasIntervals ? "What a refresh of the whole view would do now" : "What a refresh would do now",
    h("p", null, h("span", { class: `mode mode-${found.mode}` }, found.mode), " ", runs ? "" : h("span", { class: "quiet" }, "no Spark job")),
    reasons(found.reasons, "plan"),
    costs.length ? [h("h3", null, "Expected cost"), h("ul", { class: "reasons" }, costs)] : null,
    runs ? h("details", null, h("summary", null, `${runs} Spark ${runs === 1 ? "statement" : "statements"}`), found.statements.map((sql) => h("pre", null, sql))) : null,
  );
}

function cost({ seconds, expected_seconds: expected, measured, bytes_read: read, rows_changed: changed }) {
  const refreshes = measured === 1 ? "refresh" : `${count(measured)} refreshes`;
  const waits = expected === null ? null : `about ${duration(expected)}, as its last ${refreshes} took`;
  if (seconds === null) return waits ?? "unknown, because the size of a base table is unknown";
  const rows = changed === null ? ", an unknown number of changed rows" : changed ? `, ${count(changed)} changed rows` : "";
  return `${waits ?? `about ${duration(seconds)}, and the start of Spark`}; reads ${bytes(read)}${rows}`;
}

function change(sign, number) {
  return number === null ? "unknown" : number ? `${sign}${count(number)}` : "";
}

function baseTables(tables, linkTo) {
  const lines = tables.map((table) =>
    h(
      "tr",
      { class: table.changed ? "changed" : null },
      h("td", { class: "name" }, table.identifier, table.error && h("div", { class: "why" }, table.error)),
      h("td", { class: "arrow" }, snapshot(`recorded ${table.identifier}`, table.recorded), " → ", snapshot(`current ${table.identifier}`, table.current)),
      h("td", null, table.moved ? table.change : "unchanged"),
      h("td", { class: "number" }, table.moved ? count(table.snapshots) : ""),
      h("td", { class: "number" }, table.moved ? change("+", table.rows_added) : ""),
      h("td", { class: "number" }, table.moved ? change("−", table.rows_deleted) : ""),
      h("td", { class: "number" }, table.total_rows ? count(table.total_rows) : ""),
    ),
  );
  const head = [["Table"], ["Refreshed at → now"], ["Change"], ["Snapshots", 1], ["Rows added", 1], ["Rows removed", 1], ["Rows now", 1]];
  return card("Base tables", grid(head, lines));
}

function files({ tables }) {
  const found = Object.entries(tables).flatMap(([table, items]) => items.map((item) => ({ table, ...item })));
  const line = ({ table, message, remedy }) => h("li", null, h("b", null, table), " ", message, h("pre", null, remedy));
  const nothing = h("p", { class: "quiet" }, "Nothing of them makes refreshes slow.");
  return card(FILES, found.length ? h("ul", { class: "reasons" }, found.map(line)) : nothing);
}

function refreshes(facts, view) {
  const { history } = facts;
  if (!history.length) {
    return card("Refreshes", h("p", { class: "quiet" }, "The view was never refreshed, and no refresh has run in this Airflow. The first refresh computes all rows."));
  }
  const shown = view.all ? history : history.slice(0, FIRST);
  const more = history.length - shown.length;
  const all = () => {
    view.all = true;
    view.draw(view.seen);
  };
  const checked = shown.some((item) => item.checks);
  const head = [["When"], ["What"], ["Rows", 1], ["Written", 1], ["Took", 1], checked && ["Checks"], ["By"], ["Run"], ["Why"]].filter(Boolean);
  return card(
    "Refreshes",
    history.some((item) => item.dag_id) ? null : h("p", { class: "hint" }, facts.refreshers.hidden ? NOT_YOURS : NOT_HERE),
    history.length > 1 ? drawPlot(facts, view) : null,
    grid(head, shown.map((item) => refreshLine(item, checked, shown.filter((other) => other.kind === "failed").indexOf(item)))),
    more ? h("button", { type: "button", class: "plain", onclick: all }, `${more} more`) : null,
  );
}

function refreshLine(item, checked, number) {
  const what = item.kind === "refreshed" ? h("span", { class: `mode mode-${item.mode}` }, item.mode ?? "refreshed") : h("span", { class: `mode ${item.kind}` }, item.state);
  const why = whyOf(item);
  const key = [item.refresh_id, item.run_id, item.task_id, item.map_index, item.at].join(" ");
  const checks = item.checks?.lines.length ? tip(`checks ${key}`, checksText(item.checks), item.checks.lines.join("\n")) : checksText(item.checks);
  return h(
    "tr",
    null,
    h("td", null, agoExactly(`at ${key}`, item.at)),
    h("td", null, what, " ", unexpected(key, item.fallback), " ",
      item.interval && tip(`interval ${key}`, stretch(item.interval), stretchExactly(item.interval), { class: "tip stretch" }),
      item.current && h("span", { class: "quiet" }, " current")),
    h("td", { class: "number" }, count(item.rows)),
    h("td", { class: "number" }, count(item.rows_written)),
    h("td", { class: "number" }, duration(item.seconds)),
    checked && h("td", null, checks),
    h("td", null, item.by ?? h("span", { class: "quiet" }, item.dag_id ? "" : "not by this Airflow")),
    h("td", { class: "run" }, item.dag_id && airflowLink(runPath(item), breakable(item.dag_id))),
    h("td", { class: "long" }, item.kind === "failed" && number < MAX_ERRORS ? failure(item) : null, clamped(`why ${key}`, why.text, why.whole)),
  );
}

function grid(head, lines) {
  const cells = head.map(([name, number]) => h("th", { scope: "col", class: number ? "number" : null }, name));
  return h("div", { class: "wide" }, h("table", null, h("thead", null, h("tr", null, cells)), h("tbody", null, lines)));
}

function graph(found, view, linkTo) {
  return card("Made from, and read by", drawGraph(found, { current: view, linkTo }));
}

function definition(facts) {
  const rows = [
    ["Version", facts.version_id],
    ["Layout", facts.layout],
    ["How to read", facts.how_to_read],
    ["Refresh id", facts.refresh_id && snapshot("refresh id", facts.refresh_id)],
  ].filter(([, value]) => value !== null && value !== undefined);
  return card("Definition", h("pre", null, facts.sql), h("dl", null, rows.map(([name, value]) => [h("dt", null, name), h("dd", null, value)])));
}
