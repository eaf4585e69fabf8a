// A measure by group: small charts with one axis and a table, cohorts, ratios, and the difference of two groups.

import { ask, jobPath } from "./api.js";
import { Curve } from "./curve.js";
import { column, h, numbers, setText, table } from "./dom.js";
import { epochWords } from "./dates.js";
import { capital, count, said, valueOf } from "./format.js";
import { smallCurve } from "./small_curve.js";
import { view } from "./view.js";

const MOST_GROUPS = 12;
const COLUMNS = 150;
const MOST_ROWS = 2000;
const MOST_SINCE = 26;
const DATE = /^\d{4}(-\d{2}){1,2}$/;
const OTHER_VIEWS = [["difference", "Difference"], ["cohorts", "Cohorts"], ["ratios", "Ratios"]];

const percent = (share) => `${(100 * share).toFixed(1).replace("-", "−")} %`;
const pairs = (where) => where.split(",").filter(Boolean).map((each) => each.split(/=(.*)/s).slice(0, 2));
const written = (labels) => Object.entries(labels).map(([name, value]) => `${name}=${value}`).join(",");

const known = (value) => value !== null && value !== undefined;
// Whether a group has no users, such as the other values of an attribute that declares all.
const empty = (body) => body?.population?.at(-1) === 0;

// The series of the total of the measure in the address, by default of the first one.
export function totals({ detail }) {
  const { name } = measureOf(detail);
  return detail.series.filter((each) => each.measure === name && each.answer !== "no" && !Object.keys(each.labels).length);
}

export const measureOf = ({ measures }) => measures.find(({ name }) => name === view.state.measure) ?? measures[0];

export class Breakdowns {
  #loading = null;
  #waits = 0;

