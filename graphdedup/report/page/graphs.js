// The table of graphs: search, sort, one page of rows in the document at a time, so that thousands stay usable.

const PAGE_ROWS = 50;

/**
 * @param columns {name, of, kind, sort}: `sort` gives what rows are ordered by, a number or a string.
 * @param rows each with `hay`, the lower-case text that is searched, and `kind`, what the filter chooses by.
 * @param kinds [value, words] of the filter.
 */
function searchTable(columns, rows, kinds) {
  const collator = new Intl.Collator("en", { numeric: true });
  const search = make("input", { type: "search", placeholder: "search: label, session, reason, ...", "aria-label": "search graphs" });
  const filter = make("select", { "aria-label": "which graphs" });
  filter.append(...kinds.map(([value, words]) => make("option", { value, text: words })));
  const told = make("span", { cls: "quiet", role: "status" });
  const before = make("button", { type: "button", text: "previous" });
  const after = make("button", { type: "button", text: "next" });
  const body = make("tbody");
  const heads = columns.map((column, index) => {
    const button = make("button", { type: "button", text: column.name });
    button.addEventListener("click", () => order(index));
    return make("th", { cls: column.kind || "", scope: "col", "aria-sort": "none" }, button);
  });
  let chosen = rows;
  let at = 0;
  let sorted = -1;
  let downwards = false;

  function choose() {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    chosen = rows.filter(
      (row) => (filter.value === "all" || row.kind === filter.value) && words.every((word) => row.hay.includes(word)),
    );
    arrange();
  }

  function order(index) {
    downwards = index === sorted ? !downwards : columns[index].kind === "number";
    sorted = index;
    heads.forEach((head, place) => {
      head.setAttribute("aria-sort", place !== sorted ? "none" : downwards ? "descending" : "ascending");
    });
    arrange();
  }

  function arrange() {
    if (sorted >= 0) {
      const of = columns[sorted].sort;
      const sign = downwards ? -1 : 1;
      const compare = (one, other) => (typeof one === "string" ? collator.compare(one, other) : one - other);
      chosen = chosen.map((row) => [of(row), row]).sort((one, other) => sign * compare(one[0], other[0])).map((pair) => pair[1]);
    }
    at = 0;
    draw();
  }

  function draw() {
    const end = Math.min(at + PAGE_ROWS, chosen.length);
    body.replaceChildren(...chosen.slice(at, end).map((row) => tableRow(columns, row)));
    told.textContent = chosen.length ? `${count(at + 1)} to ${count(end)} of ${count(chosen.length)}` : "none";
    before.disabled = at === 0;
    after.disabled = end === chosen.length;
  }

  search.addEventListener("input", choose);
  filter.addEventListener("change", choose);
  before.addEventListener("click", () => { at -= PAGE_ROWS; draw(); });
  after.addEventListener("click", () => { at += PAGE_ROWS; draw(); });
  choose();
  const table = make("table", { id: "graphs" }, make("thead", {}, make("tr", {}, ...heads)), body);
  const tools = make("div", { cls: "tools" }, search, filter, told, before, after);
  return make("div", {}, tools, make("div", { cls: "scroll" }, table));
}
