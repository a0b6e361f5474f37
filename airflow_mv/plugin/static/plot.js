// SPDX-License-Identifier: Apache-2.0
// The last refreshes over time, the newest at the right: the lag that they ended, how long they took, what they wrote, how
// large the view was.

import { h, show, svg } from "./dom.js";
import { bytes, count, duration, stretch } from "./format.js";

const [SLOT, HEIGHT, TOP, LEFT, RIGHT, BOTTOM, LOW] = [30, 130, 16, 74, 12, 24, 3];
const [NARROWEST, WIDEST, LABEL, TICKS] = [280, 900, 72, 4];
const MAX_SHOWN = 60;
const DAY = 86400;
const OF_TIME = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, ...[1, 2, 5, 10, 20, 50, 100, 200].map((days) => days * DAY)];
const OF_NUMBERS = Array.from({ length: 48 }, (_, place) => [1, 2, 5][place % 3] * 10 ** Math.floor(place / 3));
const MEASURES = {
  lag: { name: "Lag", of: (item) => item.lag, text: duration, steps: OF_TIME, about: "the lag that each refresh has ended" },
  seconds: { name: "Duration", of: (item) => item.seconds, text: duration, steps: OF_TIME },
  written: { name: "Rows written", of: (item) => item.rows_written, text: count, steps: OF_NUMBERS },
  rows: { name: "Rows", of: (item) => item.rows, text: count, steps: OF_NUMBERS, about: "the size of the view after each refresh" },
  bytes: { name: "Bytes", of: (item) => item.bytes, text: bytes, steps: OF_NUMBERS, about: "the size of the view after each refresh" },
};
const KINDS = [
  ["full", "full"],
  ["part", "incremental, or of an interval"],
  ["none", "nothing computed"],
  ["failed", "failed"],
  ["running", "running or waiting"],
];

// `kept` remembers what the reader has chosen while the page reads again; `facts` has the lag now, and the allowed one.
export function drawPlot(facts, kept) {
  const shown = facts.history.slice(0, MAX_SHOWN).reverse();
  const there = Object.keys(MEASURES).filter((name) => shown.some((item) => isKnown(MEASURES[name].of(item))));
  const place = h("div", { class: "timeline" });
  const told = h("p", { class: "quiet told-bar", role: "status" });
  const draw = () => {
    const chosen = there.includes(kept.measure) ? kept.measure : (there[0] ?? "seconds");
    const choose = (name) => {
      kept.measure = name;
      draw();
    };
    const switches = there.map((name) =>
      h("button", { type: "button", class: "chip", "aria-pressed": name === chosen ? "true" : "false", "data-key": `measure ${name}`,
        onclick: () => choose(name) }, MEASURES[name].name));
    const tell = (item) => {
      kept.point = keyOf(item);
      told.textContent = describe(item).join(" · ");
    };
    const asked = { measure: MEASURES[chosen], tell, width: widthOf(place), current: shown.find((item) => keyOf(item) === kept.point) ?? shown.at(-1) };
    const drawn = chosen === "lag" ? lagPicture(shown, facts, asked) : barPicture(shown, asked);
    show(place, h("div", { class: "chips", role: "group", "aria-label": "What is plotted" }, switches), drawn, told);
  };
  draw();
  const before = shown.find((item) => keyOf(item) === kept.point);
  if (before) told.textContent = describe(before).join(" · ");
  const seen = new ResizeObserver(() => widthOf(place) !== place.dataset.width && draw());
  seen.observe(place);
  return place;
}

function widthOf(place) {
  const width = Math.min(WIDEST, Math.max(NARROWEST, place.clientWidth || WIDEST));
  place.dataset.width = width;
  return width;
}

// -- bars ------------------------------------------------------------------------------------------

function barPicture(shown, { measure, tell, width, current }) {
  const scale = scaleOf(Math.max(...shown.map((item) => measure.of(item) ?? 0)), measure);
  const slot = Math.min(SLOT, (width - LEFT - RIGHT) / shown.length);
  const bars = shown.map((item, index) => {
    const [left, value] = [LEFT + index * slot, measure.of(item) ?? 0];
    const height = Math.max(LOW, TOP + HEIGHT - scale.y(value));
    const [x, y, thick] = [left + slot * 0.12, TOP + HEIGHT - height, slot * 0.76];
    return point(item, item === current, tell,
      svg("rect", { class: "reach", x: left, y: TOP, width: slot, height: HEIGHT }),
      svg("rect", { class: `bar kind-${kindOf(item)}`, x, y, width: thick, height, rx: Math.min(2, thick / 3) }),
      item.fallback && svg("circle", { class: "unexpected", cx: x + thick / 2, cy: y - 6, r: 3 }));
  });
  const moments = shown.map((item, index) => [LEFT + (index + 0.5) * slot, new Date(item.at)]);
  const label = `${measure.name} of ${shown.length} refreshes, oldest first. Arrow keys go from one to the next.`;
  return [frame(label, width, scale, axis(moments), bars), about(measure), legend(shown, measure)];
}

