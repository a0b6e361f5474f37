// SPDX-License-Identifier: Apache-2.0
// All views: search, filter, group, sort, page, graph.

import { address, airflowLink, runPath } from "./address.js";
import { ask, Problem } from "./api.js";
import { breakable, h, LABELS, problem, running, show, tip, waiting } from "./dom.js";
import { failure } from "./errors.js";
import { ago, count, duration, exact, lag, shortIds, stretch, stretchExactly, unexpected, whyOf } from "./format.js";
import { drawGraph } from "./graph.js";
import { statePill } from "./intervals.js";

const PAGE = 100;
const NOT_CREATED = "not-created";
const LOOKING_MS = 1500;
const AGAIN_MS = 4000;
const IDLE_MS = 30000;
const LATE_SECONDS = 8;
const NOT_HERE = "No refresh has run in this Airflow. So the page shows what the views have recorded; who refreshed them, how long it took and what failed is unknown.";
const COLUMNS = [
  { name: "State", sort: "attention", about: "sorted by urgency: views that need attention come first" },
  { name: "View", sort: "view" },
  { name: "Lag", sort: "lag", number: true, about: "since the first commit to a base table that the view lacks" },
  { name: "Refreshed", sort: "refreshed" },
  { name: "Mode", sort: "mode", about: "what the last refresh did" },
  { name: "Rows", sort: "rows", number: true, about: "rows that the view has" },
  { name: "Written", number: true, about: "rows that the last refresh wrote" },
  { name: "Took", number: true },
  { name: "By" },
  { name: "Base tables", number: true, kind: "tables", about: "changed since the last refresh, of all" },
  { name: "Details", kind: "more" },
];

export function showList(page, asked) {
  const list = new List(page, asked);
  list.frame();
  list.update();
}

class List {
  constructor(page, asked) {
    this.page = page;
    this.asked = asked;
    this.timer = 0;
    this.renewed = null; // from then on no row is shown that was read before the page was opened
    this.turn = 0;
    this.search = h("input", {
      type: "search",
      placeholder: "Search views and base tables",
      "aria-label": "Search views and base tables",
      "aria-keyshortcuts": "/",
      oninput: () => this.go({ text: this.search.value, page: 0 }, 200),
    });
    this.search.value = asked.text;
    this.chips = h("div", { class: "chips", role: "group", "aria-label": "States" });
    this.group = h("select", { onchange: () => this.go({ group: this.group.value, opened: [] }) },
      [["", "none"], ["namespace", "namespace"], ["dag", "DAG"]].map(([value, name]) => h("option", { value, selected: value === asked.group }, name)));
    this.closed = new Set(); // groups that the reader has closed although there is room for them
    this.kept = {}; // how the graph is zoomed and scrolled
    this.turned = null;
    this.told = h("span", { class: "quiet told", role: "status" });
    this.problems = h("div");
    this.body = h("div", null, waiting("Reading the catalogs …"));
    this.switch = h("button", { type: "button", class: "plain", onclick: () => this.go({ graph: !this.asked.graph }) }, asked.graph ? "Table" : "Graph");
  }

  frame() {
    const title = this.asked.dag ? "Views that this DAG refreshes" : "Materialized views";
    // The registry's answers are about whole catalogs, so not for the tab of one DAG.
    const costs = this.asked.dag ? null : h("a", { class: "button", href: address({ costs: true }) }, "Costs");
    const group = h("label", { class: "labelled" }, "Group by ", this.group);
    const bar = h("header", { class: "top" }, h("h1", null, title), this.search, group, this.switch, costs);
    show(this.page, bar, h("div", { class: "under" }, this.chips, this.told), this.problems, this.body);
    document.addEventListener("keydown", (event) => this.key(event));
    document.addEventListener("visibilitychange", () => document.hidden || this.update());
  }

