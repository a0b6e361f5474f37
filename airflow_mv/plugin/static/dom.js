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

// A name that may go on in the next line after a dot or an underscore.
export function breakable(name) {
  return name.split(/(?<=[._])/).flatMap((part, index) => (index ? [h("wbr"), part] : [part]));
}

// What is replaced keeps the focus, if it has something of the same key.
export function show(parent, ...children) {
  const key = document.activeElement?.dataset?.key;
  parent.replaceChildren(...children.flat(Infinity).filter(Boolean));
  if (key) parent.querySelector(`[data-key="${CSS.escape(key)}"]`)?.focus({ preventScroll: true });
}

// What is read at the moment, and where it will stand: as in index.html.
export function waiting(text, lines = 6) {
  return [
    h("p", { class: "quiet loading", role: "status" }, text),
    h("div", { class: "skeleton", "aria-hidden": "true" }, Array.from({ length: lines }, () => h("i"))),
  ];
}

export function pill(state) {
  return h("span", { class: `pill ${state}` }, LABELS[state] ?? state);
}

export function running(isRunning) {
  return isRunning ? h("span", { class: "pill at-work" }, "▸ running") : null;
}

// What a short text stands for, behind a button: for pointer, touch and keyboard alike. One note serves all buttons, so
// that it stays open when what is around its button is drawn again.
const note = h("div", { class: "note", popover: "auto", role: "dialog", "aria-label": "Details", tabindex: -1, autofocus: true });
const APART = 6;
let opener = null;
note.addEventListener("toggle", ({ newState }) => {
  if (newState !== "closed" || opener.isConnected || document.activeElement !== document.body) return;
  document.querySelector(`[data-key="${CSS.escape(opener.dataset.key)}"]`)?.focus();
});

// `key` names the button among those that are drawn again; `told` is the note's content, or returns it.
export function tip(key, short, told, attributes) {
  const button = h("button", { type: "button", class: "tip", "data-key": `tip ${key}`, ...attributes }, short);
  button.addEventListener("click", () => {
    if (!note.isConnected) document.body.append(note);
    if (opener !== button && note.matches(":popover-open")) note.hidePopover();
    opener = button;
    note.replaceChildren(...[typeof told === "function" ? told() : told].flat(Infinity).filter(Boolean));
    window.requestAnimationFrame(() => place(button.getBoundingClientRect()));
  });
  // The browser opens and closes it, and tells assistive technology.
  button.popoverTargetElement = note;
  return button;
}

function place({ left, top, bottom }) {
  const { offsetWidth: width, offsetHeight: height } = note;
  const fits = bottom + APART + height <= window.innerHeight || top < height + APART;
  note.style.left = `${Math.max(APART, Math.min(left, window.innerWidth - width - APART))}px`;
  note.style.top = `${fits ? bottom + APART : top - APART - height}px`;
}

export const LABELS = {
  fresh: "fresh",
  stale: "stale",
  "never-refreshed": "never refreshed",
  "definition-changed": "definition changed",
  invalid: "invalid",
  unknown: "unknown",
  pending: "not read yet",
  "not-created": "not created",
  late: "late",
  running: "running",
  failed: "failed",
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
