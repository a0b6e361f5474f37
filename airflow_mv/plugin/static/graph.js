// SPDX-License-Identifier: Apache-2.0
// What is made from what, from left to right: layers by the longest way from a base table, lines sorted to cross little.

import { h, LABELS, svg } from "./dom.js";

const [WIDTH, HEIGHT, COLUMN_GAP, ROW_GAP, MARGIN] = [200, 44, 70, 12, 12];
const SWEEPS = 6;
const LONGEST = 26;

export function drawGraph({ nodes, edges, left_out: leftOut }, current, linkTo) {
  const places = layOut(nodes, edges);
  const all = [...places.values()];
  const width = Math.max(...all.map((place) => place.x)) + WIDTH + MARGIN;
  const height = Math.max(...all.map((place) => place.y)) + HEIGHT + MARGIN;
  const picture = svg(
    "svg",
    { class: "graph", width, height, viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": "Views and tables" },
    edges.map(([from, to]) => svg("path", { class: "edge", d: curve(places.get(from), places.get(to)) })),
    nodes.map((node) => box(node, places.get(node.id), node.id === current, linkTo)),
  );
  const note = leftOut ? h("p", { class: "quiet" }, `${leftOut} more are left out: narrow the filter, or open a view.`) : null;
  return h("div", null, h("div", { class: "wide" }, picture), note);
}

function curve(from, to) {
  const [x1, y1, x2, y2] = [from.x + WIDTH, from.y + HEIGHT / 2, to.x, to.y + HEIGHT / 2];
  const bend = Math.max(30, (x2 - x1) / 2);
  return `M${x1},${y1} C${x1 + bend},${y1} ${x2 - bend},${y2} ${x2},${y2}`;
}

function box(node, { x, y }, isCurrent, linkTo) {
  const state = node.kind === "view" ? node.state : "table";
  const told = node.kind === "view" ? `${LABELS[state] ?? state}${node.running ? " · running" : ""}` : "table";
  const text = node.name.length > LONGEST ? `${node.name.slice(0, LONGEST - 1)}…` : node.name;
  const drawn = svg(
    "g",
    { class: `node ${state}${isCurrent ? " current" : ""}${node.running ? " at-work" : ""}`, transform: `translate(${x},${y})` },
    svg("title", null, `${node.id}: ${told}`),
    svg("rect", { width: WIDTH, height: HEIGHT, rx: node.kind === "view" ? 8 : 2 }),
    svg("circle", { cx: 14, cy: 16, r: 4.5 }),
    svg("text", { x: 26, y: 20 }, text),
    svg("text", { class: "told", x: 26, y: 36 }, told),
  );
  return node.kind === "view" && !isCurrent ? svg("a", { href: linkTo(node.id), "data-key": `node ${node.id}` }, drawn) : drawn;
}

function layOut(nodes, edges) {
  const before = neighbours(nodes, edges.map(([from, to]) => [to, from]));
  const after = neighbours(nodes, edges);
  const layers = [];
  for (const [id, depth] of depths(nodes, before)) (layers[depth] ??= []).push(id);
  for (let sweep = 0; sweep < SWEEPS; sweep += 1) {
    const forth = sweep % 2 === 0;
    const order = forth ? layers.slice(1) : layers.slice(0, -1).reverse();
    order.forEach((layer) => arrange(layer, ranks(layers), forth ? before : after));
  }
  const tallest = Math.max(...layers.map((layer) => layer.length));
  const places = new Map();
  layers.forEach((layer, depth) => {
    const top = MARGIN + ((tallest - layer.length) * (HEIGHT + ROW_GAP)) / 2;
    layer.forEach((id, row) => {
      places.set(id, { x: MARGIN + depth * (WIDTH + COLUMN_GAP), y: top + row * (HEIGHT + ROW_GAP) });
    });
  });
  return places;
}

function neighbours(nodes, edges) {
  const found = new Map(nodes.map((node) => [node.id, []]));
  edges.forEach(([from, to]) => found.get(from).push(to));
  return found;
}

function depths(nodes, before) {
  const found = new Map();
  const depth = (id, path) => {
    if (found.has(id)) return found.get(id);
    if (path.has(id)) return 0; // broken metadata can name a circle
    const way = new Set(path).add(id);
    const deepest = Math.max(-1, ...before.get(id).map((other) => depth(other, way)));
    found.set(id, deepest + 1);
    return deepest + 1;
  };
  nodes.forEach((node) => depth(node.id, new Set()));
  return found;
}

function ranks(layers) {
  return new Map(layers.flatMap((layer) => layer.map((id, row) => [id, row - layer.length / 2])));
}

function arrange(layer, rank, beside) {
  const middle = new Map(
    layer.map((id) => {
      const others = beside.get(id).map((other) => rank.get(other));
      return [id, others.length ? others.reduce((sum, value) => sum + value, 0) / others.length : rank.get(id)];
    }),
  );
  layer.sort((one, other) => middle.get(one) - middle.get(other));
}