  // `/` to the filter, arrows from line to line.
  key(event) {
    const typing = document.activeElement === this.search;
    if (event.key === "/" && !/^(INPUT|SELECT)$/.test(document.activeElement.tagName)) {
      event.preventDefault();
      this.search.focus();
    } else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      const links = [...this.body.querySelectorAll("td.name a")];
      const place = links.indexOf(document.activeElement);
      if (!links.length || (place < 0 && !typing)) return;
      event.preventDefault();
      const next = links[place + (event.key === "ArrowDown" ? 1 : -1)];
      (next ?? this.search).focus();
    }
  }

  go(change, wait = 0) {
    Object.assign(this.asked, { page: 0 }, change);
    window.history.replaceState(null, "", address(this.asked));
    window.clearTimeout(this.timer);
    this.timer = window.setTimeout(() => this.update(), wait);
  }

  async update() {
    window.clearTimeout(this.timer);
    const turn = ++this.turn;
    let again = IDLE_MS;
    try {
      const found = await ask("views", this.parameters());
      const drawn = this.asked.graph && found.total ? await ask("graph", this.parameters()) : null;
      if (turn !== this.turn) return; // the reader has asked for something else meanwhile
      this.draw(found, drawn);
      if (found.sources.some((source) => source.looking !== null)) again = found.sources.some(isFirst) ? LOOKING_MS : AGAIN_MS;
      else if (found.counting) again = AGAIN_MS;
      this.renewed ??= Date.now() + 1000 * Math.max(0, ...found.sources.map((source) => source.pause));
      if (this.renewed > Date.now()) again = Math.min(again, this.renewed - Date.now());
    } catch (error) {
      if (turn !== this.turn) return;
      if (!(error instanceof Problem)) throw error;
      show(this.problems, problem(error));
      if (!this.drawn) show(this.body);
      if (error.status === 401 || error.status === 403) return;
    }
    if (!document.hidden) this.timer = window.setTimeout(() => this.update(), again);
  }

  parameters() {
    const { text, states, dag, namespace, group, opened, sort, descending, page } = this.asked;
    return { q: text, state: states, dag_id: dag, namespace, group, open: opened, sort, desc: descending, offset: page * PAGE, limit: PAGE };
  }

  draw(found, graph) {
    this.drawn = true;
    this.switch.textContent = this.asked.graph ? "Table" : "Graph";
    show(this.chips, this.chipsOf(found.counts));
    const looking = found.sources.some(isFirst);
    show(this.problems, found.sources.map(trouble).filter(Boolean), missing(found.missing, this.asked.dag),
      found.total && !found.has_refreshed ? h("p", { class: "hint" }, NOT_HERE) : null);
    show(this.told, ...told(found.sources));
    if (!found.total) show(this.body, this.empty(found, looking));
    else if (graph) this.drawGraph(graph);
    else show(this.body, this.table(found), found.groups ? null : this.pager(found.total), about());
  }

  drawGraph(graph) {
    const text = JSON.stringify(graph);
    if (this.body.firstChild === this.graph && text === this.graphText) return; // it stays as it was scrolled
    this.graph = drawGraph(graph, { linkTo: (view) => this.linkTo(view), toGroup: (name, isOpen) => this.toGroup(name, isOpen), kept: this.kept });
    this.graphText = text;
    show(this.body, this.graph);
    if (this.turned) this.graph.querySelector(`[data-key="${CSS.escape(this.turned)}"]`)?.focus();
    this.turned = null;
  }

  // What opens or closes a group of the graph.
  toGroup(name, isOpen) {
    const opened = this.asked.opened.filter((item) => item !== name);
    const change = { opened: isOpen ? opened : [...opened, name] };
    const onclick = (event) => {
      if (event.metaKey || event.ctrlKey) return;
      event.preventDefault();
      this.kept = { zoom: this.kept.zoom };
      this.turned = isOpen ? `node group ${name}` : `close ${name}`; // what then has the focus
      this.go(change);
    };
    return { href: address({ ...this.asked, ...change }), onclick };
  }

  chipsOf(counts) {
    const chosen = new Set(this.asked.states);
    const all = new Set([...Object.keys(counts), ...chosen]);
    const { namespace } = this.asked;
    const within = namespace && h("button", { type: "button", class: "chip", "aria-pressed": "true", "data-key": "chip namespace",
      "aria-label": `Only namespace ${namespace}: show all`, onclick: () => this.go({ namespace: null }) }, "namespace ", h("b", null, namespace), " ×");
    const states = [...all].map((state) => {
      const toggle = () => {
        const others = this.asked.states.filter((item) => item !== state);
        this.go({ states: this.asked.states.includes(state) ? others : [...others, state] });
      };
      return h(
        "button",
        { type: "button", class: `chip ${state}`, "data-state": state, "aria-pressed": chosen.has(state) ? "true" : "false", onclick: toggle,
          "data-key": `chip ${state}` },
        h("b", null, count(counts[state] ?? 0)),
        LABELS[state] ?? state,
      );
    });
    return [within, ...states];
  }

  linkTo(view) {
    return address({ view, dag: this.asked.dag });
  }

  table({ views, groups }) {
    const head = COLUMNS.map((column) => this.header(column));
    const byName = new Map(views.map((view) => [view.view, view]));
    const lines = groups
      ? groups.map((group) => [this.groupLine(group), this.isOpen(group) ? group.views.map((name) => this.lines(byName.get(name))) : null])
      : views.map((view) => this.lines(view));
    return h("div", { class: "wide" }, h("table", { class: "views" }, h("thead", null, h("tr", null, head)), lines));
  }

  isOpen({ name, open }) {
    return open && !this.closed.has(name);
  }

  groupLine(group) {
    const isOpen = this.isOpen(group);
    const turn = () => {
      if (isOpen) this.closed.add(group.name);
      else this.closed.delete(group.name);
      const opened = this.asked.opened.filter((name) => name !== group.name);
      this.go({ opened: isOpen || group.open ? opened : [...opened, group.name] });
    };
    const left = group.total - group.views.length;
    const all = this.asked.group === "dag" ? { dag: group.name } : { ...this.asked, namespace: group.name };
    const button = h("button", { type: "button", "aria-expanded": isOpen ? "true" : "false", "data-key": `group ${group.name}`, onclick: turn },
      h("span", { class: "sign", "aria-hidden": "true" }, isOpen ? "▾" : "▸"), breakable(group.name));
    const states = Object.entries(group.counts).map(([state, number]) => h("span", { class: `pill ${state}` }, `${count(number)} ${LABELS[state] ?? state}`));
    const more = isOpen && left ? h("a", { href: address({ ...all, group: "", opened: [] }) }, `all ${count(group.total)}`) : null;
    return h("tbody", { class: "group" }, h("tr", null, h("th", { scope: "rowgroup", colspan: COLUMNS.length }, h("div", null, button, states, more))));
  }

  header({ name, sort, number, kind }) {
    const isSorted = sort && this.asked.sort === sort;
    const order = this.asked.descending ? "descending" : "ascending";
    // Of times and sizes the largest are wanted first.
    const first = ["lag", "refreshed", "rows"].includes(sort);
    // What is asked for is read when the button is pressed: an answer may still be on its way.
    const turn = () => this.go({ sort, descending: this.asked.sort === sort ? !this.asked.descending : first });
    const arrow = isSorted ? (this.asked.descending ? " ↓" : " ↑") : "";
    const label = sort ? h("button", { type: "button", onclick: turn, "data-key": `sort ${sort}` }, name, arrow) : h("span", { class: kind === "more" ? "unseen" : null }, name);
    return h("th", { scope: "col", class: [number && "number", kind].filter(Boolean).join(" "), "aria-sort": isSorted ? order : null }, label);
  }

  // What is known of a view, and below it why it is not fresh.
  lines(view) {
    const why = view.state === "fresh" ? [] : view.reasons.map((reason) => shortIds(reason.message));
    const number = (name, text) => h("td", { class: `number ${name}` }, text);
    const line = h(
      "tr",
      null,
      h("td", { class: "state" }, statePill(view.state, view.coverage), " ", running(view.running), " ", failed(view)),
      h("td", { class: "name" }, h("span", { class: "quiet" }, `${view.namespace}.`), this.nameOf(view)),
      number("lag", [late(view), lag(view.lag)]),
      h("td", { class: "refreshed" }, ago(view.refreshed_at)),
      refreshed(view),
      number("size", count(view.rows)),
      number("written", count(view.rows_written)),
      number("took", duration(view.seconds)),
      h("td", { class: "by" }, view.by),
      number("tables", view.tables ? `${view.changed_tables} / ${view.tables}` : ""),
      h("td", { class: "more" }, tip(view.view, "⋯", () => details(view), { "aria-label": `Details of ${view.name}` })),
    );
    const more = why.length > 1 ? ` · ${why.length - 1} more` : null;
    const told = view.state === NOT_CREATED ? view.failed && notCreated(view.failed) : why.length && [why[0], more];
    const because = h("td", { colspan: COLUMNS.length - 1, class: view.state === "unknown" ? "why" : "why quiet" }, told);
    return h("tbody", { "data-state": view.state }, line, told ? h("tr", { class: "because" }, h("td"), because) : null);
  }

  // A view that does not exist has no page of its own.
  nameOf({ view, name, state }) {
    return state === NOT_CREATED ? h("b", null, breakable(name)) : h("a", { href: this.linkTo(view), "data-key": view }, breakable(name));
  }

  pager(total) {
    const { page } = this.asked;
    const last = Math.ceil(total / PAGE) - 1;
    const button = (label, to, name) =>
      h("button", { type: "button", disabled: to < 0 || to > last, onclick: () => this.go({ page: to }), "data-key": name,
        "aria-label": name }, label);
    const shown = `${count(page * PAGE + 1)}–${count(Math.min(total, (page + 1) * PAGE))} of ${count(total)}`;
    if (last < 1) return h("p", { class: "pager quiet" }, `${count(total)} ${total === 1 ? "view" : "views"}`);
    return h("nav", { class: "pager", "aria-label": "Pages" }, button("‹", page - 1, "previous page"),
      h("span", null, shown), button("›", page + 1, "next page"));
  }

  empty(found, looking) {
    if (looking) return waiting("Reading the catalogs …");
    const { text, states, dag, namespace, page } = this.asked;
    if (text || states.length || namespace || page) {
      const all = () => {
        this.search.value = "";
        this.go({ text: "", states: [], namespace: null });
      };
      return h("div", { class: "empty" }, h("p", null, "No view matches this filter."),
        h("button", { type: "button", onclick: all }, "Show all"));
    }
    if (dag) {
      return h("div", { class: "empty" }, h("p", null, "This DAG refreshes no materialized view."),
        h("p", { class: "quiet" }, "A task that refreshes a view has the asset of the view as an outlet. RefreshMaterializedViewOperator adds that outlet."));
    }
    if (found.sources.every((source) => source.problem)) return null;
    const names = found.sources.map((source) => `${source.catalog} (connection ${source.conn_id})`).join(", ");
    return h("div", { class: "empty" }, h("p", null, `There is no materialized view in ${names} yet.`),
      h("p", { class: "quiet" }, "Make one with CreateMaterializedViewOperator, or on a command line:"),
      h("code", null, 'airflow-mv create catalog.namespace.name --sql "SELECT …"'));
  }
}

