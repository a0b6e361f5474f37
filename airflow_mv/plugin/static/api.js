// SPDX-License-Identifier: Apache-2.0
// Questions to this page's application. What changes something, a run or a backfill, is asked of Airflow's own API.

export const AIRFLOW = new URL("..", document.baseURI);
const HERE = new URL(".", document.baseURI);
const SECONDS = 40;

export class Problem extends Error {
  constructor(message, advice, status) {
    super(message);
    this.advice = advice;
    this.status = status;
  }
}

export async function ask(path, parameters = {}) {
  const url = new URL(`api/${path}`, HERE);
  for (const [name, value] of Object.entries(parameters)) {
    for (const item of Array.isArray(value) ? value : [value]) {
      if (item !== null && item !== undefined && item !== "") url.searchParams.append(name, item);
    }
  }
  return answer(await send(url, {}));
}

export function run(dagId, conf) {
  const body = { logical_date: null, conf, note: "Started from the materialized views page." };
  return post(`dags/${encodeURIComponent(dagId)}/dagRuns`, body);
}

// A backfill, or what it would create.
export function backfill(body, { dry }) {
  return post(dry ? "backfills/dry_run" : "backfills", body);
}

export async function logOf({ dag_id, run_id, task_id, map_index, try_number }) {
  const path = ["dags", dag_id, "dagRuns", run_id, "taskInstances", task_id, "logs", String(try_number)];
  const url = new URL(`api/v2/${path.map(encodeURIComponent).join("/")}`, AIRFLOW);
  url.searchParams.set("full_content", "true");
  url.searchParams.set("map_index", String(map_index ?? -1));
  return answer(await send(url, {}));
}

async function post(path, body) {
  const headers = { "Content-Type": "application/json" };
  return answer(await send(new URL(`api/v2/${path}`, AIRFLOW), { method: "POST", headers, body: JSON.stringify(body) }));
}

async function send(url, options) {
  try {
    return await fetch(url, {
      credentials: "same-origin",
      headers: { Accept: "application/json" },
      signal: AbortSignal.timeout(SECONDS * 1000),
      ...options,
    });
  } catch (error) {
    const late = error.name === "TimeoutError";
    throw new Problem(
      late ? `Airflow has not answered within ${SECONDS} s.` : "Airflow cannot be reached.",
      "The page retries automatically.",
      0,
    );
  }
}

async function answer(response) {
  const document = await response.json().catch(() => null);
  if (response.ok && document) return document;
  throw new Problem(
    document?.message ?? said(document?.detail) ?? `Airflow answered with ${response.status}.`,
    document?.advice ?? (response.status === 401 ? "Log in to Airflow again." : ""),
    response.status,
  );
}

function said(detail) {
  if (detail === undefined) return undefined;
  if (typeof detail === "string") return detail;
  return Array.isArray(detail) ? detail.map((item) => item.msg ?? "").join("; ") : JSON.stringify(detail);
}
