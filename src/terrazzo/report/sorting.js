"use strict";
for (const button of document.querySelectorAll("th button:not(#table *)")) {
  button.addEventListener("click", () => {
    const head = button.parentElement, table = head.closest("table"), body = table.tBodies[0];
    const column = head.cellIndex, falls = head.getAttribute("aria-sort") === "ascending";
    for (const other of head.parentElement.children) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", falls ? "descending" : "ascending");
    const key = (row) => {
      const cell = row.cells[column];
      return "key" in cell.dataset ? Number(cell.dataset.key) : null;
    };
    const text = (row) => row.cells[column].textContent;
    const isNumeric = [...body.rows].some((row) => key(row) !== null);
    const compare = (a, b) => {
      if (!isNumeric) return (falls ? -1 : 1) * text(a).localeCompare(text(b));
      const x = key(a), y = key(b);
      if (x === null || y === null) return (x === null) - (y === null);
      return falls ? y - x : x - y;
    };
    body.append(...[...body.rows].sort(compare));
  });
}