  constructor(model) {
    this.model = model;
    const { by } = model.detail;
    const dated = by.filter(({ attributes: [name], values }) => values[name].some((value) => DATE.test(value))).map(({ attributes }) => attributes[0]);
    this.cohorts = [...new Set(dated)];
    const able = { difference: by.length, cohorts: this.cohorts.length, ratios: model.detail.ratios.length };
    const others = OTHER_VIEWS.filter(([show]) => able[show]);
    this.tabs = h("div", { class: "tabs", role: "tablist", "aria-label": "Breakdowns" },
      by.map(({ attributes }) => this.#button(`By ${attributes.join(" and ")}`, attributes.join(","), "", () => view.set({ by: attributes.join(","), where: "", show: "" }))),
      others.map(([show, name]) => this.#button(name, "", show, () => view.set({ show, where: "" }))));
    this.where = h("p", { class: "where", hidden: true });
    this.problem = h("p", { class: "problem", role: "alert", hidden: true });
    this.body = h("div", { class: "breakdown", role: "tabpanel" });
    const { period } = model.detail;
    const step = (name, words, epoch) => h("button", { type: "button", "aria-label": words, onclick: () => this.choose(epoch()) }, name);
    this.steps = [step("‹", `Previous ${period}`, () => this.epoch - 1), step("›", `Next ${period}`, () => this.epoch + 1), step("Latest", `Latest ${period}`, () => model.lastEpoch)];
    this.heading = h("h3", { "aria-live": "polite" });
    this.picker = h("div", { class: "epochs", role: "group", "aria-label": `${capital(period)} of the table`, hidden: true }, h("div", { class: "buttons" }, this.steps), this.heading,
      h("p", { class: "note" }, `A click in the chart above chooses a ${period}, too.`));
    this.rows = h("div", { class: "scroll all rows" });
    this.element = h("section", { class: "card breakdowns", "aria-label": "Breakdowns" }, this.tabs, this.where, this.problem, this.body, this.picker, this.rows);
  }

  close() {
    this.#loading?.abort();
    clearTimeout(this.#waits);
  }

  // Load again, at most once per second.
  refresh() {
    this.#waits ||= setTimeout(() => {
      this.#waits = 0;
      this.load();
    }, 1000);
  }

  // The breakdown in the address, by default the first one, and the values that all its groups have.
  get shown() {
    const { by } = this.model.detail;
    const where = pairs(view.state.where);
    const names = [...new Set([...view.state.by.split(",").filter(Boolean), ...where.map(([name]) => name)])];
    return { where, breakdown: by.find(({ attributes }) => attributes.length === names.length && attributes.every((each) => names.includes(each))) ?? by[0] };
  }

  // What is shown in place of groups; a job without breakdowns has only ratios.
  get show() {
    return view.state.show || (this.model.detail.by.length ? "" : "ratios");
  }

  async load() {
    this.#loading?.abort();
    const { signal } = (this.#loading = new AbortController());
    this.#mark();
    try {
      const other = { difference: () => this.#difference(signal), cohorts: () => this.#triangle(signal), ratios: () => this.#ratios(signal) }[this.show];
      const { drawn, rows } = other ? { drawn: await other() } : await this.#groups(signal);
      if (signal.aborted) return;
      this.body.replaceChildren(...drawn);
      this.rows.replaceChildren(...(rows ? [rows.table] : []));
      this.picker.hidden = !rows;
      if (rows) this.#pick(rows.when);
      this.problem.hidden = true;
    } catch (failure) {
      if (failure.name === "AbortError") return;
      setText(this.problem, failure.message);
      this.problem.hidden = false;
    }
  }

  // Show the groups of an epoch; those of the latest one are updated.
  choose(epoch) {
    if (!this.show) view.set({ epoch: epoch < this.model.lastEpoch ? String(epoch) : "" });
  }

  // Epoch of the table.
  get epoch() {
    return Number(view.state.epoch) || this.model.lastEpoch;
  }

  #button(name, by, show, onclick) {
    return h("button", { type: "button", role: "tab", "data-by": by, "data-show": show, onclick }, name);
  }

  #mark() {
    const { show, shown: { breakdown, where } } = this;
    for (const each of this.tabs.children) {
      each.setAttribute("aria-selected", show ? each.dataset.show === show : each.dataset.by === breakdown?.attributes.join(","));
    }
    this.where.hidden = Boolean(show) || !where.length;
    this.where.replaceChildren("Only ", where.map(([name, value]) => `${name} ${value}`).join(" and "), " ",
      h("button", { type: "button", class: "quiet", onclick: () => view.set({ by: where.map(([name]) => name).join(","), where: "" }) }, "Show all"));
  }

  // The series of a breakdown of the measure.
  #series({ attributes }, where = []) {
    const { name } = measureOf(this.model.detail);
    return this.model.detail.series.filter((each) => each.measure === name && each.answer !== "no"
      && Object.keys(each.labels).length === attributes.length && attributes.every((attribute) => attribute in each.labels)
      && where.every(([attribute, value]) => each.labels[attribute] === value));
  }

  async #groups(signal) {
    const { breakdown, where } = this.shown;
    const named = this.#series(breakdown, where);
    // Earlier, a value that the running job named counted as other.
    const at = (epoch) => named.filter(({ first_epoch: first = 1 }) => first <= epoch);
    const path = (what) => jobPath(this.model.name, what);
    const { detail } = this.model;
    const asked = { measure: measureOf(detail).name, by: breakdown.attributes.filter((name) => !where.some(([each]) => each === name)).join(","), where: view.state.where };
    const rowOf = async (epoch) => (await ask(path("table"), { ...asked, from: epoch, to: epoch, limit: 1 }, signal)).rows[0];
    const latest = await rowOf("");
    if (!latest) return { drawn: [h("p", { class: "empty" }, "No estimate yet; this page updates automatically.")] };
    const sorted = ({ epoch, series }) => at(epoch).sort((one, other) => (series[other.id]?.[0] ?? -Infinity) - (series[one.id]?.[0] ?? -Infinity));
    const ids = sorted(latest).slice(0, MOST_GROUPS).map(({ id }) => id).join(",");
    const { series } = await ask(path("curve"), { series: ids, columns: COLUMNS }, signal);
    const drawn = [this.#charts(series.filter((body) => !empty(body)), where)];
    const { epoch } = view.state;
    const row = epoch ? await rowOf(epoch) : latest;
    if (!row) return { drawn, rows: { when: epochWords(detail, Number(epoch)), table: h("p", { class: "empty" }, `This page has no ${detail.period} ${epoch}.`) } };
    // Groups grow as users enroll: shares are of the group at that epoch.
    const then = epoch ? (await ask(path("curve"), { series: ids, from: epoch, to: epoch }, signal)).series : series;
    const when = epochWords(detail, row.epoch, row.begins);
    return { drawn, rows: { when, table: this.#table(sorted(row), row, new Map(then.map((body) => [body.id, body])), breakdown, where, when) } };
  }

  #pick(when) {
    setText(this.heading, when);
    const able = [this.epoch > (this.model.detail.first_epoch ?? 1), this.epoch < this.model.lastEpoch, Boolean(view.state.epoch)];
    this.steps.forEach((button, index) => {
      // A disabled button would lose the focus.
      if (!able[index] && document.activeElement === button) this.steps[able.indexOf(true)]?.focus();
      button.disabled = !able[index];
    });
  }

  // Charts of equal height on one axis, so that bands can be compared.
  #charts(series, where) {
    const { detail } = this.model;
    const { unit, label } = measureOf(detail);
    const format = valueOf(unit);
    const extents = series.map((body) => new Curve(body, "")).map((curve) => curve.extent(curve.epochs[0], curve.lastEpoch)).flat().filter(Number.isFinite);
    const ends = extents.length ? [unit === "users" ? 0 : Math.min(...extents), Math.max(...extents)] : [0, 1];
    const figures = series.map((body) => {
      const last = body.value.length - 1;
      const words = said(unit, format, body.value[last], body.own_ci95_low[last], body.own_ci95_high[last], body.population?.[last]);
      const known = body.value.some((each) => each !== null);
      return h("figure", { class: "group" },
        h("figcaption", {}, h("span", {}, this.#named(body, where)), h("strong", {}, known ? words.value : "too few devices")),
        known && smallCurve(body, detail, { ends }));
    });
    return h("div", {}, h("div", { class: "groups" }, figures),
      h("p", { class: "note" }, `${capital(label)}, with 95 % intervals and the number of the latest ${detail.period}. All charts have the same axis, from ${format(ends[0])} to ${format(ends[1])}.`));
  }

  #named({ labels, answer }, where) {
    const own = Object.entries(labels).filter(([name]) => !where.some(([each]) => each === name)).map(([, each]) => each);
    return [...(answer ? [answer] : []), ...own].join(", ");
  }

  #table(sorted, row, curves, breakdown, where, when) {
    const { detail } = this.model;
    const { unit } = measureOf(detail);
    const format = valueOf(unit);
    // Sizes of public groups are known; of private ones, only the share of all users follows.
    const shares = unit === "users" && breakdown.public;
    const truths = row.ground_truth;
    const rows = sorted.filter(({ id }) => !empty(curves.get(id))).map((each) => {
      const [value, low, high] = row.series[each.id] ?? [];
      const size = curves.get(each.id)?.population?.at(-1) ?? row.population;
      const words = said(unit, format, value, low, high, size);
      const deeper = this.#deeper(each);
      const name = this.#named(each, where);
      const button = deeper && h("button", { type: "button", class: "drill", "aria-label": `${name} by ${deeper.by}`, onclick: () => view.set(deeper) }, name);
      const share = curves.has(each.id) && value !== undefined && size && !words.mayBeNone ? percent(Math.min(Math.max(value / size, 0), 1)) : "–";
      return [button || name, value === undefined ? "too few devices" : words.value, words.mayBeNone ? "" : words.interval, ...(shares ? [share] : []), ...(truths ? [known(truths[each.id]) ? format(truths[each.id]) : "–"] : [])];
    });
    const by = breakdown.attributes.filter((name) => !where.some(([each]) => each === name)).join(", ") || "group";
    const columns = [column(by), numbers(unit === "users" ? detail.people : "mean"), numbers("95 % CI"), ...(shares ? [numbers("% of group's users")] : []), ...(truths ? [numbers("ground truth, not private")] : [])];
    return table(`${measureOf(detail).label} by ${by}, ${when}`, columns, rows);
  }

  // The view of the next breakdown that contains a group.
  #deeper({ labels }) {
    const names = Object.keys(labels);
    const next = this.model.detail.by.find(({ attributes }) => attributes.length > names.length && names.every((name) => attributes.includes(name)));
    return next && { by: next.attributes.filter((name) => !names.includes(name)).join(","), where: written(labels) };
  }

