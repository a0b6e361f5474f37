// SPDX-License-Identifier: Apache-2.0
// What is made from what, from left to right: layers by the longest way from a base table, lines sorted to cross little. Many
// nodes come as groups, which open. One node can be reached by Tab, the others from there by the arrow keys.

import { h, LABELS, svg } from "./dom.js";
import { count } from "./format.js";

const [WIDTH, HEIGHT, COLUMN_GAP, ROW_GAP, MARGIN] = [210, 48, 80, 14, 14];
const ROWS = 16; // a larger layer has several columns
const SWEEPS = 6;
const MAX_LENGTH = 24;
const [SMALLEST, LARGEST, STEP, TALLEST] = [0.2, 2, 1.25, 640];

// `linkTo` returns the address of a view, `toGroup` the attributes of a link that opens a group or closes it; `kept` remembers
// zoom and place while the page reads again.
export function drawGraph({ nodes, edges, opened = [], left_out: leftOut }, { current = null, linkTo, toGroup, kept = {} }) {
  const graph = { places: layOut(nodes, edges), before: neighbours(nodes, edges.map(([from, to]) => [to, from])), after: neighbours(nodes, edges) };
  const all = [...graph.places.values()];
  const size = { width: Math.max(...all.map((place) => place.x)) + WIDTH + MARGIN, height: Math.max(...all.map((place) => place.y)) + HEIGHT + MARGIN };
  const told = h("p", { class: "quiet told-bar", role: "status" });
  const picture = svg("svg", { class: "graph", viewBox: `0 0 ${size.width} ${size.height}`, role: "group", "aria-label": "Views and tables; arrow keys go from one to the next" },
    svg("defs", null, ["arrow", "arrow-near"].map((id) => svg("marker", { id, viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 8, markerHeight: 8, orient: "auto" }, svg("path", { d: "M0,0L8,4L0,8z" })))),
    edges.map(([from, to]) => svg("path", { class: "edge", d: curve(graph.places.get(from), graph.places.get(to)), "data-from": from, "data-to": to })),
    nodes.map((node) => box(node, graph, { isCurrent: node.id === current, linkTo, toGroup })),
  );
  const boxes = new Map([...picture.querySelectorAll("[data-key]")].map((item) => [idOf(item), item]));
  const near = (event) => showNear(picture, idOf(event.target), told);
  picture.addEventListener("focusin", near);
  picture.addEventListener("mouseover", near);
  picture.addEventListener("keydown", (event) => move(event, graph, boxes));
  roving(boxes, boxes.get(current) ?? boxes.values().next().value);
  const frame = h("div", { class: "graph-frame" }, picture);
  const closers = toGroup && opened.length ? h("div", { class: "chips" }, opened.map((name) => h("a", { class: "chip", "aria-label": `Close group ${name}`, "data-key": `close ${name}`, ...toGroup(name, true) }, name, " ×"))) : null;
  return h("div", null, closers, zoomBar(frame, picture, size, kept), frame, told, legend(nodes, toGroup),
    leftOut ? h("p", { class: "quiet" }, `${count(leftOut)} groups are left out: narrow the search.`) : null);
}

function curve(from, to) {
  const [x1, y1, x2, y2] = [from.x + WIDTH, from.y + HEIGHT / 2, to.x, to.y + HEIGHT / 2];
  const bend = Math.max(30, (x2 - x1) / 2);
  return `M${x1},${y1} C${x1 + bend},${y1} ${x2 - bend},${y2} ${x2 - 1},${y2}`;
}

