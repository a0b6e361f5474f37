// SPDX-License-Identifier: Apache-2.0
// The intervals of a view as a strip: which are fresh, and from there a run or a backfill for those that are chosen.

import { airflowLink } from "./address.js";
import { ask, backfill } from "./api.js";
import { h, pill, show } from "./dom.js";
import { count, stretch } from "./format.js";
import { moment, openDialog, startRun, tasksOf } from "./run.js";

const MAX_SHOWN = 400; // cells; the earlier ones are a button away
const AT_ONCE = 4; // runs of a backfill
// What a cell says without its colour.
const SIGNS = { fresh: "", unaffected: "", stale: "!", "never-computed": "", running: "▸", failed: "×" };
const WORDS = {
  fresh: "fresh", unaffected: "unaffected", stale: "stale", "never-computed": "never computed", running: "running or waiting", failed: "failed",
};
const MEANS = {
  unaffected: "base tables have changed, but no row of this interval has: it counts as fresh",
  stale: "a refresh computes it again",
  "never-computed": "its rows were never computed",
  failed: "its last run has failed",
};

export function isCovered(facts) {
  return facts.interval_column !== null && facts.interval_column !== undefined;
}

export function summary(found) {
  const unit = found.intervals === 1 ? found.unit : `${found.unit}s`;
  return `${count(found.up_to_date)} of ${count(found.intervals)} ${unit} fresh`;
}

// Of a view whose intervals are refreshed one by one, how many are fresh says more than that one is not.
export function statePill(state, found) {
  if (!found || state !== "stale") return pill(state);
  return h("span", { class: "pill partly" }, summary(found)); // never green: rows in no interval are stale, too
}

export class Strip {
  constructor(facts, found, done) {
    this.facts = facts;
    this.found = found;
    this.done = done;
    this.cells = cellsOf(found, facts.history);
    this.behind = stretchesBehind(this.cells);
    this.from = Math.max(0, this.cells.length - MAX_SHOWN);
    this.at = this.cells.length - 1;
    this.chosen = null;
    this.dags = facts.refreshers.dags.filter((dag) => dag.asks === "interval");
    this.told = h("div", { class: "chosen" });
    this.strip = h("div", { class: "strip", role: "group", "aria-label": `${this.found.unit}s: arrow keys move, with Shift they choose several`,
      onkeydown: (event) => this.key(event) });
    this.card = h("section", { class: "card intervals" });
  }

  // The same place and choice after the facts were read again.
  like(other) {
    if (other?.found.unit === this.found.unit) {
      const place = (index) => this.cells.findIndex((cell) => cell.start === other.cells[index]?.start);
      this.at = Math.max(0, place(other.at));
      if (other.from === 0) this.from = 0;
      const ends = other.chosen?.map(place);
      this.chosen = ends && !ends.includes(-1) ? ends : null;
    }
    return this;
  }

  draw() {
    const earlier = this.from && h("button", { type: "button", class: "plain", "data-key": "earlier", onclick: () => this.all() }, `${count(this.from)} earlier`);
    const pick = this.behind.length && this.dags.some((dag) => dag.allowed) && h("button", { type: "button", "data-key": "choose stale", onclick: () => this.chooseBehind() }, this.offer());
    show(this.card, h("h2", null, `Intervals: ${summary(this.found)}`, h("span", { class: "quiet" }, ` · column ${this.found.column}`)), legend(this.cells), earlier, this.strip, h("div", { class: "chosen" }, pick || null), this.told);
    this.fill();
    return this.card;
  }

  all() {
    this.from = 0;
    this.draw();
  }

  fill() {
    const groups = [];
    for (let index = this.from; index < this.cells.length; index += 1) {
      const name = groupOf(this.cells[index], this.found.unit);
      if (groups.at(-1)?.name !== name) groups.push({ name, cells: [] });
      groups.at(-1).cells.push(this.cell(index));
    }
    show(this.strip, groups.map(({ name, cells }) => h("div", { class: "month" }, h("span", { class: "quiet" }, name), h("div", { class: "cells" }, cells))));
    this.tell();
  }

  cell(index) {
    const { state } = this.cells[index];
    const isChosen = this.chosen && index >= this.chosen[0] && index <= this.chosen[1];
    return h("button", {
      type: "button", class: `cell ${state}`, "aria-pressed": isChosen ? "true" : "false", tabindex: index === this.at ? 0 : -1,
      "aria-label": this.nameOf(index), title: this.nameOf(index), "data-key": `cell ${index}`,
      onclick: (event) => this.choose(index, event.shiftKey),
    }, numberOf(this.cells[index], this.found.unit), sign(state));
  }

  nameOf(index) {
    const cell = this.cells[index];
    return `${stretch(cell)}: ${WORDS[cell.state]}`;
  }

