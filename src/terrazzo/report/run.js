(() => {
  const box = document.getElementById("table"), data = document.getElementById("rows");
  if (!box || !data) return;
  const rows = JSON.parse(data.textContent), size = Number(box.dataset.page);
  const body = box.querySelector("tbody"), heads = [...box.querySelectorAll("th")];
  const search = document.getElementById("search"), found = document.getElementById("found");
  const previous = document.getElementById("previous"), next = document.getElementById("next");
  let order = rows.map((_, i) => i), shown = order, first = 0, column = -1, falls = false;
  const key = (v) => v === null ? null : v === "∞" ? Infinity : v === "−∞" ? -Infinity : v;
  const text = (v) => {
    if (v === null) return "–";
    if (typeof v === "string") return v;
    if (Math.abs(v) >= 1e4) return Math.round(v).toLocaleString("en");
    return String(v);
  };
  const draw = () => {
    const lines = shown.slice(first, first + size).map((i) => {
      const line = document.createElement("tr");
      rows[i].forEach((value, c) => {
        const cell = document.createElement("td");
        if (c) cell.className = "number"; else cell.title = value;
        cell.textContent = text(value);
        line.append(cell);
      });
      return line;
    });
    body.replaceChildren(...lines);
    const last = Math.min(first + size, shown.length);
    found.textContent = shown.length ? `${first + 1}–${last} of ${shown.length.toLocaleString("en")}` : "nothing found";
    previous.disabled = first === 0;
    next.disabled = last >= shown.length;
  };
  const select = () => {
    const words = search.value.trim().toLowerCase();
    shown = words ? order.filter((i) => rows[i][0].toLowerCase().includes(words)) : order;
    first = 0;
    draw();
  };
  const compare = (i, j) => {
    const a = key(rows[i][column]), b = key(rows[j][column]);
    if (a === null || b === null) return (a === null) - (b === null) || i - j;
    const way = a === b ? 0 : typeof a === "string" ? a.localeCompare(b, "en", { numeric: true }) : a - b;
    return (falls ? -way : way) || i - j;
  };
  heads.forEach((head, i) => head.firstElementChild.addEventListener("click", () => {
    falls = column === i && !falls;
    column = i;
    for (const other of heads) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", falls ? "descending" : "ascending");
    order = [...order].sort(compare);
    select();
  }));
  search.addEventListener("input", select);
  previous.addEventListener("click", () => { first = Math.max(0, first - size); draw(); });
  next.addEventListener("click", () => { first += size; draw(); });
  draw();
})();
