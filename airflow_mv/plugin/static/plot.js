// SPDX-License-Identifier: Apache-2.0
// The last refreshes as bars, the newest at the right: how long they took, what they wrote, how large the view was.

import { h, svg } from "./dom.js";
import { ago, bytes, count, duration, stretch } from "./format.js";

const [BAR, GAP, HEIGHT, TOP, LEFT, LOW] = [14, 4, 110, 16, 70, 3];
const MOST = 60;
const MEASURES = {
  seconds: { name: "Duration", of: (item) => item.seconds, text: duration },
  rows: { name: "Rows written", of: (item) => item.rows_written, text: count },
  bytes: { name: "Size of the view", of: (item) => item.bytes, text: bytes },
};
const KINDS = [
  ["full", "full"],
  ["part", "incremental, or of an interval"],
  ["none", "nothing computed"],
  ["failed", "failed"],
  ["running", "running or waiting"],
];

// `kept` remembers what the reader has chosen while the page reads again.
export function drawPlot(history, kept) {
  const shown = history.slice(0, MOST).reverse();
  const there = Object.keys(MEASURES).filter((name) => shown.some((item) => MEASURES[name].of(item)));
  const place = h("div", { class: "timeline" });
  const told = h("p", { class: "quiet told-bar", role: "status" });
  const draw = () => {
    const chosen = there.includes(kept.measure) ? kept.measure : (there[0] ?? "seconds");
    const choose = (name) => {
      kept.measure = name;
      draw();
      place.querySelector(`[data-key="measure ${name}"]`)?.focus();
    };
    const switches = there.map((name) =>
      h("button", { type: "button", class: "chip", "aria-pressed": name === chosen ? "true" : "false", "data-key": `measure ${name}`,
        onclick: () => choose(name) }, MEASURES[name].name));
    place.replaceChildren(
      h("div", { class: "chips", role: "group", "aria-label": "What the bars show" }, switches),
      h("div", { class: "wide" }, picture(shown, MEASURES[chosen], told)),
      legend(shown),
      told,
    );
  };
  draw();
  return place;
}

function picture(shown, measure, told) {
  const values = shown.map((item) => measure.of(item) ?? 0);
  const most = Math.max(1e-9, ...values);
  const width = LEFT + shown.length * (BAR + GAP) + 8;
  const y = (value) => TOP + HEIGHT * (1 - value / most);
  const ticks = [0, most / 2, most].map((value) => [
    svg("line", { class: "grid", x1: LEFT - 4, x2: width, y1: y(value), y2: y(value) }),
    svg("text", { x: LEFT - 8, y: y(value) + 4, "text-anchor": "end" }, measure.text(measure.text === count ? Math.round(value) : value)),
  ]);
  const tell = (item) => (told.textContent = describe(item).join(" · "));
  const bars = shown.map((item, index) => bar(item, index, values[index], { most, tell, last: index === shown.length - 1 }));
  const label = `${measure.name} of ${shown.length} refreshes, oldest first. Arrow keys go from one to the next.`;
  const end = TOP + HEIGHT;
  const drawn = svg(
    "svg",
    { class: "plot", width, height: end + 10, viewBox: `0 0 ${width} ${end + 10}`, role: "group", "aria-label": label, onkeydown: move },
    ticks,
    bars,
  );
  return h("div", { class: "framed" }, drawn,
    h("div", { class: "ends quiet" }, h("span", null, ago(shown[0]?.at)), shown.length > 1 && h("span", null, ago(shown.at(-1).at))));
}

function bar(item, index, value, { most, tell, last }) {
  const height = Math.max(LOW, (HEIGHT * value) / most);
  const [x, y] = [LEFT + index * (BAR + GAP), TOP + HEIGHT - height];
  return svg(
    "g",
    { class: "point", role: "img", tabindex: last ? 0 : -1, "aria-label": describe(item).join(", "), onfocus: () => tell(item), onmouseenter: () => tell(item), onclick: () => tell(item) },
    svg("title", null, describe(item).join("\n")),
    svg("rect", { class: "reach", x: x - GAP / 2, y: TOP, width: BAR + GAP, height: HEIGHT }),
    svg("rect", { class: `bar kind-${kindOf(item)}`, x, y, width: BAR, height, rx: 2 }),
    item.fallback && svg("circle", { class: "unexpected", cx: x + BAR / 2, cy: y - 6, r: 3 }),
  );
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

function legend(shown) {
  const there = KINDS.filter(([kind]) => shown.some((item) => kindOf(item) === kind));
  const swatch = (kind) => svg("svg", { width: 12, height: 12, "aria-hidden": "true" }, svg("rect", { class: `bar kind-${kind}`, x: 1, y: 1, width: 10, height: 10, rx: 2 }));
  return h("p", { class: "legend" }, there.map(([kind, name]) => h("span", null, swatch(kind), " ", name)));
}

function kindOf(item) {
  if (item.kind !== "refreshed") return item.kind;
  if (["append", "merge", "replace-keys", "replace-interval"].includes(item.mode)) return "part";
  return item.mode === "full" ? "full" : "none";
}

function describe(item) {
  const what = item.kind === "refreshed" ? (item.mode ?? "refreshed") : (item.state ?? item.kind);
  const isKnown = item.rows_written !== null && item.rows_written !== undefined;
  const why = item.fallback ? `Against expectation: ${item.fallback}` : item.reasons?.[0]?.message;
  return [
    [what, item.interval && stretch(item.interval)].filter(Boolean).join(" "),
    item.at && new Date(item.at).toLocaleString(),
    isKnown && `${count(item.rows_written)} rows written`,
    item.bytes && `view of ${bytes(item.bytes)}`,
    duration(item.seconds),
    item.checks && `checks ${item.checks.passed}/${item.checks.of} passed`,
    item.by,
    why,
  ].filter(Boolean);
}
