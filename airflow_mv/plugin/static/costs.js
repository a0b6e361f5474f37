// SPDX-License-Identifier: Apache-2.0
// The costs of refreshes: from the registry of each catalog, with what incremental refresh saved, or else from what the
// views have recorded.

import { address, airflowLink } from "./address.js";
import { ask, Problem } from "./api.js";
import { h, pill, problem, show, svg, tip, waiting } from "./dom.js";
import { ago, agoExactly, bytes, clamped, count, duration } from "./format.js";

const AGAIN_MS = 300000;
const DAYS = [7, 30, 90, 365];
const BAR = 60;

export function showCosts(page, asked) {
  document.title = "Costs · Materialized views";
  new Costs(page, asked).start();
}

class Costs {
  constructor(page, asked) {
    this.page = page;
    this.asked = asked;
    this.turn = 0;
    this.days = h("div", { class: "chips", role: "group", "aria-label": "Time" });
    this.told = h("span", { class: "quiet told", role: "status" });
    this.problems = h("div");
    this.body = h("div", null, waiting("Reading the refreshes …"));
  }

  start() {
    const back = h("a", { class: "back", href: address({}) }, "‹ All views");
    show(this.page, back, h("header", { class: "top" }, h("h1", null, "Costs of refreshes"), this.days, this.told), this.problems, this.body);
    document.addEventListener("visibilitychange", () => document.hidden || this.update());
    this.update();
  }

  choose(days) {
    this.asked.days = days;
    window.history.replaceState(null, "", address(this.asked));
    this.update();
  }

  async update() {
    window.clearTimeout(this.timer);
    const turn = ++this.turn;
    show(this.days, DAYS.map((days) => this.chip(days)));
    this.body.setAttribute("aria-busy", "true");
    try {
      const found = await ask("costs", { days: this.asked.days });
      if (turn !== this.turn) return; // the reader has asked for another time meanwhile
      show(this.problems, found.catalogs.map(trouble));
      show(this.told, ...told(found.catalogs));
      show(this.body, found.catalogs.filter((catalog) => !catalog.problem).map((catalog) => costsOf(catalog, found)));
    } catch (error) {
      if (turn !== this.turn) return;
      if (!(error instanceof Problem)) throw error;
      show(this.problems, problem(error));
      if (!this.drawn) show(this.body);
      if (error.status === 401 || error.status === 403) return;
    } finally {
      if (turn === this.turn) this.body.removeAttribute("aria-busy");
    }
    this.drawn = true;
    if (!document.hidden) this.timer = window.setTimeout(() => this.update(), AGAIN_MS);
  }

  chip(days) {
    const chosen = this.asked.days === days ? "true" : "false";
    return h("button", { type: "button", class: "chip", "aria-pressed": chosen, "data-key": `days ${days}`,
      onclick: () => this.choose(days) }, `${days} days`);
  }
}

function trouble({ conn_id: connId, catalog, problem: found }) {
  if (!found) return null;
  return problem(found, catalog ? `Catalog ${catalog}, connection ${connId}` : `Connection ${connId}`);
}

function told(catalogs) {
  const times = catalogs.map((catalog) => catalog.checked_at).filter(Boolean).sort();
  return times.length ? ["synced ", ago(times[0])] : [];
}

function costsOf(found, { days, catalogs }) {
  const title = catalogs.length > 1 ? h("h2", { class: "catalog" }, `Catalog ${found.catalog}`) : null;
  if (found.recorded) return h("section", null, title, recorded(found, days));
  if (!found.totals.refreshes && !found.answers.lagging.total) return h("section", null, title, nothing(found, days));
  return h(
    "section",
    null,
    title,
    tiles(found.totals),
    TABLES.map((table) => card(table, found)).filter(Boolean),
  );
}

