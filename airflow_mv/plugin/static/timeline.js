// SPDX-License-Identifier: Apache-2.0
// The last refreshes as bars, the newest at the right: as high as they took long, coloured by what they were.

import { h, svg } from "./dom.js";
import { ago, count, duration, stretch } from "./format.js";

const [BAR, GAP, HEIGHT, LOW, MARK] = [12, 4, 64, 6, 9];
const MOST = 60;

export function drawTimeline(history) {
  const shown = history.slice(0, MOST).reverse();
  const longest = Math.max(1, ...shown.map((item) => item.seconds ?? 0));
  const width = shown.length * (BAR + GAP);
  const bars = shown.map((item, place) => {
    const height = LOW + (HEIGHT - LOW) * Math.sqrt((item.seconds ?? 0) / longest);
    const kind = item.kind === "refreshed" ? `mode-${item.mode ?? "unknown"}` : item.kind;
    const [x, y] = [place * (BAR + GAP), MARK + HEIGHT - height];
    return svg(
      "g",
      null,
      svg("title", null, describe(item)),
      svg("rect", { class: `bar ${kind}`, x, y, width: BAR, height, rx: 2 }),
      item.fallback && svg("circle", { class: "unexpected", cx: x + BAR / 2, cy: y - 5, r: 3 }),
    );
  });
  const label = `${shown.length} refreshes, oldest first`;
  return h(
    "div",
    { class: "timeline" },
    svg("svg", { width, height: MARK + HEIGHT, viewBox: `0 0 ${width} ${MARK + HEIGHT}`, role: "img", "aria-label": label }, bars),
    h("div", { class: "ends quiet" }, h("span", null, ago(shown[0]?.at)), shown.length > 1 && h("span", null, ago(shown.at(-1).at))),
  );
}

function describe(item) {
  const what = item.kind === "refreshed" ? (item.mode ?? "refreshed") : (item.state ?? item.kind);
  const rows = item.rows_written === null || item.rows_written === undefined ? "" : `${count(item.rows_written)} rows`;
  const why = item.fallback ? `Against expectation: ${item.fallback}` : item.reasons?.[0]?.message;
  return [
    [what, item.interval && stretch(item.interval)].filter(Boolean).join(" "),
    item.at && new Date(item.at).toLocaleString(),
    rows,
    duration(item.seconds),
    item.checks && `checks ${item.checks.passed}/${item.checks.of} passed`,
    item.by,
    why,
  ]
    .filter(Boolean)
    .join("\n");
}