// The last try has failed: why, and its run.
function failed({ view, failed: item }) {
  const told = () => [h("p", null, `The last refresh failed, ${new Date(item.at).toLocaleString()}.`), failure(item), h("p", null, "Run ", airflowLink(runPath(item), item.run_id))];
  return item ? tip(`failed ${view}`, "failed", told, { class: "tip pill failed" }) : null;
}

function refreshed({ view, mode, last }) {
  return h("td", { class: "mode-of" }, mode, " ", unexpected(view, last?.fallback), " ", last?.interval && h("span", { class: "stretch" }, stretch(last.interval)));
}

// All that a line has little room for.
function details(view) {
  const { since, seconds } = view.lag;
  const facts = [
    ["View", view.view],
    ["State", LABELS[view.state] ?? view.state],
    ["Why", view.reasons.map((reason) => h("p", null, reason.message))],
    ["Max staleness", view.max_staleness],
    ["Lag", seconds ? [lag(view.lag), since && `, since ${exact(since)}`] : null],
    ["Refreshed", view.refreshed_at && exact(view.refreshed_at)],
    ["Mode", view.mode],
    ["Because", whyOf(view.last ?? {}).whole],
    ["Interval", view.last?.interval && stretchExactly(view.last.interval)],
    ["Rows", count(view.rows)],
    ["Written", count(view.rows_written)],
    ["Took", duration(view.seconds)],
    ["By", view.by],
    ["Base tables", view.tables ? `${view.changed_tables} of ${view.tables} changed` : null],
  ].filter(([, fact]) => fact?.length);
  return h("dl", null, facts.map(([name, fact]) => [h("dt", null, name), h("dd", null, fact)]));
}

