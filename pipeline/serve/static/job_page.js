// The page of one job, or of several jobs side by side.

import { Breakdowns, measureOf, totals } from "./breakdowns.js";
import { PrivacyCard, QuantileCard, TopCard } from "./cards.js";
import { CurvesCard } from "./curves_card.js";
import { h } from "./dom.js";
import { Items } from "./items.js";
import { Operators } from "./operators.js";
import { Overview, tilesOf } from "./overview.js";
import { PipelineCard } from "./pipeline.js";
import { MOST_SERIES, view } from "./view.js";

const TABS = [["results", "Results"], ["operators", "For operators"]];

export class JobPage {
  // `theme` returns the current theme; `begun` is called when the first estimate arrives.
  constructor(models, theme, begun) {
    this.models = models;
    this.begun = begun;
    const two = models.length > 1;
    const [first] = models;
    this.parts = models.map((model) => ({
      model,
      overview: new Overview(model, two, tilesOf(models)),
      privacy: new PrivacyCard(model, two),
      pipeline: new PipelineCard(two ? `Pipeline of ${model.name}` : "Pipeline", Boolean(model.detail.replay_of)),
      operators: new Operators(model),
    }));
    this.curves = new CurvesCard(models, theme, () => this.chosen);
    // Measures have no order by size: they are chosen, and shown by group.
    const { measures, by } = first.detail;
    this.measured = measures.length > 0 && first.kind !== "numbers";
    this.breakdowns = this.measured && !two && (by.length || first.detail.ratios.length) ? new Breakdowns(first) : null;
    this.measure = this.measured && measures.length > 1 ? h("label", { class: "measure" }, "Measure ", h("select", { onchange: ({ target }) => view.set({ measure: target.value, series: [], pair: "" }) },
      measures.map(({ name, label }) => h("option", { value: name, selected: name === measureOf(first.detail).name }, `${name}: ${label}`)))) : null;
    this.items = this.measured || first.kind === "value" || first.detail.series.length < 2 ? null : new Items(first, () => this.chosen);
    this.asking = [
      ...(first.kind === "numbers" ? models.map((model) => new QuantileCard(model, two)) : []),
      ...(first.kind === "value" || this.measured ? [] : models.filter((model) => model.kind !== "value").map((model) => new TopCard(model, two))),
    ];
    this.#build(two);
    this.items?.addEventListener("choose", (event) => view.set(event.detail));
    this.curves.element.addEventListener("drawn", (event) => {
      if (!this.items) return;
      this.items.marks = event.detail;
      this.items.redraw();
    });
    this.curves.element.addEventListener("choose", (event) => this.breakdowns?.choose(event.detail));
    for (const part of this.parts) this.#follow(part);
    this.#tab();
  }

  // Ids of the drawn series: those in the page address, or the server's default.
  get chosen() {
    const [first] = this.models;
    const own = view.state.series.length || !this.measured ? first.own(view.state.series) : totals(first).map(({ id }) => id);
    return own.slice(0, MOST_SERIES);
  }

  async load() {
    for (const each of this.asking) each.refresh();
    await Promise.all([this.curves.load(), this.items?.load(), this.breakdowns?.load()]);
  }

  close() {
    this.curves.close();
    this.items?.close();
    this.breakdowns?.close();
    for (const each of this.asking) each.close();
    for (const { model } of this.parts) model.close();
  }

  // The page address changed, but not its jobs.
  change(before) {
    const { state } = view;
    if (state.tab !== before.tab) this.#tab();
    if (state.measure !== before.measure && this.measure) this.measure.querySelector("select").value = measureOf(this.models[0].detail).name;
    if (["measure", "by", "where", "epoch", "show", "pair"].some((name) => state[name] !== before[name])) this.breakdowns?.load();
    if (String(state.series) !== String(before.series) || state.measure !== before.measure || state.range !== before.range || state.change !== before.change || state.interval !== before.interval || state.theme !== before.theme) this.curves.load();
    else if (state.epoch !== before.epoch) this.curves.read();
    if (state.crowd === before.crowd) this.items?.redraw();
    else this.items?.change();
  }

