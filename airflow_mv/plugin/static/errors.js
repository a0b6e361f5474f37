// SPDX-License-Identifier: Apache-2.0
// Why a task has failed: the last error in its log, asked of Airflow's own API with the reader's permissions.

import { logOf } from "./api.js";
import { h } from "./dom.js";

const MAX_LENGTH = 600;
const known = new Map();

export function failure(item) {
  const place = h("div", { class: "why" }, h("span", { class: "quiet" }, "reading its log …"));
  const key = [item.dag_id, item.run_id, item.task_id, item.map_index, item.try_number].join("\n");
  if (!known.has(key)) known.set(key, logOf(item).then(errorIn, () => null));
  known.get(key).then((found) => place.replaceChildren(found ?? h("span", { class: "quiet" }, "its log has no error that can be shown; open the run")));
  return place;
}

// Airflow's log is a list of lines; the one of a failed task has the exception.
function errorIn({ content }) {
  const lines = Array.isArray(content) ? content.filter((line) => line && typeof line === "object") : [];
  const failed = lines.findLast((line) => line.error_detail?.length);
  const detail = failed?.error_detail.at(-1) ?? failed?.error_detail[0];
  const text = detail ? `${detail.exc_type}: ${detail.exc_value}` : lines.findLast((line) => line.level === "error")?.event;
  return typeof text === "string" ? text.slice(0, MAX_LENGTH) : null;
}
