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
    for (const cell of head.parentNode.cells) cell.removeAttribute("aria-sort");
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