  restyle() {
    this.curves.load();
    this.items?.redraw();
  }

  #build(two) {
    const results = h("div", { id: "results", role: "tabpanel", "aria-labelledby": "tab-results", class: "panel-page" },
      this.measure,
      h("div", { class: this.items ? "with-items" : "" }, this.curves.element, this.items?.element),
      this.breakdowns?.element,
      this.asking.length > 0 && h("div", { class: this.asking.length > 1 ? "halves" : "" }, this.asking.map((each) => each.element)),
      h("div", { class: "stack" }, this.parts.map((part) => part.privacy.element)));
    const operators = h("div", { id: "operators", role: "tabpanel", "aria-labelledby": "tab-operators", class: "panel-page" },
      this.parts.map((part) => [part.pipeline.element, part.operators.element]));
    this.panels = { results, operators };
    this.tabs = h("div", { class: "tabs", role: "tablist", "aria-label": "Parts of the page", onkeydown: (event) => this.#press(event) },
      TABS.map(([tab, name]) => h("button", { type: "button", role: "tab", id: `tab-${tab}`, "aria-controls": tab, onclick: () => view.set({ tab }) }, name)));
    const whole = h("a", { class: "whole", href: view.href({ embed: "" }), target: "_blank", rel: "noopener" }, "Trust, privacy guarantee, and all numbers");
    this.element = h("div", { class: "page" },
      h("div", { class: two ? "overviews" : "" }, this.parts.map((part) => part.overview.element)), this.tabs, results, operators, view.state.embed && whole);
  }

  #tab() {
    for (const button of this.tabs.children) {
      const own = button.id === `tab-${view.state.tab}`;
      button.setAttribute("aria-selected", own);
      button.tabIndex = own ? 0 : -1;
    }
    for (const [name, panel] of Object.entries(this.panels)) panel.hidden = name !== view.state.tab;
    for (const part of this.parts) this.#pipeline(part);
  }

  #press(event) {
    if (!["ArrowLeft", "ArrowRight"].includes(event.key)) return;
    const other = TABS.find(([tab]) => tab !== view.state.tab)[0];
    view.set({ tab: other });
    this.tabs.querySelector(`#tab-${other}`).focus();
    event.preventDefault();
  }

  #follow(part) {
    const { model, overview, privacy } = part;
    for (const type of ["hello", "jobs"]) {
      model.addEventListener(type, () => {
        overview.show();
        if (model.detail.phase !== part.phase) this.#pipeline(part);
      });
    }
    model.addEventListener("budget", () => {
      overview.show();
      privacy.show();
    });
    model.addEventListener("pipeline", () => this.#pipeline(part));
    model.addEventListener("begun", () => this.begun());
    model.addEventListener("smoothed", () => this.curves.refresh());
    model.addEventListener("epoch", ({ detail: message }) => {
      this.#catch(model, message);
      if (model === this.models[0]) this.items?.append(message);
      this.breakdowns?.refresh();
      for (const each of this.asking) if (each.model === model) each.refresh();
    });
  }

  // After a reconnection, many epochs can arrive at once: they are drawn together, in the next frame.
  #catch(model, message) {
    this.curves.append(model, message);
    if (this.frame) return;
    const start = performance.now();
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      this.curves.draw();
      for (const { overview } of this.parts) overview.show();
      // The drawing is visible when the first task after the frame starts.
      requestAnimationFrame(() => setTimeout(() => performance.measure("dpstream update", { start })));
    });
  }

  #pipeline(part) {
    const { model, pipeline, operators } = part;
    part.phase = model.detail.phase;
    if (view.state.tab !== "operators") return;
    operators.show();
    pipeline.show(model.pipeline, model.detail.phase);
  }
}
