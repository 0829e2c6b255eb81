// Building blocks. Text reaches the document as text nodes only: nothing of a report is ever read as HTML.

const DASH = "-";

/** A new element; `options` are a class, text, data attributes and other attributes; children are elements or strings. */
function make(tag, options = {}, ...children) {
  const made = document.createElement(tag);
  const { cls, text, data, ...attributes } = options;
  if (cls) made.className = cls;
  if (text !== undefined) made.textContent = text;
  for (const [name, value] of Object.entries(data || {})) made.dataset[name] = value;
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

/** A number with commas, or a dash. */
function count(value) {
  return value === null || value === undefined ? DASH : value.toLocaleString("en-US");
}

/** Bytes in decimal units, to the digit as the text rendering has them. */
function bytes(value) {
  if (value === null || value === undefined) return "unknown";
  let amount = value;
  let unit = "B";
  for (const larger of ["KB", "MB", "GB", "TB"]) {
    if (Math.abs(amount) < 999.95) break;
    amount /= 1000;
    unit = larger;
  }
  if (unit === "B") return `${value} B`;
  const tie = Math.abs(amount) % 1 === 0.25; // halves go to the even digit
  return `${tie ? `${Math.trunc(amount)}.2` : amount.toFixed(1)} ${unit}`;
}

function seconds(value) {
  return value === null || value === undefined ? DASH : value.toFixed(3);
}

function plural(number, one, many = `${one}s`) {
  return `${count(number)} ${number === 1 ? one : many}`;
}

const SOURCES = {
  measured_device: "measured on the device",
  measured_host: "measured on the host",
  modelled: "modelled",
};

/** A graph by its label and segment, as reports name it. */
function nameOf(member) {
  return `${member.label || "graph"} segment ${member.segment}`;
}

function chip(source) {
  return make("span", { cls: "chip", text: SOURCES[source] || source });
}

/** A figure at a glance: name, value, where it is from. `field` names it in the JSON. */
function tile(field, name, value, note, source) {
  const made = make("div", { cls: "tile", data: { field } });
  made.append(make("div", { cls: "name", text: name }), make("div", { cls: "value", text: value }));
  const last = make("div", { cls: "note" });
  if (source) last.append(chip(source), " ");
  last.append(note || "");
  made.append(last);
  return made;
}

function section(title, words) {
  const made = make("section", {}, make("h2", { text: title }));
  if (words) made.append(make("p", { cls: "quiet", text: words }));
  return made;
}

/** Columns are {name, of, kind}: kind is "number", "name" or "words"; `of` gives a cell's text or element. */
function plainTable(columns, rows, id) {
  const head = make("tr", {}, ...columns.map((one) => make("th", { cls: one.kind || "", scope: "col", text: one.name })));
  const body = make("tbody", {}, ...rows.map((row) => tableRow(columns, row)));
  const table = make("table", id ? { id } : {}, make("thead", {}, head), body);
  return make("div", { cls: "scroll" }, table);
}

function tableRow(columns, row) {
  return make("tr", {}, ...columns.map((one) => make("td", { cls: one.kind || "" }, one.of(row))));
}

/** The first rows of a long table, and a button for the others. */
function shortTable(columns, rows, most, id) {
  const held = plainTable(columns, rows.slice(0, most), id);
  const made = make("div", {}, held);
  if (rows.length > most) {
    const button = make("button", { cls: "more", type: "button", text: `show all ${count(rows.length)}` });
    button.addEventListener("click", () => {
      held.querySelector("tbody").append(...rows.slice(most).map((row) => tableRow(columns, row)));
      button.remove();
    });
    made.append(button);
  }
  return made;
}