  key(event) {
    const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 7, ArrowUp: -7, Home: -this.cells.length, End: this.cells.length };
    if (event.key === "Escape" && this.chosen) {
      this.chosen = null;
      this.fill();
    }
    if (!(event.key in steps)) return;
    event.preventDefault();
    const to = Math.min(this.cells.length - 1, Math.max(this.from, this.at + steps[event.key]));
    if (event.shiftKey) this.choose(to, true);
    else [this.at, this.anchor] = [to, null];
    this.fill();
    this.strip.querySelector(`[data-key="cell ${this.at}"]`)?.focus();
  }

  choose(index, extend) {
    this.anchor = extend ? (this.anchor ?? this.at) : index;
    const isOnly = this.chosen?.[0] === index && this.chosen[1] === index;
    this.chosen = isOnly && !extend ? null : [Math.min(this.anchor, index), Math.max(this.anchor, index)];
    this.at = index;
    this.fill();
  }

  offer() {
    const ranges = this.behind.length;
    return `Choose the stale ${this.found.unit}s${ranges > 1 ? ` (${count(ranges)} ranges, one after another)` : ""}`;
  }

  chooseBehind() {
    // Never one choice over two ranges: a fresh interval between them would be recomputed.
    const next = this.chosen ? this.behind.find(([first]) => first > this.chosen[0]) : null;
    this.chosen = next ?? this.behind[0];
    this.from = Math.min(this.from, this.chosen[0]);
    [this.anchor, this.at] = this.chosen;
    this.draw();
  }

  // -- what is chosen ------------------------------------------------------------------------------

  tell() {
    if (!this.chosen) {
      show(this.told, h("span", { class: "quiet", role: "status" }, this.advice()));
      return;
    }
    const cells = this.cells.slice(this.chosen[0], this.chosen[1] + 1);
    const span = { start: cells[0].start, end: cells.at(-1).end };
    const dags = this.dags.filter((dag) => dag.allowed);
    const buttons = dags.map((dag) => [
      this.button("Refresh in one run", dag, dags, () => this.runOne(dag, span, cells)),
      this.button(`Backfill: a run for each ${this.found.unit}`, dag, dags, () => this.runMany(dag, span, cells)),
    ]);
    const none = dags.length ? null : h("span", { class: "quiet" }, this.advice());
    show(this.told, h("span", { role: "status" }, h("b", null, stretch(span)), ` · ${statesOf(cells)}`), buttons, none);
  }

  advice() {
    if (!this.dags.length) return 'No DAG of this Airflow refreshes intervals of this view (scope="interval").';
    if (this.dags.some((dag) => dag.allowed)) return `Choose ${this.found.unit}s to refresh them.`;
    return `You may not run the DAG that refreshes these ${this.found.unit}s.`;
  }

  button(text, dag, dags, onclick) {
    const name = dags.length > 1 ? `${text} (${dag.name})` : text;
    const disabled = !dag.may_run;
    return h("span", { class: "action" },
      h("button", { type: "button", disabled, onclick, "data-key": `${text} ${dag.dag_id}` }, name),
      disabled && h("span", { class: "why" }, dag.reason));
  }

  runOne(dag, span, cells) {
    const conf = { [dag.params[0]]: this.shown(span.start, dag.zone), [dag.params[1]]: this.shown(span.end, dag.zone) };
    openDialog({
      title: `Run DAG ${dag.name} once?`,
      label: "Refresh in one run",
      body: [
        h("p", null, `One run refreshes ${stretch(span)} as one interval: one Spark job, which replaces all of these rows (${statesOf(cells)}). ${tasksOf(dag)[0].toUpperCase()}${tasksOf(dag).slice(1)}.`),
        h("p", { class: "quiet" }, `In its conf: ${dag.params[0]} = ${conf[dag.params[0]]}, ${dag.params[1]} = ${conf[dag.params[1]]}`),
      ],
      start: () => startRun(dag, conf),
      dag,
      done: this.done,
    });
  }

  async runMany(dag, span, cells) {
    const preview = h("p", { role: "status" }, "Requesting a dry run from Airflow …");
    const most = h("input", { type: "number", min: 1, max: 100, value: AT_ONCE });
    let body = null;
    const button = openDialog({
      title: `Backfill DAG ${dag.name}?`,
      label: "Backfill",
      body: [preview, h("div", { class: "fields" }, h("label", null, "Runs at once", most)),
        h("p", { class: "quiet" }, `Chosen: ${statesOf(cells)}. A run whose rows are fresh starts no Spark. Runs that exist are run again.`)],
      wrong: () => (most.validity.valid && most.value ? null : "Give a number of runs from 1 to 100."),
      start: async () => {
        const made = await backfill({ ...body, max_active_runs: Number(most.value) }, { dry: false });
        return ["The backfill has been created", airflowLink(`dags/${encodeURIComponent(dag.dag_id)}/backfills`, `Backfill ${made.id}`)];
      },
      dag,
      done: this.done,
    });
    button.disabled = true;
    try {
      const found = await ask("backfill", { dag_id: dag.dag_id, start: span.start, end: span.end, type: this.found.type });
      if (found.problem) {
        preview.replaceChildren(found.problem);
        return;
      }
      body = { dag_id: dag.dag_id, from_date: found.from_date, to_date: found.to_date, reprocess_behavior: "completed", run_backwards: false };
      const dry = await backfill(body, { dry: true });
      const runs = `${count(dry.total_entries)} ${dry.total_entries === 1 ? "run" : "runs"}`;
      preview.replaceChildren(`Airflow creates ${runs}, dated ${found.from_date.slice(0, 16).replace("T", " ")} to ${found.to_date.slice(0, 16).replace("T", " ")}, for the rows of ${stretch(found)}.`);
      button.disabled = !dry.total_entries;
    } catch (error) {
      preview.replaceChildren(`Airflow refused the request: ${error.message}`);
    }
  }

  // A date is one of the schedule's zone; other times are exact.
  shown(iso, zone) {
    return this.found.type === "date" ? moment(iso.slice(0, 16), zone) : iso;
  }
}