// Each view records its last refreshes; only a registry knows those before them, and what a full refresh would have cost.
function recorded({ catalog, conn_id: connId, setting, recorded: { lines, total, totals, left_out: leftOut } }, days) {
  if (!lines.length) return h("div", { class: "empty" }, h("p", null, `No view of catalog ${catalog} was refreshed in the last ${days} days.`));
  return [
    h("dl", { class: "tiles" },
      tile("refreshes", count(totals.refreshes)),
      tile("full refreshes", count(totals.full)),
      tile("cost", duration(totals.cost_seconds) || "0 s", COST),
      tile("rows written", count(totals.rows_written)),
      totals.unmeasured ? tile("without a duration", count(totals.unmeasured), "Refreshes of a version that recorded no durations") : null),
    card(RECORDED, { answers: { recorded: { lines, total } }, catalog }),
    h("p", { class: "quiet" }, "Each view records its last 50 refreshes, with time travel the last hundred. ",
      leftOut ? `${count(leftOut)} more views were refreshed in this time. ` : null,
      "A registry keeps all refreshes, and shows what incremental refresh saved: set ", h("code", null, `"${setting}": "airflow_mv"`), ` in the extra of connection ${connId}, and run SyncRegistryOperator in a DAG.`),
  ];
}

function nothing({ catalog }, days) {
  return h(
    "div",
    { class: "empty" },
    h("p", null, `The registry has no refresh of the last ${days} days.`),
    h("p", { class: "quiet" }, "A sync adds refreshes: SyncRegistryOperator, or on a command line:"),
    h("code", null, `airflow-mv registry sync --catalog ${catalog}`),
  );
}

function tile(name, value, about, alarm) {
  return h("div", { class: alarm ? "tile alarm" : "tile" }, h("dd", null, value), h("dt", null, about ? tip(name, name, about) : name));
}

function tiles({ refreshes, cost_seconds: cost, saved_seconds: saved, fallbacks, lagging, late }) {
  return h(
    "dl",
    { class: "tiles" },
    tile("refreshes", count(refreshes)),
    tile("cost", duration(cost) || "0 s", COST),
    tile("saved by incremental refresh", saved ? signed(saved) : "0 s", SAVED),
    tile("unexpected full refreshes", count(fallbacks), "Incremental views that were recomputed in full", fallbacks > 0),
    tile("views not fresh", count(lagging), "At the last sync"),
    tile("late", count(late), "Views whose lag exceeds their max staleness, at the last sync", late > 0),
  );
}

const COST = "The run time of the tasks of Spark's executors, or the wall-clock time of the job if Spark does not report it";
const SAVED = "The estimated job time of full refreshes, less that of the incremental ones that ran instead";

const viewColumn = { name: "View", cell: ({ view }) => h("a", { href: address({ view }), "data-key": view }, view), wide: true };
const costColumns = [
  { name: "Cost", about: COST, number: true, cell: (line, most) => bar(line.cost_seconds, most.cost_seconds) },
  { name: "Refreshes", number: true, cell: (line) => count(line.refreshes) },
  { name: "Elapsed", about: "Wall-clock time of plan, job and publication", number: true, cell: (line) => duration(line.seconds) },
  { name: "Rows written", number: true, cell: (line) => count(line.rows_written) },
  { name: "Bytes read", about: "Bytes of the files that were read to find the change", number: true, cell: (line) => bytes(line.bytes_read) },
];

const RECORDED = {
  title: "Cost by view",
  question: "recorded",
  command: "costs --all",
  columns: [
    viewColumn,
    ...costColumns.slice(0, 4),
    { name: "Modes", cell: ({ modes }) => counted(modes), wide: true },
    { name: "Requested by", cell: ({ requested_by: by }) => counted(by), wide: true },
  ],
};

