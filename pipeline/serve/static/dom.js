// Create elements without parsing markup: names of jobs and items are always plain text.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [key, each] of Object.entries(value)) element.style.setProperty(key, each);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export const h = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
export const svg = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);
export const byId = (id) => document.getElementById(id);

// Writes only changed text, so that screen readers and selections are not disturbed.
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// Save a file as a browser download.
export function saveFile(name, blob) {
  const url = URL.createObjectURL(blob);
  h("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

// A table with a header row; columns with `number` are aligned as numbers.
export function table(caption, columns, rows) {
  const cell = (value, index) => h("td", { class: columns[index].number ? "number" : null }, value ?? "–");
  return h("table", {},
    h("caption", { class: "hidden" }, caption),
    h("thead", {}, h("tr", {}, columns.map((each) => h("th", { scope: "col", class: each.number ? "number" : null }, each.name)))),
    h("tbody", {}, rows.map((row) => h("tr", {}, row.map(cell)))));
}

export const column = (name) => ({ name, number: false });
export const numbers = (name) => ({ name, number: true });