function about() {
  const columns = COLUMNS.filter((column) => column.about).map((column) => [column.name, column.about]);
  const lines = [...columns, ["/", "key: to the search"], ["↑ ↓", "keys: from view to view"]];
  return h("details", { class: "about quiet" }, h("summary", null, "Columns and keys"),
    h("dl", null, lines.map(([name, text]) => [h("dt", null, name), h("dd", null, text)])));
}

function trouble(source) {
  const where = source.catalog ? `Catalog ${source.catalog}, connection ${source.conn_id}` : `Connection ${source.conn_id}`;
  if (source.problem) return problem(source.problem, where);
  if (source.looking === null || source.looking < LATE_SECONDS || source.views) return null;
  const message = `The catalog has not answered for ${duration(source.looking)}.`;
  return problem({ message, advice: "If this persists, check that it runs and that the api-server can reach it." }, where);
}

function notCreated(item) {
  return ["The view does not exist: task ", h("code", null, item.task_id), " of DAG ", airflowLink(runPath(item), item.dag_id), " failed ", ago(item.at), ".", failure(item)];
}

// The view breaches its freshness SLO.
function late({ view, late: isLate, max_staleness: allowed }) {
  return isLate ? tip(`late ${view}`, "late", `The view is later than its max staleness of ${allowed} allows.`, { class: "tip mark" }) : null;
}

function missing(names, dag) {
  if (!names.length || !dag) return null;
  return problem({ message: `Not in a catalog of this page: ${names.join(", ")}.`,
    advice: "They may not be created yet, or their connection is not in [airflow_mv] page_conn_ids." });
}

// Until all views have been checked once, the list is not complete; after that, what was seen stands meanwhile.
function isFirst(source) {
  return source.looking !== null && !source.checked_at;
}

function told(sources) {
  const first = sources.filter(isFirst).map((source) => source.looking);
  if (first.length) return [`waiting for ${duration(Math.max(1, ...first))} …`];
  const times = sources.map((source) => source.checked_at).filter(Boolean).sort();
  return times.length ? ["as of ", ago(times[0])] : [];
}