  async #difference(signal) {
    const { detail } = this.model;
    const every = detail.by.flatMap((breakdown) => this.#series(breakdown));
    const [first, second] = view.state.pair.split(",").filter((id) => every.some((each) => each.id === id)).concat(every.map(({ id }) => id)).filter((id, index, all) => all.indexOf(id) === index);
    if (!second) return [h("p", { class: "empty" }, "A difference requires two groups.")];
    const choose = (label, id, change) => h("select", { "aria-label": label, onchange: ({ target }) => view.set({ pair: change(target.value).join(",") }) },
      every.map((each) => h("option", { value: each.id, selected: each.id === id }, `${Object.keys(each.labels).join(", ")} ${this.#named(each, [])}`)));
    const chosen = h("p", { class: "pair" }, choose("First group", first, (id) => [id, id === second ? first : second]), " minus ", choose("Second group", second, (id) => [id === first ? second : first, id]));
    const body = await ask(jobPath(this.model.name, "difference"), { first, second, limit: MOST_ROWS }, signal);
    const points = measureOf(detail).unit === "users";
    return [chosen, ...this.#line(body, { factor: points ? 100 : 1, unit: points ? "percent" : "value", zero: true }),
      h("p", { class: "note" }, `${points ? "In points: % of each group's own users" : "In the unit of the mean"}, with 95 % intervals. The dashed line is 0: no difference.`)];
  }

