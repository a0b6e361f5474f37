// SPDX-License-Identifier: Apache-2.0
// Numbers and times as people read them; the exact ones are a hover away.

import { h } from "./dom.js";

const UNITS = [
  [86400, "d"],
  [3600, "h"],
  [60, "min"],
  [1, "s"],
];

export function count(value) {
  return value === null || value === undefined ? "" : Number(value).toLocaleString("en");
}

// 93784 -> "1 d 2 h"; below ten seconds with a decimal.
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "";
  if (seconds < 10) return `${Number(seconds).toFixed(1)} s`;
  const parts = [];
  let rest = Math.round(seconds);
  for (const [size, unit] of UNITS) {
    const amount = Math.floor(rest / size);
    rest -= amount * size;
    if (amount > 0) parts.push(`${amount} ${unit}`);
    else if (parts.length) break;
    if (parts.length === 2) break;
  }
  return parts.join(" ");
}

export function bytes(value) {
  if (value === null || value === undefined) return "";
  const names = ["B", "kB", "MB", "GB", "TB", "PB"];
  let place = 0;
  let number = Number(value);
  while (number >= 1000 && place < names.length - 1) {
    number /= 1000;
    place += 1;
  }
  return `${number < 10 && place ? number.toFixed(1) : Math.round(number)} ${names[place]}`;
}

export function ago(iso) {
  if (!iso) return "";
  const then = new Date(iso);
  const seconds = (Date.now() - then.getTime()) / 1000;
  const text = seconds < 5 ? "just now" : `${duration(Math.max(10, seconds)).split(" ").slice(0, 2).join(" ")} ago`;
  return h("time", { datetime: iso, title: exact(then) }, text);
}

function exact(moment) {
  return `${moment.toLocaleString()}\n${moment.toISOString()}`;
}

// A lag of which only the end is known is "at least".
export function lag({ seconds, since, exact: isExact }) {
  if (seconds === null) return "";
  if (seconds === 0) return h("span", { class: "quiet" }, "none");
  const title = since ? `since ${exact(new Date(since))}` : "";
  return h("span", { title }, `${isExact ? "" : "≥ "}${duration(Math.max(1, seconds))}`);
}

// A snapshot id is long: its end tells it apart.
export function snapshot(identity) {
  if (identity === null || identity === undefined) return h("span", { class: "quiet" }, "none");
  const text = String(identity);
  return h("code", { title: text }, text.length > 8 ? `…${text.slice(-6)}` : text);
}