function isBehind(state) {
  return state !== "fresh" && state !== "unaffected" && state !== "running";
}

// The first and the last index of each stretch of intervals that a refresh would change.
function stretchesBehind(cells) {
  const found = [];
  cells.forEach((cell, index) => {
    if (!isBehind(cell.state)) return;
    if (index && found.at(-1)?.[1] === index - 1) found.at(-1)[1] = index;
    else found.push([index, index]);
  });
  return found;
}

function statesOf(cells) {
  return Object.keys(WORDS)
    .map((state) => [cells.filter((cell) => cell.state === state).length, state])
    .filter(([number]) => number)
    .map(([number, state]) => `${count(number)} ${WORDS[state]}`)
    .join(", ");
}

function legend(cells) {
  const there = Object.keys(WORDS).filter((state) => cells.some((cell) => cell.state === state));
  return h("p", { class: "legend" }, there.map((state) => h("span", null,
    h("span", { class: `cell ${state}`, "aria-hidden": "true" }, sign(state)), WORDS[state], MEANS[state] && h("span", { class: "quiet" }, ` (${MEANS[state]})`))));
}

// -- cells -----------------------------------------------------------------------------------------

// One for each interval, with what Airflow's runs do to it: a running one wins, a failed one if it is not fresh.
function cellsOf(found, history) {
  const cells = [];
  for (const range of found.ranges) {
    let start = new Date(range.start);
    for (let number = 0; number < range.count && cells.length < 100000; number += 1) {
      const end = next(start, found.unit);
      cells.push({ start: start.toISOString(), end: end.toISOString(), state: range.state });
      start = end;
    }
  }
  const at = (kind) => history.filter((item) => item.kind === kind && item.interval);
  mark(cells, at("failed"), "failed", isBehind);
  mark(cells, at("running"), "running", () => true);
  return cells;
}

function mark(cells, items, state, fits) {
  for (const { interval } of items) {
    const [start, end] = [new Date(interval.start).toISOString(), new Date(interval.end).toISOString()];
    cells.filter((cell) => cell.start < end && cell.end > start && fits(cell.state)).forEach((cell) => (cell.state = state));
  }
}

function next(start, unit) {
  const found = new Date(start);
  if (unit === "hour") found.setUTCHours(start.getUTCHours() + 1);
  else if (unit === "day") found.setUTCDate(start.getUTCDate() + 1);
  else if (unit === "month") found.setUTCMonth(start.getUTCMonth() + 1);
  else found.setUTCFullYear(start.getUTCFullYear() + 1);
  return found;
}

// As a calendar shows it, below its group: the day of a month, the hour of a day, the month of a year.
function numberOf({ start }, unit) {
  const how = { hour: { hour: "2-digit", hourCycle: "h23" }, day: { day: "numeric" }, month: { month: "short" } }[unit] ?? { year: "2-digit" };
  return h("span", null, new Intl.DateTimeFormat("en-GB", { timeZone: "UTC", ...how }).format(new Date(start)));
}

function sign(state) {
  return SIGNS[state] && h("span", { class: "sign" }, SIGNS[state]);
}

function groupOf({ start }, unit) {
  const how = { hour: { day: "numeric", month: "short", year: "numeric" }, day: { month: "short", year: "numeric" }, month: { year: "numeric" } }[unit];
  return how ? new Intl.DateTimeFormat("en-GB", { timeZone: "UTC", ...how }).format(new Date(start)) : "";
}