  // The ratios that the job file declares, among all users.
  async #ratios(signal) {
    const { ratios, series } = this.model.detail;
    const total = (name) => series.find((each) => each.measure === name && each.answer === null && !Object.keys(each.labels).length)?.id;
    const found = await Promise.all(ratios.map(({ numerator, denominator }) =>
      ask(jobPath(this.model.name, "ratio"), { numerator: total(numerator), denominator: total(denominator), limit: MOST_ROWS }, signal)));
    return found.flatMap((body, index) => [h("h3", {}, `${ratios[index].name}: ${ratios[index].numerator} / ${ratios[index].denominator}`), ...this.#line(body, { factor: 1, unit: "value" })]);
  }

  // A sentence, and a chart of a number with its interval.
  #line({ name, rows, sentence }, { factor, unit, zero = false }) {
    const values = (key) => rows.map((row) => (row[key] === undefined ? null : factor * row[key]));
    const curve = { id: name, label: name, unit, population: null, epochs: rows.map(({ epoch }) => epoch), begins: rows.map(({ begins }) => begins),
      value: values("estimate"), ci95_low: values("ci95_low"), ci95_high: values("ci95_high") };
    const known = [...curve.ci95_low, ...curve.ci95_high].filter((value) => value !== null);
    const words = h("p", {}, sentence ?? "No estimate yet; this page updates automatically.");
    if (!known.length) return [words];
    const ends = [Math.min(...known, zero ? 0 : Infinity), Math.max(...known, zero ? 0 : -Infinity)];
    const format = valueOf(unit);
    return [words, h("figure", { class: "difference" }, smallCurve(curve, this.model.detail, { ends, zero })), h("p", { class: "note" }, `From ${format(ends[0])} to ${format(ends[1])}.`)];
  }

  // Rows are cohorts, columns the epochs since their first one; darker cells are larger shares.
  async #triangle(signal) {
    const { detail } = this.model;
    const attribute = this.cohorts.find((name) => view.state.by.split(",").includes(name)) ?? this.cohorts[0];
    const { rows } = await ask(jobPath(this.model.name, "cohorts"), { attribute, measure: measureOf(detail).name }, signal);
    const names = [...new Set(rows.map(({ cohort }) => cohort))];
    const last = Math.min(MOST_SINCE - 1, Math.max(0, ...rows.map(({ since }) => since)));
    const columns = [column(attribute), numbers(detail.people), ...Array.from({ length: last + 1 }, (_, since) => numbers(String(since)))];
    const cells = names.map((name) => {
      const own = rows.filter(({ cohort }) => cohort === name);
      const shares = Array.from({ length: last + 1 }, (_, since) => this.#share(own.find((each) => each.since === since)));
      return [name, count(own.at(-1).users), ...shares];
    });
    const words = `${capital(measureOf(detail).label)}, in % of the cohort, by ${detail.period}s since its first ${detail.period}. Gray: known to no better than 10 points on either side.`;
    return [rows.length ? h("div", { class: "scroll all cohorts" }, table(words, columns, cells)) : h("p", { class: "empty" }, "No cohort has started yet."), h("p", { class: "note" }, words)];
  }

  #share(cell) {
    if (!cell) return "";
    if (cell.estimate === null) return h("span", { title: cell.refused }, "–");
    const title = `${percent(cell.ci95_low)} to ${percent(cell.ci95_high)}`;
    return h("span", { class: cell.wide ? "cell wide" : "cell", title, style: { "--share": `${Math.round(60 * cell.estimate)}%` } }, (100 * cell.estimate).toFixed(cell.wide ? 0 : 1));
  }
}
