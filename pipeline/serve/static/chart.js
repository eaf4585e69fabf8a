// The plot that Python describes, filled with curves; it knows no network and no address.

import { dateTicks } from "./dates.js";
import { tickLabels } from "./format.js";

// From the lowest to the highest of some ranges, [low, high] each.
export const widest = (ranges) => [Math.min(...ranges.map(([low]) => low)), Math.max(...ranges.map(([, high]) => high))];

// Minimum width of a date in pixels, and width of the labels on the left.
const DATE = 110;
const AXIS = 70;
// Below this number of epochs, each has a dot.
const FEW = 60;

export class Chart extends EventTarget {
  #document = null;
  #models = new Map();
  #view = null;
  #quiet = false;
  #dates = new Map();
  curves = [];
  shown = { simultaneous: false, smoothed: true, groundTruth: true };
  // The job whose calendar dates the epochs; null where they have numbers.
  dated = null;

  constructor(place) {
    super();
    this.place = place;
  }

  // Draw the plot `item` (of bokeh.embed.json_item), still without curves, in place of the one
  // before, unless `signal` aborts it.
  async show(item, signal) {
    const views = await Bokeh.embed.embed_item(item, this.place);
    const plot = [...views.roots][0].model;
    if (signal.aborted) {
      discard(views, plot.document);
      return;
    }
    this.#clear();
    this.#document = plot.document;
    this.#view = views;
    for (const part of this.place.children) part.hidden = false;
    // With a finger one scrolls the page; the buttons zoom.
    if (matchMedia("(pointer: coarse)").matches) for (const tool of plot.toolbar.tools) tool.active = false;
    plot.on_event("mousemove", (event) => this.#point(event.x));
    plot.on_event("mouseleave", () => this.#point(null));
    plot.on_event("doubletap", () => this.dispatchEvent(new CustomEvent("range", { detail: null })));
    const epochs = this.#model("epochs");
    const told = () => this.#quiet || this.#ask(epochs);
    epochs.properties.start.change.connect(told);
    epochs.properties.end.change.connect(told);
    this.#model("values-ticks").doFormat = (ticks) => tickLabels(ticks);
    this.#model("epochs-ticks").doFormat = (ticks) => (this.#model("dates") ? ticks.map((tick) => this.#dates.get(tick) ?? "") : tickLabels(ticks));
  }

  close() {
    this.#clear();
    this.place.replaceChildren();
  }

  // Put other numbers into the plot; it has as many curves as before.
  set(curves) {
    this.curves = curves;
    if (!this.#document) return;
    curves.forEach((curve, index) => this.#fill(curve, index));
  }

  // Smallest and largest value of the epochs of `range`; with `zero`, from 0 or a smaller value on.
  // The part of a band below 0 is cut off: no count lies there.
  extent([from, to], zero = false) {
    const [low, high] = widest(this.curves.map((curve) => curve.extent(from, to, this.shown.simultaneous)));
    return zero && low <= high ? [Math.min(0, ...this.curves.map((curve) => curve.least(from, to))), Math.max(high, 0)] : [low, high];
  }

  // Show the epochs of `range`, [from, to], and the values of `extent`, if not just its own.
  zoom(range, extent = this.extent(range)) {
    if (!this.#document) return;
    this.range = range;
    const [from, to] = range;
    const room = Math.max(0.5, (to - from) * 0.012);
    let [low, high] = extent;
    if (low > high) [low, high] = [0, 1];
    const air = Math.max((high - low) * 0.06, Math.abs(high) * 1e-6, 1e-9);
    this.#quiet = true;
    this.#model("epochs").setv({ start: from - room, end: to + room });
    this.#model("values").setv({ start: low === 0 ? 0 : low - air, end: high + air });
    this.#writeDates(range);
    this.#quiet = false;
    for (const [index, curve] of this.curves.entries()) {
      const points = curve.nearest(to) - curve.nearest(from);
      this.#model(`dots-${index}`).visible = points < FEW;
      const last = curve.lastKnown(to);
      this.#put(`end-${index}`, last < 0 ? { x: [], y: [] } : { x: [curve.epochs[last]], y: [curve.value[last]] });
    }
  }

  #writeDates(range) {
    const ticker = this.#model("dates");
    const longest = this.curves.reduce((one, other) => (one && one.epochs.length >= other.epochs.length ? one : other), null);
    if (!ticker || !this.dated || !longest?.begins) return;
    this.#dates = dateTicks(this.dated, longest.epochs, longest.begins, range, Math.max(2, Math.floor(((this.place.clientWidth || 800) - AXIS) / DATE)));
    ticker.ticks = [...this.#dates.keys()];
  }

  // A line at an epoch; null takes it away.
  markEpoch(epoch) {
    const cursor = this.#model("cursor");
    if (cursor) cursor.location = epoch ?? NaN;
  }

  // Color and shape of a curve's mark.
  mark(index) {
    const { glyph } = this.#model(`mark-${index}`);
    return { color: glyph.fill_color.value, shape: glyph.marker.value };
  }

  get canvas() {
    const [view] = this.#view.roots;
    return view.export("png").canvas;
  }

  source(name) {
    return this.#model(name)?.data;
  }

  #fill(curve, index) {
    const { band, alone } = curve.band();
    const wide = curve.band((this.shown.simultaneous && curve.simultaneous) || { low: [], high: [] });
    // Copies: an array that has grown is the same array to BokehJS, and is not drawn again.
    const line = (values) => (values ? { x: [...curve.epochs], y: [...values] } : { x: [], y: [] });
    const data = {
      band,
      alone,
      wide: wide.band,
      far: wide.alone,
      estimate: line(curve.value),
      smoothed: line(this.shown.smoothed && curve.smoothed),
      "ground-truth": line(this.shown.groundTruth && curve.groundTruth),
    };
    for (const [kind, columns] of Object.entries(data)) this.#put(`${kind}-${index}`, columns);
  }

  // What is empty and stays so need not be looked at again.
  #put(name, columns) {
    const source = this.#model(name);
    if (columns.x.length || source.data.x.length) source.data = columns;
  }

  #model(name) {
    if (!this.#document) return null;
    if (!this.#models.has(name)) this.#models.set(name, this.#document.get_model_by_name(name));
    return this.#models.get(name);
  }

  #point(x) {
    this.dispatchEvent(new CustomEvent("point", { detail: x }));
  }

  // The reader dragged or turned the wheel: the two ends change one after the other.
  #ask(epochs) {
    clearTimeout(this.asked);
    this.asked = setTimeout(() => {
      const range = [Math.ceil(epochs.start), Math.floor(epochs.end)];
      this.dispatchEvent(new CustomEvent("range", { detail: range[0] <= range[1] ? range : null }));
    }, 120);
  }

  #clear() {
    clearTimeout(this.asked);
    if (this.#view) discard(this.#view, this.#document);
    this.#models.clear();
    this.#document = null;
    this.#view = null;
  }
}

function discard(views, document) {
  views.clear();
  const place = Bokeh.documents.indexOf(document);
  if (place >= 0) Bokeh.documents.splice(place, 1);
}