function box(node, { places, before, after }, { isCurrent, linkTo, toGroup }) {
  const { x, y } = places.get(node.id);
  const state = { view: node.state, table: "table", group: `group ${worstOf(node) ?? ""}` }[node.kind];
  const name = node.rest ? `more of ${node.name}` : node.name;
  const text = name.length > MAX_LENGTH ? `${name.slice(0, MAX_LENGTH - 1)}…` : name;
  const links = [before.get(node.id).length && `reads ${before.get(node.id).length}`, after.get(node.id).length && `read by ${after.get(node.id).length}`].filter(Boolean);
  const whole = [node.kind === "group" ? `${node.rest ? "the rest of group" : "group"} ${node.name}` : node.id, ...states(node), ...links].join(", ");
  const drawn = svg(
    "g",
    { class: `node ${state}${isCurrent ? " current" : ""}${node.running ? " at-work" : ""}`, transform: `translate(${x},${y})` },
    node.kind === "group" && svg("rect", { class: "behind", x: 5, y: 5, width: WIDTH, height: HEIGHT, rx: 4 }),
    svg("rect", { width: WIDTH, height: HEIGHT, rx: node.kind === "table" ? 0 : 4 }),
    svg("circle", { cx: 14, cy: 17, r: 4.5 }),
    svg("text", { x: 26, y: 21 }, text),
    svg("text", { class: "told", x: 26, y: 38 }, short(node)),
  );
  const named = { "aria-label": whole, "data-key": `node ${node.id}` };
  if (node.kind === "group" && toGroup && !node.rest) return svg("a", { ...toGroup(node.name, false), ...named }, drawn);
  if (node.kind === "view" && !isCurrent && node.state !== "not-created") return svg("a", { href: linkTo(node.id), ...named }, drawn);
  drawn.setAttribute("role", "img");
  Object.entries(named).forEach(([name, value]) => drawn.setAttribute(name, value));
  return drawn;
}

function states(node) {
  if (node.kind === "table") return ["table"];
  if (node.kind === "view") return [LABELS[node.state] ?? node.state, node.running && "running"].filter(Boolean);
  const tables = node.tables ? [`${count(node.tables)} ${node.tables === 1 ? "table" : "tables"}`] : [];
  return [...Object.entries(node.counts).map(([state, number]) => `${count(number)} ${LABELS[state] ?? state}`), ...tables];
}

function short(node) {
  if (node.kind !== "group") return states(node).join(" · ");
  const worst = worstOf(node);
  const parts = [node.views && `${count(node.views)} ${node.views === 1 ? "view" : "views"}`, worst && `${count(node.counts[worst])} ${LABELS[worst]}`,
    node.tables && !node.views && `${count(node.tables)} ${node.tables === 1 ? "table" : "tables"}`, node.running && "running"];
  return parts.filter(Boolean).join(" · ");
}

// States come in order of attention.
function worstOf({ counts = {} }) {
  return Object.keys(counts).find((state) => state !== "running");
}

function legend(nodes, toGroup) {
  const parts = ["Arrows point from a table or view to its readers.", nodes.some((node) => node.running) && "A dashed outline: a refresh runs.", toGroup && nodes.some((node) => node.kind === "group") && "Choose a group to open it."];
  return h("p", { class: "quiet" }, parts.filter(Boolean).join(" "));
}

// -- zoom ------------------------------------------------------------------------------------------

