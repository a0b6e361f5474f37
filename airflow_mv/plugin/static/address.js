// SPDX-License-Identifier: Apache-2.0
// The address is the whole state of the page, so that each of its pictures can be linked to.

import { AIRFLOW } from "./api.js";
import { h } from "./dom.js";

export const GROUPS = ["namespace", "dag"];
const DAYS = 30;
const EMBEDDED = window.parent !== window;

export function current() {
  const found = new URLSearchParams(window.location.search);
  return {
    view: found.get("view"),
    dag: found.get("dag_id"),
    text: found.get("q") ?? "",
    states: found.getAll("state"),
    sort: found.get("sort") ?? "attention",
    descending: found.get("desc") === "true",
    page: Math.max(0, Number.parseInt(found.get("page") ?? "1", 10) - 1) || 0,
    namespace: found.get("namespace"),
    group: GROUPS.includes(found.get("group")) ? found.get("group") : "",
    opened: found.getAll("open"),
    graph: found.get("as") === "graph",
    costs: found.get("as") === "costs",
    days: Number.parseInt(found.get("days") ?? "", 10) || DAYS,
  };
}

export function address({ view, dag, text, states = [], namespace, group, opened = [], sort, descending, page, graph, costs, days = DAYS }) {
  const made = new URLSearchParams();
  const put = (name, value) => value && made.append(name, value);
  put("dag_id", dag);
  put("view", view);
  if (costs) {
    put("as", "costs");
    put("days", days === DAYS ? "" : String(days));
  } else if (!view) {
    put("q", text);
    states.forEach((state) => put("state", state));
    put("namespace", namespace);
    put("group", group);
    opened.forEach((name) => put("open", name));
    put("sort", sort === "attention" ? "" : sort);
    put("desc", descending ? "true" : "");
    put("page", page ? String(page + 1) : "");
    put("as", graph ? "graph" : "");
  }
  const query = made.toString();
  return query ? `?${query}` : "./";
}

// Airflow's frame forbids links to leave it. Its own pages are shown by its router instead, which listens to this event.
export function airflowLink(path, ...children) {
  const url = new URL(path, AIRFLOW);
  function open(event) {
    if (!EMBEDDED || event.button || event.metaKey || event.ctrlKey || event.shiftKey) return;
    event.preventDefault();
    window.parent.history.pushState(null, "", url);
    window.parent.dispatchEvent(new PopStateEvent("popstate", { state: null }));
  }
  return h("a", { href: url.href, target: EMBEDDED ? "_top" : null, onclick: open }, ...children);
}

export function runPath({ dag_id, run_id, task_id, map_index }) {
  const parts = ["dags", dag_id, "runs", run_id];
  if (task_id) parts.push("tasks", task_id);
  if (task_id && map_index !== null && map_index >= 0) parts.push("mapped", String(map_index));
  return parts.map(encodeURIComponent).join("/");
}
