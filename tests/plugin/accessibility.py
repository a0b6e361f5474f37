# SPDX-License-Identifier: Apache-2.0
"""WCAG 2.2 AA of the page as it is shown, in both themes: axe-core's rules, and the contrast of controls and shapes."""

from __future__ import annotations

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

_RULES = {
    "runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"],
    "resultTypes": ["violations"],
}
#: axe-core leaves out lines and shapes (WCAG 1.4.11): each needs a contrast of 3 to 1 with what is behind it.
_FAINT = """() => {
    const pixel = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
    const known = new Map();
    const light = (colour) => {
        if (!known.has(colour)) {
            pixel.clearRect(0, 0, 1, 1);
            pixel.fillStyle = colour;
            pixel.fillRect(0, 0, 1, 1);
            const [red, green, blue, alpha] = pixel.getImageData(0, 0, 1, 1).data;
            const part = [red, green, blue].map((value) => value / 255)
                .map((value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4));
            known.set(colour, alpha ? 0.2126 * part[0] + 0.7152 * part[1] + 0.0722 * part[2] : null);
        }
        return known.get(colour);
    };
    const back = light(getComputedStyle(document.body).backgroundColor);
    const contrast = (colour) => {
        const found = light(colour);
        return found === null ? 0 : (Math.max(found, back) + 0.05) / (Math.min(found, back) + 0.05);
    };
    const best = (item, ...names) => Math.max(...names.map((name) => contrast(getComputedStyle(item)[name])));
    const all = (selector) => [...document.querySelectorAll(selector)].filter((item) => item.getClientRects().length);
    const controls = all("button:enabled:not(.tip, th button), input, select, a.button, a.chip")
        .map((item) => [item, best(item, "borderTopColor", "backgroundColor")]);
    const shapes = all(".bar, .plot :is(.lag, .late, .end, .limit, .unexpected), .edge, .node rect")
        .map((item) => [item, best(item, "fill", "stroke")]);
    return [...controls, ...shapes]
        .filter(([, value]) => value < 3)
        .map(([item, value]) => `${item.outerHTML.slice(0, 120)}: ${value.toFixed(2)}`);
}"""


def faults(page: Page) -> list[str]:
    """Return what is wrong with a page that is not inside Airflow's UI, in the light and in the dark theme."""
    found = []
    expect(page.locator("[aria-busy=true]")).to_have_count(0)  # rows that are being replaced are shown fainter
    chosen = page.evaluate("document.documentElement.dataset.theme")
    for theme in ("light", "dark"):
        page.evaluate("theme => { document.documentElement.dataset.theme = theme }", theme)
        violations = Axe().run(page, options=_RULES).response["violations"]
        for violation in violations:
            nodes = [f"{node['html'][:160]} ({node['failureSummary']})" for node in violation["nodes"][:3]]
            found.append(f"{theme}: {violation['id']}: {nodes}")
        found += [f"{theme}: too faint: {text}" for text in page.evaluate(_FAINT)]
    page.evaluate("theme => { document.documentElement.dataset.theme = theme }", chosen)
    return found
