// SPDX-License-Identifier: Apache-2.0
// Elements from values. Text from a catalog gets into the document as text only: there is no way from here to markup.

const SVG = "http://www.w3.org/2000/svg";

export function h(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

// What is replaced keeps the focus, if it has something of the same key.
export function show(parent, ...children) {
  const key = document.activeElement?.dataset?.key;
  parent.replaceChildren(...children.flat(Infinity).filter(Boolean));
  if (key) parent.querySelector(`[data-key="${CSS.escape(key)}"]`)?.focus({ preventScroll: true });
}

export function pill(state) {
  return h("span", { class: `pill ${state}` }, LABELS[state] ?? state);
}

export function running(isRunning) {
  return isRunning ? h("span", { class: "pill at-work" }, "▸ running") : null;
}

export const LABELS = {
  fresh: "fresh",
  stale: "stale",
  "never-refreshed": "never refreshed",
  "definition-changed": "definition changed",
  invalid: "invalid",
  unknown: "unknown",
  pending: "not read yet",
};

export function problem({ message, advice }, where) {
  return h(
    "section",
    { class: "problem", role: "alert" },
    where && h("strong", null, where),
    h("p", null, message),
    advice && h("p", { class: "quiet" }, advice),
  );
}
