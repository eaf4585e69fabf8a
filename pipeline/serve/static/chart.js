// The plot that Python describes, filled with curves; uses neither the network nor the page address.

import { dateTicks } from "./dates.js";
import { tickLabels } from "./format.js";

// Smallest range that contains all `ranges`, each [low, high].
export const widest = (ranges) => [Math.min(...ranges.map(([low]) => low)), Math.max(...ranges.map(([, high]) => high))];

// Minimum width of a date, and width of the labels on the left, in pixels.
const DATE = 110;
const AXIS = 70;
// Below this number of epochs, each epoch has a dot.
const FEW = 60;

export class Chart extends EventTarget {
  #document = null;
  #models = new Map();
  #view = null;
  #quiet = false;
  #dates = new Map();
  curves = [];
  shown = { simultaneous: false, smoothed: true, groundTruth: true };
  // Detail of the job whose calendar dates the epochs; null if the axis has epoch numbers.
  dated = null;

  constructor(place) {
    super();
    this.place = place;
  }

  // Replace the plot by `item` (from bokeh.embed.json_item), which has no curves yet, unless
  // `signal` is aborted.
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
    // On touch screens, dragging scrolls the page, and the buttons zoom.
    if (matchMedia("(pointer: coarse)").matches) for (const tool of plot.toolbar.tools) tool.active = false;
    plot.on_event("mousemove", (event) => this.#point(event.x));
    plot.on_event("mouseleave", () => this.#point(null));
    plot.on_event("tap", (event) => this.dispatchEvent(new CustomEvent("choose", { detail: event.x })));
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

  // Replace the data of the plot; the number of curves is unchanged.
  set(curves) {
    this.curves = curves;
    if (!this.#document) return;
    curves.forEach((curve, index) => this.#fill(curve, index));
  }

  // Range of values at the epochs of `range`; with `zero`, it includes 0.
  // With `zero`, the part of a band below 0 is cut off, because counts are nonnegative.
  extent([from, to], zero = false) {
    const [low, high] = widest(this.curves.map((curve) => curve.extent(from, to, this.shown.simultaneous)));
    return zero && low <= high ? [Math.min(0, ...this.curves.map((curve) => curve.least(from, to))), Math.max(high, 0)] : [low, high];
  }

  // Show the epochs of `range`, [from, to], and the values of `extent`, by default those of its curves.
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

  // Draw a vertical line at an epoch; null removes it.
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
    // Copied, because BokehJS does not redraw an array that grew in place.
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

  // Sources that stay empty need no update.
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

  // On dragging or scrolling, both ends of the range change, one after the other.
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
