// SPDX-License-Identifier: Apache-2.0
// Starts a run of a DAG, with the parameters that the run needs.

import { airflowLink, runPath } from "./address.js";
import { run } from "./api.js";
import { h, show } from "./dom.js";

const DAY_MS = 86400000;
const BY_TEMPLATE = "The parameters of a run decide what it refreshes: use Trigger on the DAG's own page.";

export function actions({ refreshers }, done) {
  const several = refreshers.dags.length > 1;
  const byForm = (dag) => Number(dag.asks === "form");
  const dags = [...refreshers.dags].sort((one, other) => byForm(one) - byForm(other));
  const found = dags.map((dag) => {
    // Who may not run a DAG is offered no button, and is told what they would need.
    if (!dag.allowed) return h("span", { class: "action quiet" }, h("span", null, "Refreshed by DAG ", toDag(dag, dag.name), `. ${dag.reason}`));
    const where = h("span", { class: "quiet" }, "by DAG ", toDag(dag, dag.name));
    const asksForm = dag.asks === "form" && dag.may_run;
    const told = asksForm ? h("span", { class: "quiet" }, BY_TEMPLATE) : dag.reason && h("span", { class: "why" }, dag.reason);
    return h("span", { class: "action" }, asksForm ? null : button(dag, several, done), where, told);
  });
  if (found.length) return h("div", { class: "actions" }, found);
  const why = refreshers.hidden ? "It is refreshed by a DAG that you may not read." : "No DAG of this Airflow refreshes this view.";
  return h("p", { class: "quiet" }, why);
}

function button(dag, several, done) {
  const label = several ? `Refresh now: ${dag.name}` : "Refresh now";
  const attributes = { type: "button", class: "primary", disabled: !dag.may_run, "data-key": `run ${dag.dag_id}` };
  return h("button", { ...attributes, onclick: () => confirmRun(dag, done) }, label);
}

export function toDag(dag, ...children) {
  return airflowLink(`dags/${encodeURIComponent(dag.dag_id)}`, ...children);
}

function confirmRun(dag, done) {
  const asked = dag.asks === "interval" ? askInterval(dag) : null;
  openDialog({
    title: `Run DAG ${dag.name}?`,
    label: "Refresh now",
    body: [h("p", null, `All of it runs now; ${tasksOf(dag)}. ${asked ? "" : "A fresh view costs only a read of its metadata."}`), asked?.fields],
    wrong: () => asked?.wrong(),
    start: () => startRun(dag, asked?.conf() ?? {}),
    dag,
    done,
  });
}

// Creates a run; returns what the dialog then shows.
export async function startRun(dag, conf) {
  const made = await run(dag.dag_id, conf);
  return ["The run has been created", airflowLink(runPath({ dag_id: dag.dag_id, run_id: made.dag_run_id }), made.dag_run_id)];
}

// A dialog that says what its button does, and after that what came of it.
export function openDialog({ title, label, body, wrong, start, dag, done }) {
  const told = h("p", { class: "why", role: "status" });
  const button = h("button", { type: "button", class: "primary" }, "Run it");
  const dialog = h(
    "dialog",
    { onclose: () => dialog.remove(), "aria-label": label },
    h("h2", null, title),
    body,
    told,
    h("div", { class: "buttons" }, h("button", { type: "button", onclick: () => dialog.close() }, "Cancel"), button),
  );
  button.addEventListener("click", async () => {
    const fault = wrong?.();
    told.textContent = fault ?? "";
    if (fault) return;
    button.disabled = true;
    try {
      const [heading, link] = await start();
      show(dialog, h("h2", null, heading), h("p", null, link),
        h("div", { class: "buttons" }, h("button", { type: "button", onclick: () => dialog.close() }, "Close")));
      done();
    } catch (error) {
      told.replaceChildren(`Airflow refused the request: ${error.message} `, toDag(dag, "To the DAG and its own form"));
      button.disabled = false;
    }
  });
  document.body.append(dialog);
  dialog.showModal();
  return button;
}

export function tasksOf({ tasks }) {
  return tasks.length === 1 ? `its task ${tasks[0]} refreshes this view` : `${tasks.length} of its tasks refresh this view`;
}

// -- an interval -----------------------------------------------------------------------------------

// A manual run has no data interval, so a DAG that refreshes its run's interval needs one: by default the day before.
function askInterval({ params, zone: wanted }) {
  const zone = known(wanted);
  const today = clock(Date.now(), zone).slice(0, 10);
  const before = new Date(Date.parse(`${today}T00:00Z`) - DAY_MS).toISOString().slice(0, 10);
  const [start, end] = [before, today].map((day) => h("input", { type: "datetime-local", value: `${day}T00:00` }));
  const fields = h(
    "div",
    null,
    h("p", null, "It refreshes only the rows of an interval: which one?"),
    h("div", { class: "fields" }, h("label", null, "From", start), h("label", null, "To, not included", end)),
    h("p", { class: "quiet" }, `Times are those of ${zone}. A column of dates takes whole days.`),
  );
  return {
    fields,
    wrong: () => (start.value && end.value && start.value < end.value ? null : "Give both times; the second must be the later one."),
    conf: () => ({ [params[0]]: moment(start.value, zone), [params[1]]: moment(end.value, zone) }),
  };
}

function known(zone) {
  try {
    return new Intl.DateTimeFormat("en", { timeZone: zone }) && zone;
  } catch {
    return "UTC"; // this browser does not know it
  }
}

// What clocks of a zone show at a moment, as an input has it: 2024-06-01T05:00:00.
function clock(moment, zone) {
  const how = { timeZone: zone, hourCycle: "h23", year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit" };
  const found = Object.fromEntries(new Intl.DateTimeFormat("en", how).formatToParts(moment).map(({ type, value }) => [type, value]));
  return `${found.year.padStart(4, "0")}-${found.month}-${found.day}T${found.hour}:${found.minute}:${found.second}`;
}

// With the zone's own offset and not in UTC: a date is that of the zone in which it is written.
export function moment(value, wanted) {
  const zone = known(wanted);
  const shown = `${value}:00`.slice(0, 19);
  const utc = Date.parse(`${shown}Z`);
  const offsetAt = (time) => Date.parse(`${clock(time, zone)}Z`) - time;
  const minutes = Math.round(offsetAt(utc - offsetAt(utc)) / 60000);
  const two = (number) => String(Math.floor(number)).padStart(2, "0");
  return `${shown}${minutes < 0 ? "-" : "+"}${two(Math.abs(minutes) / 60)}:${two(Math.abs(minutes) % 60)}`;
}
