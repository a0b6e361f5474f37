// SPDX-License-Identifier: Apache-2.0
// Numbers and times as people read them; the exact ones are a button away.

import { h, tip } from "./dom.js";

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
  return h("time", { datetime: iso }, text);
}

// The same, with the exact time. Of the buttons on a page each has its own `key`.
export function agoExactly(key, iso) {
  return iso ? tip(key, ago(iso), exact(iso)) : "";
}

export function exact(iso) {
  const moment = new Date(iso);
  return `${moment.toLocaleString()}\n${moment.toISOString()}`;
}

// A lag of which only the end is known is "at least".
export function lag({ seconds, exact: isExact }) {
  if (seconds === null) return "";
  if (seconds === 0) return h("span", { class: "quiet" }, "none");
  return `${isExact ? "" : "≥ "}${duration(Math.max(1, seconds))}`;
}

// A snapshot id is long: its end tells it apart.
export function snapshot(key, identity) {
  if (identity === null || identity === undefined) return h("span", { class: "quiet" }, "none");
  const text = String(identity);
  return text.length > 8 ? tip(key, h("code", null, shortId(text)), text) : h("code", null, text);
}

function shortId(text) {
  return `…\u2060${text.slice(-6)}`; // no line ends between the two
}

export function shortIds(text) {
  return text.replace(/\b\d{12,}\b/g, shortId);
}

// Why a refresh did what it did, where there is little room: what nobody has expected, else all reasons; and in full.
export function whyOf({ reasons = [], fallback }) {
  const all = reasons.map((reason) => reason.message);
  return { text: shortIds(fallback ?? all.join("; ")), whole: all.join("\n") || fallback || "" };
}

// Two lines of a text, and all of it behind a button.
export function clamped(key, text, whole = text) {
  return text ? tip(key, text, whole, { class: "tip clamp" }) : null;
}

const DAY_MS = 86400000;

// Which rows a refresh was for: "1 Jun" for a whole day of UTC, "1 Jun 05:00–06:00" for an hour.
export function stretch({ start, end }) {
  const [from, to] = [new Date(start), new Date(end)];
  const years = new Set([from, to, new Date()].map((moment) => moment.getUTCFullYear()));
  const day = (moment, isFirst) => shown(moment, { day: "numeric", month: "short", year: years.size > 1 && !(isFirst && sameYear) ? "numeric" : undefined });
  const sameYear = from.getUTCFullYear() === new Date(to - 1).getUTCFullYear();
  const month = (moment) => moment.toISOString().slice(0, 7);
  const time = (moment) => shown(moment, { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
  if (!(from % DAY_MS) && !(to % DAY_MS)) {
    const last = new Date(to - DAY_MS);
    if (last <= from) return day(from);
    return month(from) === month(last) ? `${from.getUTCDate()}–${day(last)}` : `${day(from, true)} – ${day(last)}`;
  }
  const same = day(from) === day(to);
  return `${day(from)} ${time(from)}${same ? "–" : ` – ${day(to)} `}${time(to)}`;
}

export function stretchExactly({ column, start, end }) {
  return `Only the rows with ${column} from\n${start} up to\n${end}, the end excluded`;
}

function shown(moment, parts) {
  return new Intl.DateTimeFormat("en-GB", { timeZone: "UTC", ...parts }).format(moment);
}

export function checksText(checks) {
  if (!checks) return "";
  return h("span", { class: checks.passed < checks.of ? "warned" : "quiet" }, `${checks.passed}/${checks.of} passed`);
}

// A full refresh that nobody has asked for must not look like any other.
export function unexpected(key, fallback) {
  return fallback ? tip(`unexpected ${key}`, "unexpected", `Unexpected full refresh: ${fallback}`, { class: "tip mark" }) : null;
}
