"""The style and the script of the html report, kept small enough to read."""

from __future__ import annotations

import base64
import hashlib

STYLE = """
:root { color-scheme: light dark; --ink: #1c2024; --soft: #626b75; --line: #e3e6ea; --back: #fff; --panel: #f6f7f9;
  --identical: #2f7d4f; --close: #1f7a8c; --different: #c2362b; --shape: #8f1d5c; --not-finite: #8b3fb5;
  --not-compared: #9a6a00; --nothing-compared: #9a6a00; --forward: #4a56c9; --backward: #c47a1c; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e8eb; --soft: #98a2ad; --line: #2c3238; --back: #14171a;
  --panel: #1b1f23; --identical: #63c088; --close: #5cc0d3; --different: #f0776c; --shape: #e77ab6;
  --not-finite: #c793ea; --not-compared: #dfb04a; --nothing-compared: #dfb04a; --forward: #9aa5ff;
  --backward: #e0a050; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 84rem; padding: 2.5rem 1.5rem 4rem; background: var(--back); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif; }
h1 { font-size: 1.5rem; line-height: 1.3; margin: 0 0 .25rem; font-weight: 650; }
h2 { font-size: 1rem; margin: 2.25rem 0 .5rem; font-weight: 650; }
p { margin: .25rem 0; } .soft { color: var(--soft); }
code, td.name, td.number, dd, .strip { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
code, td.name, td.number { font-size: .86em; }
dl.facts { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1.25rem; margin: 1.25rem 0; }
dl.facts dt { color: var(--soft); } dl.facts dd { margin: 0; font-size: .86em; overflow-wrap: anywhere; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .35rem .75rem .35rem 0; border-bottom: 1px solid var(--line);
  white-space: nowrap; }
th { font-weight: 500; color: var(--soft); font-size: .86em; }
th.number, td.number { text-align: right; font-variant-numeric: tabular-nums; }
td.name { white-space: normal; overflow-wrap: anywhere; min-width: 22rem; unicode-bidi: isolate; }
td.wrap { white-space: normal; overflow-wrap: anywhere; min-width: 7rem; } td.soft { font-size: .86em; }
th button { all: unset; cursor: pointer; } th button:hover, th button:focus-visible { color: var(--ink);
  text-decoration: underline; }
th[aria-sort="ascending"] button::after { content: " \\2191"; } th[aria-sort="descending"] button::after {
  content: " \\2193"; }
.identical { color: var(--identical); } .close { color: var(--close); } .different { color: var(--different); }
.shape { color: var(--shape); } .not-finite { color: var(--not-finite); } .not-compared { color: var(--not-compared); }
.nothing-compared { color: var(--nothing-compared); }
svg.strip { display: block; width: 100%; height: 2.25rem; border-radius: 3px; background: var(--panel); }
svg.strip rect { fill: currentColor; }
.parting { border-left: 3px solid var(--different); padding: .1rem 0 .1rem 1rem; margin: 1rem 0; }
.parting strong code { font-size: 1em; } .parting dl.facts { margin: .35rem 0; }
tr.first td { background: var(--panel); } tr.first td.name { font-weight: 650; }
tr.inherited td.name, tr.inherited td.number { color: var(--soft); }
.forward { color: var(--forward); } .backward { color: var(--backward); }
svg.plot { display: block; width: 100%; height: auto; background: var(--panel); border-radius: 3px; }
svg.plot text { fill: var(--soft); font-size: 10px; } svg.plot .grid { stroke: var(--line); }
svg.plot polyline { fill: none; stroke: currentColor; opacity: .45; } svg.plot circle { fill: currentColor; }
svg.plot .mark { stroke: var(--ink); stroke-dasharray: 3 3; } svg.plot text.mark { fill: var(--ink); stroke: none; }
svg.plot .rule { stroke: var(--soft); stroke-dasharray: 6 4; }
.tools { display: flex; flex-wrap: wrap; gap: .35rem 1rem; align-items: center; margin: .25rem 0 .75rem; }
.tools input[type="search"] { font: inherit; padding: .3rem .6rem; min-width: 16rem; color: inherit;
  background: var(--panel); border: 1px solid var(--line); border-radius: 4px; }
summary { cursor: pointer; } details dl { display: grid; grid-template-columns: repeat(auto-fill, minmax(15rem, 1fr));
  gap: .1rem 1.5rem; margin: .5rem 0 .5rem 1rem; color: var(--soft); }
details dl div { display: flex; justify-content: space-between; gap: 1rem; }
details dd { margin: 0; color: var(--ink); }
[hidden] { display: none; }
@media print { body { max-width: none; padding: 0; font-size: 10px; } .tools { display: none; }
  tr { break-inside: avoid; }
  thead { display: table-header-group; } td, th { white-space: normal; } }
"""

SCRIPT = """
"use strict";
for (const tools of document.querySelectorAll(".tools")) {
  const table = tools.closest("section").querySelector("table");
  const body = table.tBodies[0], rows = Array.from(body.rows);
  const search = tools.querySelector("input[type=search]"), shown = tools.querySelector(".shown");
  const boxes = Array.from(tools.querySelectorAll("input[type=checkbox][value]"));
  const only = tools.querySelector("input.only");
  const filter = () => {
    const text = search.value.toLowerCase();
    const on = new Set(boxes.filter(box => box.checked).map(box => box.value));
    let count = 0;
    for (const row of rows) {
      const show = (!boxes.length || on.has(row.dataset.verdict)) && row.dataset.search.includes(text)
        && !(only && only.checked && row.dataset.passed);
      row.hidden = !show;
      count += show;
    }
    shown.textContent = count + " of " + rows.length + " shown";
  };
  const natural = new Intl.Collator("en", {numeric: true});
  const sort = (head, column) => {
    const down = head.getAttribute("aria-sort") !== "descending" && head.classList.contains("number")
      || head.getAttribute("aria-sort") === "ascending";
    for (const other of head.parentNode.cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const key = row => row.cells[column].dataset.key ?? row.cells[column].textContent;
    const number = head.classList.contains("number");
    const keys = new Map(rows.map(row => [row, number ? parseFloat(key(row)) : key(row)]));
    const order = (a, b) => {
      const x = keys.get(a), y = keys.get(b);
      if (!number) return natural.compare(x, y) * (down ? -1 : 1);
      if (Number.isNaN(x) || Number.isNaN(y)) return Number.isNaN(x) - Number.isNaN(y);
      return (x === y ? 0 : x < y ? -1 : 1) * (down ? -1 : 1);
    };
    body.append(...rows.sort(order));
  };
  Array.from(table.tHead.rows[0].cells).forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    button.addEventListener("click", () => sort(head, column));
    head.replaceChildren(button);
  });
  search.addEventListener("input", filter);
  [...boxes, ...(only ? [only] : [])].forEach(box => box.addEventListener("change", filter));
  tools.hidden = false;
  filter();
}
"""


def digest(text: str) -> str:
    """Return the source expression that lets exactly this text in."""
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"


# Nothing but these two texts: no request leaves the page, and no name can become script or style.
POLICY = (
    f"default-src 'none'; style-src {digest(STYLE)}; script-src {digest(SCRIPT)}; base-uri 'none'; form-action 'none'"
)