// -- lag -------------------------------------------------------------------------------------------

// Between two refreshes the lag grows with the time since the first commit that the earlier one lacks, or is none.
function lagPicture(shown, facts, { measure, tell, width, current }) {
  const known = shown.filter((item) => isKnown(item.lag) && item.at);
  const seconds = (moment) => new Date(moment).getTime() / 1000;
  const now = Date.now() / 1000;
  const ends = known.map((item) => ({ item, at: seconds(item.at), lag: item.lag }));
  const behind = facts.lag.seconds ?? 0;
  const first = Math.min(...ends.map((end) => end.at - end.lag), now - 1);
  const allowed = facts.max_staleness_seconds;
  const scale = scaleOf(Math.max(allowed ?? 0, behind, ...ends.map((end) => end.lag)), measure);
  const x = (at) => LEFT + ((width - LEFT - RIGHT) * (at - first)) / (now - first);
  const places = [...ends, { at: now, lag: behind }].flatMap(({ at, lag }) => [[at - lag, 0], [at, lag], [at, 0]]).slice(0, -1);
  const reached = known.includes(current) ? current : known.at(-1);
  const points = ends.map((end) => {
    const late = isKnown(allowed) && end.lag > allowed;
    return point(end.item, end.item === reached, tell,
      svg("circle", { class: "reach", cx: x(end.at), cy: scale.y(end.lag), r: 9 }),
      late ? svg("path", { class: "late", d: cross(x(end.at), scale.y(end.lag)) }) : svg("circle", { class: "end", cx: x(end.at), cy: scale.y(end.lag), r: 3.5 }));
  });
  const limit = isKnown(allowed) && [
    svg("line", { class: "limit", x1: LEFT, x2: width - RIGHT, y1: scale.y(allowed), y2: scale.y(allowed) }),
    svg("text", { class: "limit", x: width - RIGHT, y: scale.y(allowed) - 5, "text-anchor": "end" }, `max staleness ${facts.max_staleness}`),
  ];
  const label = `Lag over time; ${ends.length} refreshes, oldest first. Arrow keys go from one to the next.`;
  const times = Array.from({ length: 13 }, (_, step) => first + ((now - first) * step) / 12);
  const drawn = frame(label, width, scale, axis(times.map((at) => [x(at), new Date(at * 1000)])),
    svg("path", { class: "lag", d: saw(places, x, scale.y) }), limit, points);
  const within = ends.filter((end) => end.lag <= allowed).length;
  const kept = isKnown(allowed) ? `within max staleness at ${within} of ${ends.length} refreshes` : "the view has no max staleness";
  return [drawn, about(measure), h("p", { class: "legend" },
    h("span", null, swatch("end"), " a refresh"), isKnown(allowed) && h("span", null, swatch("late"), " above max staleness"), h("span", null, kept))];
}

function saw(places, x, y) {
  let [path, last] = ["", null];
  for (const [at, lag] of places) {
    // A commit that came while an earlier refresh ran is behind since before that one's end.
    const to = last !== null && at < last ? [last, last - at] : [at, lag];
    path += `${path ? "L" : "M"}${x(to[0]).toFixed(1)},${y(to[1]).toFixed(1)}`;
    last = to[0];
  }
  return path;
}

function cross(x, y) {
  return `M${x - 4},${y - 4}l8,8m0,-8l-8,8`;
}

// -- what all have ---------------------------------------------------------------------------------

function scaleOf(most, { text, steps }) {
  const step = steps.find((size) => most / size <= TICKS) ?? most / TICKS;
  const top = Math.max(step, Math.ceil(most / step) * step);
  const y = (value) => TOP + HEIGHT * (1 - value / top);
  const ticks = Array.from({ length: Math.round(top / step) + 1 }, (_, index) => index * step);
  return { y, ticks: ticks.map((value) => [y(value), value ? text(value) : "0"]) };
}