const TABLES = [
  { title: "Cost by view", question: "costs", columns: [viewColumn, ...costColumns] },
  {
    title: "Unexpected full refreshes",
    question: "fallbacks",
    columns: [
      viewColumn,
      { name: "Times", number: true, cell: (line) => count(line.fallbacks) },
      { name: "Last", cell: (line) => agoExactly(`last ${line.view}`, line.last_at) },
      { name: "Why the last time", cell: (line) => line.why, wide: true, long: true },
    ],
  },
  {
    title: "Saved by incremental refresh",
    question: "saved",
    columns: [
      viewColumn,
      { name: "Saved", about: SAVED, number: true, cell: (line, most) => bar(line.saved_seconds, most.saved_seconds) },
      { name: "Refreshes", number: true, cell: (line) => count(line.refreshes) },
      { name: "Jobs took", number: true, cell: (line) => duration(line.job_seconds) },
      { name: "Full would take", number: true, cell: (line) => duration(line.full_seconds) },
    ],
  },
  { title: "Cost by DAG", question: "costs-by-dag", columns: [{ name: "DAG", cell: dagOf, wide: true }, ...costColumns] },
  {
    title: "Cost by owner",
    question: "costs-by-owner",
    columns: [{ name: "Owner", cell: (line) => line.owner ?? h("span", { class: "quiet" }, "no owner"), wide: true }, ...costColumns],
  },
  {
    title: "Views that are not fresh",
    question: "lagging",
    columns: [
      viewColumn,
      { name: "State", cell: (line) => pill(line.state) },
      { name: "Lag", number: true, cell: (line) => (line.lag_seconds === null ? "" : duration(line.lag_seconds)) },
      { name: "Refreshed", cell: (line) => agoExactly(`refreshed ${line.view}`, line.refreshed_at) },
      { name: "Why", cell: (line) => line.explanation, wide: true, long: true },
    ],
  },
];

// "12 merge, 3 full"
function counted(counts) {
  return Object.entries(counts).map(([name, number]) => `${count(number)} ${name}`).join(", ");
}

function card({ title, question, columns, command = `registry ${question} --catalog` }, { answers, catalog }) {
  const { lines, total } = answers[question];
  if (!lines.length) return null;
  const most = Object.fromEntries(["cost_seconds", "saved_seconds"].map((key) => [key, Math.max(...lines.map((line) => line[key] ?? 0))]));
  const head = columns.map(({ name, about, number }) => h("th", { scope: "col", class: number ? "number" : null }, about ? tip(`${question} ${name}`, name, about) : name));
  const cell = ({ cell: draw, number, wide, long }, line) => {
    const drawn = draw(line, most);
    return h("td", { class: number ? "number" : long ? "long" : wide ? "name" : null }, long ? clamped(`${question} ${line.view}`, drawn) : drawn);
  };
  const body = lines.map((line) => h("tr", null, columns.map((column) => cell(column, line))));
  const more = total > lines.length
    ? h("p", { class: "quiet more" }, `${count(total - lines.length)} more: `, h("code", null, `airflow-mv ${command} ${catalog}`))
    : null;
  return h(
    "section",
    { class: "card" },
    h("h2", null, title),
    h("div", { class: "wide" }, h("table", { class: "costs" }, h("thead", null, h("tr", null, head)), h("tbody", null, body))),
    more,
  );
}

function dagOf({ dag_id: dagId, hidden }) {
  if (hidden) return h("span", { class: "quiet" }, `${count(hidden)} ${hidden === 1 ? "DAG" : "DAGs"} that you may not read`);
  if (dagId === null) return h("span", { class: "quiet" }, "not by a DAG");
  return airflowLink(`dags/${encodeURIComponent(dagId)}`, dagId);
}

function signed(seconds) {
  return seconds < 0 ? `−${duration(-seconds)}` : duration(seconds);
}

// A time, and a bar whose length is its share of the longest of the column.
function bar(seconds, most) {
  const width = most > 0 ? (BAR * Math.max(0, seconds ?? 0)) / most : 0;
  const drawn = svg("svg", { class: "share", width: BAR, height: 8, "aria-hidden": "true" }, svg("rect", { width, height: 8, rx: 2 }));
  return [drawn, h("span", { class: "time" }, signed(seconds))];
}
