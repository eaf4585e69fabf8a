// All series of a job as a list with sparklines; only visible rows have elements.

import { ask, jobPath } from "./api.js";
import { byId, h, setText } from "./dom.js";
import { count, plural, said, valueOf } from "./format.js";
import { shape } from "./marks.js";
import { MOST_SERIES, view } from "./view.js";

const ROW = 36;
const LINE = 18;
// Characters that fit on one line of a row.
const LETTERS = 19;
const SPARK = { width: 72, height: 24 };
const ASKED = 1000;
const MOST_POINTS = 192;

const ORDERS = {
  // By the mean: by the latest estimates, the order would change at every epoch.
  // Quantiles, which are not user counts, come first.
  largest: (one, other) => (other.unit === "value") - (one.unit === "value") || other.mean - one.mean || one.index - other.index,
  name: (one, other) => one.label.localeCompare(other.label, "en", { numeric: true }),
  given: (one, other) => one.index - other.index,
};

export class Items extends EventTarget {
  #rows = [];
  #shown = [];
  #height = ROW;
  #pool = [];
  #active = 0;
  #frame = 0;
  #reduced = 0;
  #people = null;
  #epochs = 0;
  #covered = 0;
  marks = new Map();

  // `chosen` returns the drawn series; a "choose" event has the changes to the view.
  constructor(model, chosen) {
    super();
    [this.model, this.chosen] = [model, chosen];
    this.search = h("input", { type: "search", placeholder: "Search", "aria-label": "Search items", autocomplete: "off",
      spellcheck: "false", oninput: () => this.#filter(true), onkeydown: (event) => this.#leave(event) });
    this.order = h("select", { "aria-label": "Order of items", onchange: () => this.#filter(true) },
      h("option", { value: "largest" }, "most frequent on average"), h("option", { value: "name" }, "by name"), h("option", { value: "given" }, "as in the job"));
    const crowds = model.detail.domain.crowds ?? [];
    this.crowd = h("select", { "aria-label": "Group", hidden: !crowds.length, onchange: () => this.#enter() },
      h("option", { value: "" }, "all groups"), crowds.map((crowd) => h("option", { value: crowd }, crowd)));
    this.#look();
    this.said = h("p", { class: "note", role: "status" });
    this.space = h("div", { class: "space" });
    this.list = h("div", { class: "list", role: "listbox", tabindex: 0, "aria-multiselectable": "true", "aria-label": "Items drawn as curves",
      onscroll: () => this.#later(), onkeydown: (event) => this.#press(event), onclick: (event) => this.#click(event) }, this.space);
    this.element = h("section", { class: "card items", "aria-labelledby": "items-title" },
      h("div", { class: "card-head" }, h("h2", { id: "items-title" }, model.kind === "numbers" ? "Quantiles and ranges" : "Items"), this.said),
      h("div", { class: "tools" }, this.crowd, this.search, this.order), this.list,
      h("p", { class: "note" }, `Select up to ${MOST_SERIES}: click, or use arrow keys and Space.`));
    this.resized = new ResizeObserver(() => this.#later());
    this.resized.observe(this.list);
  }

  close() {
    this.resized.disconnect();
    cancelAnimationFrame(this.#frame);
    clearTimeout(this.#reduced);
  }

  async load() {
    const body = await ask(jobPath(this.model.name, "sparklines"), { count: ASKED });
    this.#epochs = body.last_epoch ?? 0;
    this.#people = body.population;
    this.#covered = this.#epochs - (this.model.detail.first_epoch ?? 1) + 1;
    const held = new Map(body.series.map((each) => [each.id, each]));
    // Of a large domain, only the items detected so far are listed.
    const listed = new Map([...this.model.detail.series, ...body.series].map((each) => [each.id, each]));
    this.#rows = [...listed.values()].map(({ id, label, unit, crowd }, index) => {
      const points = held.get(id)?.points ?? [];
      const known = points.filter((value) => value !== null);
      const mean = known.reduce((sum, value) => sum + value, 0) / (known.length || 1);
      return { id, label, crowd, index, mean, points, reduced: points.length, last: held.get(id)?.last ?? null, format: valueOf(unit), unit, version: 0, key: label.toLowerCase() };
    });
    for (const message of this.model.recent) if (message.epoch > this.#epochs) this.#take(message);
    this.#filter(false);
    if (this.crowd.value && !view.state.series.length) view.set({ series: this.#largest() }, { replace: true });
  }

  // Add a closed epoch. After many epochs, the reduced sparklines are loaded again.
  append(message) {
    this.#take(message);
    this.#later();
    if (message.epoch <= this.#epochs * 1.1 + 8) return;
    this.#reduced ||= setTimeout(async () => {
      await this.load().catch(() => {});
      this.#reduced = 0;
    }, 2000);
  }

  redraw() {
    for (const row of this.#pool) row.drawn = null;
    this.#later();
  }

  #take(message) {
    this.#people = message.population;
    for (const row of this.#rows) {
      const estimate = message.series[row.id];
      if (estimate === undefined) continue;
      row.last = estimate;
      if (row.points.length < MOST_POINTS) row.points.push(estimate?.[0] ?? null);
      row.version += 1;
    }
  }

  #filter(top) {
    const wanted = this.search.value.trim().toLowerCase();
    const before = this.#shown[this.#active];
    this.#shown = this.#rows.filter((row) => row.key.includes(wanted) && this.#within(row)).sort(ORDERS[this.order.value]);
    this.#active = Math.max(0, top ? 0 : this.#shown.indexOf(before));
    // All rows have the height that the longest name requires.
    const longest = this.#rows.reduce((most, row) => Math.max(most, row.label.length), 0);
    this.#height = Math.max(ROW, LINE * Math.ceil(longest / LETTERS + 0.5) + 2);
    this.list.style.setProperty("--row", `${this.#height}px`);
    this.space.style.height = `${this.#shown.length * this.#height}px`;
    if (top) this.list.scrollTop = 0;
    this.#later();
  }

  // Whether a row belongs to the selected crowd: the crowd itself, or one of its items.
  #within(row) {
    const crowd = this.crowd.value;
    return !crowd || row.crowd === crowd;
  }

  // The crowd in the page address changed.
  change() {
    this.#look();
    this.#filter(true);
  }

  #look() {
    const wanted = [...this.crowd.options].find((option) => option.value === view.state.crowd);
    this.crowd.value = wanted?.value ?? "";
  }

  // Select a crowd: list its items, and draw the largest. If no items are known yet, none is
  // selected until `load`.
  #enter() {
    const series = this.#largest();
    this.dispatchEvent(new CustomEvent("choose", { detail: { crowd: this.crowd.value, series } }));
  }

  #largest() {
    const crowd = this.crowd.value;
    if (!crowd) return [];
    const items = this.#rows.filter((row) => this.#within(row) && row.label !== crowd);
    return items.sort(ORDERS.largest).slice(0, MOST_SERIES).map((row) => row.id);
  }

  #later() {
    this.#frame ||= requestAnimationFrame(() => {
      this.#frame = 0;
      this.#draw();
    });
  }

  #draw() {
    const chosen = this.chosen();
    setText(this.said, this.#shown.length === this.#rows.length
      ? `${count(chosen.length)} of ${count(this.#rows.length)} selected`
      : plural(this.#shown.length, "match", "matches"));
    const first = Math.max(0, Math.floor(this.list.scrollTop / this.#height) - 2);
    const last = Math.min(this.#shown.length, Math.ceil((this.list.scrollTop + this.list.clientHeight) / this.#height) + 2);
    while (this.#pool.length < last - first) this.#pool.push(this.#line());
    // A visible row keeps its element.
    this.#pool.forEach((line, index) => {
      const at = first + ((index - first) % this.#pool.length + this.#pool.length) % this.#pool.length;
      const row = at < last ? this.#shown[at] : undefined;
      line.element.hidden = !row;
      if (row) this.#show(line, row, at, chosen);
    });
    const active = this.#shown.length ? this.#id(this.#active) : "";
    if (byId(active)) this.list.setAttribute("aria-activedescendant", active);
    else this.list.removeAttribute("aria-activedescendant");
  }

  #line() {
    const scale = window.devicePixelRatio || 1;
    const line = {
      mark: h("span", { class: "swatch" }),
      label: h("span", { class: "label" }),
      spark: h("canvas", { width: SPARK.width * scale, height: SPARK.height * scale, "aria-hidden": "true" }),
      value: h("span", { class: "value" }),
      error: h("span", { class: "error" }),
    };
    line.element = h("div", { class: "row", role: "option" }, line.mark, line.label, line.spark, h("span", { class: "value-text" }, line.value, line.error));
    this.space.append(line.element);
    return line;
  }

  #id(index) {
    return `item-${this.#shown[index].index}`;
  }

  #show(line, row, at, chosen) {
    const { element } = line;
    const selected = chosen.includes(row.id);
    element.id = this.#id(at);
    element.dataset.id = row.id;
    element.style.transform = `translateY(${at * this.#height}px)`;
    element.setAttribute("aria-selected", selected);
    element.setAttribute("aria-setsize", this.#shown.length);
    element.setAttribute("aria-posinset", at + 1);
    element.classList.toggle("active", at === this.#active);
    element.title = row.label;
    setText(line.label, row.label);
    const [value, low, high] = row.last ?? [];
    const words = said(row.unit, row.format, value, low, high, this.#people);
    setText(line.value, words.value);
    setText(line.error, words.mayBeNone || !row.last ? "" : words.interval);
    const mark = selected ? this.marks.get(row.id) : undefined;
    const key = mark ? `${mark.color} ${mark.shape}` : "";
    if (line.mark.dataset.key !== key) {
      line.mark.dataset.key = key;
      line.mark.replaceChildren(...(mark ? [shape(mark)] : []));
    }
    const drawn = `${key} ${row.version}`;
    if (line.row === row && line.drawn === drawn) return;
    [line.row, line.drawn] = [row, drawn];
    drawSpark(line.spark, row, this.#covered, mark?.color ?? getComputedStyle(element).color);
  }

  #click(event) {
    const element = event.target.closest(".row");
    if (!element) return;
    this.#active = this.#shown.findIndex((row) => row.id === element.dataset.id);
    this.#toggle();
  }

  #leave(event) {
    if (event.key !== "ArrowDown" && event.key !== "Enter") return;
    event.preventDefault();
    this.list.focus();
  }

  #press(event) {
    const page = Math.max(1, Math.floor(this.list.clientHeight / this.#height) - 1);
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -this.#shown.length, End: this.#shown.length };
    if (event.key in steps) {
      this.#active = Math.min(Math.max(this.#active + steps[event.key], 0), this.#shown.length - 1);
      const top = this.#active * this.#height;
      if (top < this.list.scrollTop) this.list.scrollTop = top;
      else if (top + this.#height > this.list.scrollTop + this.list.clientHeight) this.list.scrollTop = top + this.#height - this.list.clientHeight;
      this.#later();
    } else if (event.key === " " || event.key === "Enter") this.#toggle();
    else if (event.key === "Escape") this.dispatchEvent(new CustomEvent("choose", { detail: { series: this.#largest() } }));
    else if (event.key.length === 1 && !event.ctrlKey && !event.metaKey && !event.altKey) {
      this.search.focus();
      return;
    } else return;
    event.preventDefault();
  }

  #toggle() {
    const row = this.#shown[this.#active];
    if (!row) return;
    const before = this.chosen();
    // All curves share one axis, so user counts and domain values are not drawn together.
    const others = before.filter((id) => this.model.unitOf(id) === row.unit);
    const chosen = others.includes(row.id) ? others.filter((id) => id !== row.id) : [...others, row.id];
    if (chosen.length > MOST_SERIES) {
      setText(this.said, `The maximum of ${MOST_SERIES} is selected; deselect one first`);
      return;
    }
    if (chosen.length) this.dispatchEvent(new CustomEvent("choose", { detail: { series: chosen } }));
    this.#later();
  }
}

// Draw the points from left to right, with gaps, and a dot at the last one. The first `reduced` points
// summarize `covered` epochs; each later point is one epoch.
function drawSpark(canvas, { points, reduced }, covered, color) {
  const scale = window.devicePixelRatio || 1;
  const pen = canvas.getContext("2d");
  const [width, height] = [canvas.width, canvas.height];
  pen.clearRect(0, 0, width, height);
  const held = points.filter((value) => value !== null);
  if (!held.length) return;
  const low = Math.min(...held);
  const high = Math.max(...held);
  const each = reduced > 1 ? (covered - 1) / (reduced - 1) : 1;
  const place = (index) => Math.min(index, reduced - 1) * each + Math.max(0, index - reduced + 1);
  const x = (index) => 2 * scale + (place(index) / Math.max(1, place(points.length - 1))) * (width - 6 * scale);
  const y = (value) => height - 3 * scale - ((value - low) / (high - low || 1)) * (height - 6 * scale);
  pen.strokeStyle = pen.fillStyle = color;
  pen.lineWidth = 1.2 * scale;
  pen.lineJoin = "round";
  pen.beginPath();
  let drawn = false;
  points.forEach((value, index) => {
    if (value === null) drawn = false;
    else if (drawn) pen.lineTo(x(index), y(value));
    else {
      pen.moveTo(x(index), y(value));
      pen.lineTo(x(index) + 0.01, y(value));
      drawn = true;
    }
  });
  pen.stroke();
  const last = points.findLastIndex((value) => value !== null);
  pen.beginPath();
  pen.arc(x(last), y(points[last]), 1.8 * scale, 0, 7);
  pen.fill();
}