function frame(label, width, scale, times, ...content) {
  const [height, low] = [TOP + HEIGHT + BOTTOM, TOP + HEIGHT];
  const stripes = svg("pattern", { id: "stripes", width: 5, height: 5, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
    svg("rect", { class: "stripe-back", width: 5, height: 5 }), svg("rect", { class: "stripe", width: 2.5, height: 5 }));
  return svg(
    "svg",
    { class: "plot", width, height, viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": label, onkeydown: move },
    svg("defs", null, stripes),
    scale.ticks.map(([y, text]) => [
      svg("line", { class: "grid", x1: LEFT - 4, x2: width - RIGHT, y1: y, y2: y }),
      svg("text", { x: LEFT - 8, y: y + 4, "text-anchor": "end" }, text),
    ]),
    times.map(([x, text]) => [
      svg("line", { class: "tick", x1: x, x2: x, y1: low, y2: low + 4 }),
      svg("text", { x, y: low + 17, "text-anchor": "middle" }, text),
    ]),
    content,
  );
}

// As many times as there is room for: the day, or the time of day where all are of two days.
function axis(moments) {
  const span = (moments.at(-1)[1] - moments[0][1]) / 1000;
  const how = span < 2 * DAY ? { hour: "2-digit", minute: "2-digit", hourCycle: "h23" } : { day: "numeric", month: "short" };
  const found = [];
  let free = LEFT + LABEL / 4;
  for (const [x, moment] of moments) {
    const text = new Intl.DateTimeFormat("en-GB", how).format(moment);
    if (x < free || text === found.at(-1)?.[1]) continue;
    found.push([x, text]);
    free = x + LABEL;
  }
  return found;
}

// The keyboard reaches one of them; the arrow keys reach the others.
function point(item, isReached, tell, ...content) {
  return svg("g", { class: "point", role: "img", tabindex: isReached ? 0 : -1, "data-key": `point ${keyOf(item)}`,
    "aria-label": describe(item).join(", "), onfocus: () => tell(item), onmouseenter: () => tell(item), onclick: () => tell(item) }, content);
}

function move(event) {
  const step = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
  if (step === undefined) return;
  event.preventDefault();
  const all = [...event.currentTarget.querySelectorAll(".point")];
  const at = all.indexOf(document.activeElement);
  const to = all[Math.min(all.length - 1, Math.max(0, at + step))];
  all.forEach((item) => item.setAttribute("tabindex", item === to ? 0 : -1));
  to?.focus();
}

function about(measure) {
  return h("p", { class: "quiet axis" }, `${measure.name}${measure.about ? `: ${measure.about}` : ""}, over the time of publication`);
}

// How often there was each kind of refresh, and the median of what is plotted: so full ones compare with incremental ones.
function legend(shown, measure) {
  const lines = KINDS.map(([kind, name]) => {
    const values = shown.filter((item) => kindOf(item) === kind).map((item) => measure.of(item));
    const known = values.filter(isKnown).sort((one, other) => one - other);
    const median = known.length > 1 ? `, median ${measure.text(known[Math.floor(known.length / 2)])}` : "";
    return values.length ? h("span", null, swatch(`bar kind-${kind}`), ` ${name}: ${count(values.length)}${median}`) : null;
  });
  const isUnexpected = shown.some((item) => item.fallback);
  return h("p", { class: "legend" }, lines, isUnexpected && h("span", null, swatch("unexpected"), " unexpected full refresh"));
}

function swatch(kind) {
  const shape = { late: ["path", { d: cross(6, 6) }], end: ["circle", { cx: 6, cy: 6, r: 3.5 }], unexpected: ["circle", { cx: 6, cy: 6, r: 3 }] }[kind];
  const [tag, place] = shape ?? ["rect", { x: 1, y: 1, width: 10, height: 10, rx: 2 }];
  return svg("svg", { class: "swatch", width: 12, height: 12, "aria-hidden": "true" }, svg(tag, { class: kind, ...place }));
}

// The page reads again while it is open: this tells which one the reader was at.
function keyOf(item) {
  return [item.kind, item.refresh_id ?? item.run_id, item.at].join(" ");
}

function kindOf(item) {
  if (item.kind !== "refreshed") return item.kind;
  if (["append", "merge", "replace-keys", "replace-interval"].includes(item.mode)) return "part";
  return item.mode === "full" ? "full" : "none";
}

function isKnown(value) {
  return value !== null && value !== undefined;
}

function describe(item) {
  const what = item.kind === "refreshed" ? (item.mode ?? "refreshed") : (item.state ?? item.kind);
  const why = item.fallback ? `Unexpected full refresh: ${item.fallback}` : item.reasons?.[0]?.message;
  return [
    [what, item.interval && stretch(item.interval)].filter(Boolean).join(" "),
    item.at && new Date(item.at).toLocaleString(),
    isKnown(item.lag) && `ended a lag of ${duration(item.lag)}`,
    isKnown(item.rows_written) && `${count(item.rows_written)} rows written`,
    isKnown(item.rows) && `view of ${count(item.rows)} rows`,
    item.bytes && `${bytes(item.bytes)}`,
    isKnown(item.seconds) && `took ${duration(item.seconds)}`,
    item.checks && `checks ${item.checks.passed}/${item.checks.of} passed`,
    item.by,
    why,
  ].filter(Boolean);
}