// The picture is scaled, and its frame scrolls: so touch, wheel and keys work as anywhere else.
function zoomBar(frame, picture, size, kept) {
  const shown = h("output", null);
  const zoom = (factor) => {
    const before = kept.zoom ?? 1;
    kept.zoom = Math.min(LARGEST, Math.max(SMALLEST, factor));
    const middle = [frame.scrollLeft + frame.clientWidth / 2, frame.scrollTop + frame.clientHeight / 2];
    picture.setAttribute("width", size.width * kept.zoom);
    picture.setAttribute("height", size.height * kept.zoom);
    frame.scrollTo((middle[0] * kept.zoom) / before - frame.clientWidth / 2, (middle[1] * kept.zoom) / before - frame.clientHeight / 2);
    shown.textContent = `${Math.round(kept.zoom * 100)} %`;
  };
  const fit = () => zoom(Math.min(1, frame.clientWidth / size.width, TALLEST / size.height));
  const button = (sign, name, onclick) => h("button", { type: "button", class: "small", "aria-label": name, "data-key": `zoom ${name}`, onclick }, sign);
  frame.addEventListener("scroll", () => Object.assign(kept, { left: frame.scrollLeft, top: frame.scrollTop }));
  frame.addEventListener("wheel", (event) => event.ctrlKey && (event.preventDefault(), zoom(kept.zoom * (event.deltaY < 0 ? 1.1 : 1 / 1.1))), { passive: false });
  frame.addEventListener("keydown", (event) => {
    const to = { "+": kept.zoom * STEP, "-": kept.zoom / STEP, 0: 1 }[event.key];
    if (to && !event.ctrlKey && !event.metaKey) zoom(to);
  });
  drag(frame);
  zoom(kept.zoom ?? 1);
  window.requestAnimationFrame(() => frame.scrollTo(kept.left ?? 0, kept.top ?? 0));
  return h("div", { class: "zoom", role: "group", "aria-label": "Zoom" },
    button("−", "Zoom out", () => zoom(kept.zoom / STEP)), shown, button("+", "Zoom in", () => zoom(kept.zoom * STEP)), button("Fit", "Fit the graph", fit));
}

function drag(frame) {
  frame.addEventListener("pointerdown", (down) => {
    if (down.pointerType !== "mouse" || down.button || down.target.closest("a")) return;
    const [left, top] = [frame.scrollLeft + down.clientX, frame.scrollTop + down.clientY];
    const follow = (event) => frame.scrollTo(left - event.clientX, top - event.clientY);
    window.addEventListener("pointermove", follow);
    window.addEventListener("pointerup", () => window.removeEventListener("pointermove", follow), { once: true });
  });
}

// -- keys and hovering -----------------------------------------------------------------------------

function idOf(target) {
  return target.closest("a, .node")?.dataset.key?.slice("node ".length);
}

function showNear(picture, id, told) {
  for (const edge of picture.querySelectorAll(".edge")) edge.classList.toggle("near", id !== undefined && (edge.dataset.from === id || edge.dataset.to === id));
  const node = id && picture.querySelector(`[data-key="${CSS.escape(`node ${id}`)}"]`);
  if (node) told.textContent = node.getAttribute("aria-label");
}

function roving(boxes, chosen) {
  boxes.forEach((item) => item.setAttribute("tabindex", item === chosen ? 0 : -1));
}

// Left to what it reads, right to what reads it, up and down within the layer.
function move(event, { places, before, after }, boxes) {
  const id = idOf(event.target);
  if (!id || !event.key.startsWith("Arrow")) return;
  const { x, y } = places.get(id);
  const layer = [...places].filter(([, place]) => place.x === x);
  const down = layer.filter(([, place]) => place.y > y).sort((one, other) => one[1].y - other[1].y);
  const up = layer.filter(([, place]) => place.y < y).sort((one, other) => other[1].y - one[1].y);
  const to = { ArrowLeft: before.get(id)[0], ArrowRight: after.get(id)[0], ArrowUp: up[0]?.[0], ArrowDown: down[0]?.[0] }[event.key];
  event.preventDefault();
  event.stopPropagation();
  if (!to) return;
  roving(boxes, boxes.get(to));
  boxes.get(to).focus();
}

// -- layout ----------------------------------------------------------------------------------------

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
  const tallest = Math.min(ROWS, Math.max(...layers.map((layer) => layer.length)));
  const places = new Map();
  let x = MARGIN - WIDTH - COLUMN_GAP;
  for (const layer of layers) {
    for (let start = 0; start < layer.length; start += ROWS) {
      const column = layer.slice(start, start + ROWS);
      const top = MARGIN + ((tallest - column.length) * (HEIGHT + ROW_GAP)) / (start ? Infinity : 2);
      x += WIDTH + (start ? ROW_GAP : COLUMN_GAP);
      column.forEach((id, row) => places.set(id, { x, y: top + row * (HEIGHT + ROW_GAP) }));
    }
  }
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
