// The curves of one or several jobs, with their legend, their range, and a table of their numbers.

import { ask, jobPath } from "./api.js";
import { measureOf } from "./breakdowns.js";
import { Chart, widest } from "./chart.js";
import { Curve } from "./curve.js";
import { h, setText } from "./dom.js";
import { epochWords } from "./dates.js";
import { capital, count, valueText, valueOf } from "./format.js";
import { shape } from "./marks.js";
import { NumbersTable, downloads, saveSeen } from "./numbers.js";
import { savePicture } from "./picture.js";
import { view } from "./view.js";

const FIRST_EPOCHS = 12;
const MANY = 4;
const STEPS = [["all", "All"], ["latest-100", "Last 100"], ["latest-20", "Last 20"]];

export class CurvesCard {
  #charts = [];
  #loading = null;
  #fresh = 0;
  #cursor = null;
  shown = { simultaneous: false, smoothed: true, groundTruth: true, zero: true };

  // `models` are one or several jobs; `chosen` returns the ids of the drawn series.
  constructor(models, theme, chosen) {
    [this.models, this.theme, this.chosen] = [models, theme, chosen];
    this.overlaid = models.length > 1 && models.every((model) => model.kind === "value");
    this.steps = h("div", { class: "buttons", role: "group", "aria-label": "Epochs shown" },
      STEPS.map(([range, name]) => h("button", { type: "button", "data-range": range, onclick: () => this.#go(range) }, name)),
      h("button", { type: "button", "aria-label": "Show fewer epochs", onclick: () => this.#scale(0.5) }, "+"),
      h("button", { type: "button", "aria-label": "Show more epochs", onclick: () => this.#scale(2) }, "−"));
    this.switches = h("div", { class: "switches" });
    this.since = h("input", { type: "number", min: 1, max: 99999, placeholder: "–", "aria-label": "Change: number of epochs back",
      onchange: ({ target }) => view.set({ change: target.validity.valid ? target.value : "" }) });
    const since = models.every((model) => model.detail.changes) && h("label", { class: "since" }, "Change over", this.since, `${models[0].detail.period}s`);
    const period = models[0].detail.period;
    this.intervals = models[0].detail.roll_up.filter((each) => models.every((model) => model.detail.roll_up.includes(each)));
    this.means = h("select", { "aria-label": "Epochs or means over longer periods", onchange: ({ target }) => view.set({ interval: target.value }) },
      h("option", { value: "" }, `Each ${period}`),
      this.intervals.map((each) => h("option", { value: String(each) }, `Mean over ${count(each)} ${period}s`)));
    this.body = h("div", { class: "charts" });
    this.numbers = new NumbersTable(models, () => ({ series: this.chosen(), range: this.range, change: this.change, interval: this.interval }));
    this.error = h("p", { class: "problem", role: "alert", hidden: true });
    this.element = h("section", { class: "card curves", "aria-labelledby": "curves-title" },
      h("div", { class: "card-head" }, (this.heading = h("h2", { id: "curves-title" }, this.#title())), this.switches, this.intervals.length > 0 && this.means, since, this.steps),
      this.error, this.body, this.#key(),
      h("div", { class: "card-foot" }, this.numbers.element,
        h("div", { class: "downloads" }, models.map((model) => downloads(model, models.length > 1)),
          h("p", {}, "Visible range: ", h("button", { type: "button", class: "quiet", onclick: () => this.#save() }, "Save as CSV"), " ",
            h("button", { type: "button", class: "quiet", onclick: () => this.#picture() }, "Save as PNG")))));
    const panels = this.overlaid || models.length === 1 ? [models] : models.map((model) => [model]);
    for (const of of panels) this.#charts.push(this.#panel(of));
    this.resized = new ResizeObserver(() => this.#widen());
    this.resized.observe(this.body);
  }

  close() {
    this.#loading?.abort();
    clearTimeout(this.#fresh);
    this.numbers.close();
    this.resized.disconnect();
    for (const { chart } of this.#charts) chart.close();
  }

  get lastEpoch() {
    return Math.max(...this.models.map((model) => model.lastEpoch));
  }

  // First and last visible epoch.
  get range() {
    const last = Math.max(this.lastEpoch, 1);
    const first = Math.min(...this.models.map((model) => model.detail.first_epoch ?? 1));
    const [from, to] = view.state.range.split("-");
    if (from === "latest") return [Math.max(first, last - Number(to) + 1), last];
    if (from !== "all") return [Number(from), Math.max(Number(from), Number(to))];
    return [first, Math.max(last, Math.min(first + FIRST_EPOCHS - 1, this.models[0].detail.epochs ?? FIRST_EPOCHS))];
  }

  // Lag of the changes in epochs; empty if the estimates themselves are shown.
  get change() {
    return this.models.every((model) => model.detail.changes) ? view.state.change : "";
  }

  // Number of epochs in the periods whose means are shown; empty if single epochs are shown.
  get interval() {
    return this.intervals.includes(Number(view.state.interval)) ? view.state.interval : "";
  }

  get #live() {
    return view.state.range === "all" || view.state.range.startsWith("latest");
  }

  // Request the chosen curves in the chosen range, and draw them.
  async load() {
    this.#loading?.abort();
    const loading = (this.#loading = new AbortController());
    clearTimeout(this.#fresh);
    this.#fresh = 0;
    this.columns = this.#columns();
    const nothing = !this.chosen().length;
    this.body.classList.toggle("waiting", nothing);
    if (nothing) return;
    this.zoomed();
    try {
      await Promise.all(this.#charts.map((panel) => this.#fill(panel, loading.signal)));
      this.error.hidden = true;
    } catch (failure) {
      if (failure.name === "AbortError") return;
      setText(this.error, `Loading the curves failed: ${failure.message}`);
      this.error.hidden = false;
      return;
    }
    if (loading.signal.aborted) return;
    this.#drawSwitches();
    this.numbers.show();
    this.read();
    this.element.dispatchEvent(new CustomEvent("drawn", { detail: this.marks, bubbles: true }));
  }

  // Color and shape of every drawn series.
  get marks() {
    const { chart } = this.#charts[0];
    return new Map(chart.curves.map((curve, index) => [curve.id, chart.mark(index)]));
  }

  // An epoch of a job closed; `draw` shows it.
  append(model, message) {
    // The new epoch is outside the visible past range.
    if (!this.#live && message.epoch > this.range[1]) return;
    // Only the server can compute the interval of a change or of a mean.
    if (this.change || this.interval) return this.refresh();
    for (const panel of this.#charts) {
      if (!panel.models.includes(model)) continue;
      let missing = false;
      for (const curve of panel.chart.curves) {
        if (curve.job !== model.name) continue;
        const estimate = message.series[curve.id];
        if (estimate === undefined) missing = true;
        else curve.append(message, estimate, message.ground_truth?.[curve.id]);
      }
      panel.added += 1;
      // Appended epochs are not reduced: request reduced curves when many were appended.
      if (missing || panel.added > this.columns) this.refresh();
    }
  }

  // Request the curves again, at most once per second.
  refresh() {
    this.#fresh ||= setTimeout(() => this.load(), 1000);
  }

  zoomed() {
    this.since.value = this.change;
    this.means.value = this.interval;
    setText(this.heading, this.#title());
    for (const each of this.steps.children) {
      if (each.dataset.range) each.setAttribute("aria-pressed", each.dataset.range === view.state.range);
    }
  }

  #title() {
    const [model] = this.models;
    const { people, period } = model.detail;
    const measured = this.models.length === 1 && model.detail.measures.length > 0 && model.kind !== "numbers";
    const what = measured ? { [model.kind]: capital(measureOf(model.detail).label) } : { value: capital(model.detail.series[0]?.label ?? ""), items: `${capital(people)} with each item`, numbers: "Distribution of values", found: `${capital(people)} with each detected item` };
    const mean = this.interval && `mean over ${count(Number(this.interval))} ${period}s`;
    const each = mean ? "period" : period;
    const shown = this.change ? `change over ${count(Number(this.change))} ${each}${this.change === "1" ? "" : "s"}` : !mean && `${period} by ${period}`;
    return [what[model.kind], mean, shown].filter(Boolean).join(", ");
  }

  #panel(models) {
    const place = h("div", {
      class: "chart", tabindex: 0, role: "group", "aria-roledescription": "chart",
      "aria-label": `Chart of ${models.map((model) => model.name).join(" and ")}. The left and right arrow keys step through epochs, Enter chooses one for breakdowns, plus and minus zoom; the table below has the numbers.`,
      onkeydown: (event) => this.#press(event), onblur: () => this.read(),
    });
    const chart = new Chart(place);
    chart.shown = this.shown;
    chart.addEventListener("point", (event) => this.read(event.detail));
    chart.addEventListener("choose", (event) => this.#choose(event.detail));
    chart.addEventListener("range", (event) => this.#go(event.detail ? event.detail.join("-") : "all"));
    const legend = h("ul", { class: "legend" });
    const heading = this.#needsHeading(models) && h("h3", {}, this.#named(models[0]));
    const nothing = h("p", { class: "empty", hidden: true });
    this.body.append(h("div", { class: "panel" }, heading, nothing, place, legend));
    return { models, chart, legend, place, nothing, added: 0, chartKey: "", unit: "" };
  }

  // Title of a job, with its name if another job has the same title.
  #named({ name, detail: { title } }) {
    return this.models.filter((model) => model.detail.title === title).length > 1 ? name : title;
  }

  #needsHeading(models) {
    return this.models.length > 1 && models.length === 1;
  }

  // With many curves, half the columns are enough, and take half the time to draw.
  #columns() {
    const width = (this.body.clientWidth || 800) / (this.chosen().length > MANY ? 2 : 1);
    return Math.min(4096, Math.max(16, Math.round(width)));
  }

  #widen() {
    if (this.columns && Math.abs(this.#columns() - this.columns) > 0.3 * this.columns) this.refresh();
  }

  async #fill(panel, signal) {
    const [from, to] = this.range;
    const parts = await Promise.all(panel.models.map(async (model) => {
      const series = model.own(this.chosen()).join(",");
      const asked = { series, from, to: this.#live ? "" : to, columns: this.columns, change: this.change, interval: this.interval };
      const body = await ask(jobPath(model.name, "curve"), asked, signal);
      return { model, body };
    }));
    const curves = parts.flatMap(({ model, body }) => body.series.map((each) => {
      const curve = new Curve(each, model.name, model.detail.simultaneous?.widening);
      if (panel.models.length > 1) curve.label = this.#named(model);
      else if (each.measure) curve.label = each.answer ?? (Object.values(each.labels).join(", ") || each.measure);
      return curve;
    }));
    const theme = this.theme();
    if (!curves.length) return;
    // All series of a chart share one axis.
    const unit = panel.models[0].unitOf(curves[0].id);
    panel.format = valueOf(unit);
    // Jobs with different starts share only epoch numbers.
    const dated = curves.every((curve) => curve.begins && curve.begins[curve.epochs.indexOf(curves[0].epochs[0])] === curves[0].begins?.[0]);
    panel.chart.dated = dated ? panel.models[0].detail : null;
    const chartKey = `${curves.length} ${theme} ${unit} ${dated}`;
    if (chartKey !== panel.chartKey) {
      const item = await this.#describe(panel, curves, theme, dated, signal);
      panel.chartKey = "";
      await panel.chart.show(item, signal);
    }
    if (signal.aborted) return;
    // No `await` from here on: epochs that have closed are in `recent`, and epochs that close
    // later are appended to the curves of the chart.
    for (const { model, body } of parts) {
      const late = model.recent.filter((message) => message.epoch > (body.last_epoch ?? 0) && (this.#live || message.epoch <= to));
      if (late.length && (this.change || this.interval)) this.refresh();
      else for (const message of late) {
        for (const curve of curves) {
          if (curve.job !== model.name) continue;
          const estimate = message.series[curve.id];
          if (estimate === undefined) this.refresh();
          else curve.append(message, estimate, message.ground_truth?.[curve.id]);
        }
      }
    }
    panel.added = 0;
    panel.chartKey = chartKey;
    panel.unit = unit;
    panel.chart.set(curves);
    this.#zoom();
    this.#drawLegend(panel);
  }

  // Charts of the same unit have the same axis, so that heights can be compared.
  #zoom() {
    const { range } = this;
    for (const { chart, unit, models: [model], nothing } of this.#charts) {
      // Before curves are loaded, it is unknown whether they are empty.
      nothing.hidden = !chart.curves.length || chart.curves.some((curve) => curve.lastKnown(range[1]) >= 0 && curve.epochs[curve.lastKnown(range[1])] >= range[0]);
      setText(nothing, `No estimates for these ${model.detail.period}s. The table below states why.`);
      const alike = this.#charts.filter((other) => other.unit === unit && (unit === "users" || model.measuresAs(other.models[0])));
      chart.zoom(range, widest(alike.map((other) => other.chart.extent(range, this.#fromZero(unit)))));
    }
  }

  // Axes of counts and percentages start at 0; values of a domain and changes can be anywhere.
  #fromZero(unit) {
    return this.shown.zero && unit !== "value" && !this.change;
  }

  #describe(panel, curves, theme, dated, signal) {
    const [model] = panel.models;
    const series = model.own(this.chosen()).join(",");
    return ask("/charts.json", { job: model.name, theme, series, curves: curves.length, axis: dated ? "" : "numbers" }, signal);
  }

  // Draw appended epochs.
  draw() {
    for (const { chart } of this.#charts) chart.set(chart.curves);
    this.#zoom();
    this.read(this.#cursor);
    this.numbers.refresh();
  }

  #go(range) {
    view.set({ range });
  }

  #scale(factor) {
    const [from, to] = this.range;
    const last = this.lastEpoch;
    const width = Math.max(2, Math.round((to - from + 1) * factor));
    if (width >= last) this.#go("all");
    else if (to >= last) this.#go(`latest-${width}`);
    else {
      const start = Math.max(1, Math.min(last - width + 1, Math.round((from + to - width + 1) / 2)));
      this.#go(`${start}-${start + width - 1}`);
    }
  }

  #press(event) {
    const [from, to] = this.range;
    const steps = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10 };
    if (event.key in steps) {
      const at = this.#cursor ?? Math.min(to, this.lastEpoch) + (steps[event.key] < 0 ? 1 : -1);
      this.read(Math.min(Math.max(at + steps[event.key], from), Math.min(to, this.lastEpoch)));
    } else if (event.key === "Enter" && this.#cursor) this.#choose(this.#cursor);
    else if (event.key === "Home") this.read(from);
    else if (event.key === "End") this.read(Math.min(to, this.lastEpoch));
    else if (event.key === "+" || event.key === "=") this.#scale(0.5);
    else if (event.key === "-") this.#scale(2);
    else if (event.key === "Escape") this.read();
    else return;
    event.preventDefault();
  }

  // Choose the epoch at a place of the axis.
  #choose(x) {
    const [from, to] = this.range;
    const epoch = Math.min(Math.max(Math.round(x), from), to, this.lastEpoch);
    this.element.dispatchEvent(new CustomEvent("choose", { detail: epoch }));
  }

  // Show the values at an epoch in the legends, by default at the chosen or the latest one.
  read(epoch = null) {
    this.#cursor = epoch;
    epoch ??= Number(view.state.epoch) || null;
    for (const panel of this.#charts) {
      const { chart, legend, format } = panel;
      if (!panel.at) continue;
      let at = null;
      chart.curves.forEach((curve, index) => {
        const point = curve.nearest(epoch ?? this.range[1]);
        at = Math.max(at ?? 0, curve.epochs[point] ?? 0);
        const words = legend.children[index]?.querySelector(".value");
        if (!words) return;
        const { published: { [point]: found }, population } = curve;
        const gap = !found || Number.isNaN(found[0]);
        setText(words, gap ? "no estimate" : valueText(this.change ? "change" : panel.unit, format, ...found, population?.[point]));
      });
      chart.markEpoch(epoch === null ? null : at);
      const longest = chart.curves.find((curve) => curve.epochs.includes(at));
      setText(panel.at, at ? epochWords(chart.dated ?? {}, at, longest?.begins?.[longest.epochs.indexOf(at)]) : "");
    }
  }

  #drawLegend(panel) {
    const { chart, legend } = panel;
    panel.at = h("span", { class: "at" });
    legend.replaceChildren(
      ...chart.curves.map((curve, index) => h("li", {}, shape(chart.mark(index)), h("span", { class: "label" }, curve.label), h("span", { class: "value" }))),
      h("li", { class: "epoch", "aria-live": "polite" }, panel.at));
  }

  // Explanation of lines and areas, independent of their color.
  #key() {
    this.key = h("p", { class: "key" });
    return this.key;
  }

  #drawSwitches() {
    const curves = this.#charts.flatMap(({ chart }) => chart.curves);
    const has = (name) => curves.some((curve) => curve.has(name));
    const note = this.models.map((model) => model.detail.ground_truth_note).find(Boolean) ?? "not private";
    const lines = [["estimate", this.change ? "estimated change" : "estimate"], ["band", "95 % confidence interval"]];
    const { period } = this.models[0].detail;
    const wide = this.shown.simultaneous && has("simultaneous");
    if (wide) lines.push(["wide", `simultaneous 95 % band for all ${period}s`]);
    if (this.shown.smoothed && has("smoothed")) lines.push(["smoothed", "smoothed (uses later epochs)"]);
    if (this.shown.groundTruth && has("groundTruth")) lines.push(["ground-truth", note]);
    const sentences = new Set(this.models.map((model) => wide && model.detail.simultaneous?.description).filter(Boolean));
    this.key.replaceChildren(...lines.map(([name, words]) => h("span", {}, h("i", { class: `line ${name}`, "aria-hidden": "true" }), words)),
      ...[...sentences].map((words) => h("span", { class: "said" }, words)));
    const zero = this.#charts.some(({ unit }) => unit !== "value") && !this.change;
    const kinds = [["zero", "Start axis at zero"], ["simultaneous", "Simultaneous band"], ["smoothed", "Smoothed"], ["groundTruth", "Ground truth, not private"]].filter(([name]) => (name === "zero" ? zero : has(name)));
    if (this.switches.dataset.kinds === String(kinds)) return;
    this.switches.dataset.kinds = String(kinds);
    this.switches.replaceChildren(...kinds.map(([name, words]) => h("label", {},
      h("input", { type: "checkbox", checked: this.shown[name], onchange: (event) => {
        this.shown[name] = event.target.checked;
        this.draw();
        this.#drawSwitches();
      } }), words)));
  }

  #save() {
    const { range, change, interval } = this;
    return saveSeen(this.models, this.chosen(), range, change, interval).catch((failure) => {
      setText(this.error, `Loading the numbers failed: ${failure.message}`);
      this.error.hidden = false;
    });
  }

  #picture() {
    const panels = this.#charts.map(({ chart, models }) => ({
      canvas: chart.canvas,
      heading: this.#needsHeading(models) ? this.#named(models[0]) : "",
      entries: chart.curves.map((curve, index) => ({ label: curve.label, ...chart.mark(index) })),
    }));
    const name = this.models.map((model) => model.name).join("-and-");
    const named = this.models.map((model) => this.#named(model)).join(" and ");
    // The title of the curves can be the name of the job.
    const title = this.#title();
    return savePicture(`${name}-epoch-${this.lastEpoch}.png`, title.startsWith(`${named}, `) ? title : `${named}: ${title.toLowerCase()}`, panels);
  }
}
