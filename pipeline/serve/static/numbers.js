// The numbers behind the curves, as a table on the page and as files.

import { ask, jobPath } from "./api.js";
import { column, h, numbers, saveFile, table } from "./dom.js";
import { date, stamp } from "./dates.js";
import { count, said, time, valueOf } from "./format.js";

const ROWS = 200;
const MOST_ROWS = 2000;
const FILES = [["csv", "CSV"], ["parquet", "Parquet"], ["json", "JSON"]];

export class NumbersTable {
  #waits = 0;

  // `shown` returns the drawn series, the range of epochs, the lag of changes and the number of epochs in a mean.
  constructor(models, shown) {
    [this.models, this.shown] = [models, shown];
    this.body = h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Numbers behind the curve" });
    this.element = h("details", { ontoggle: () => this.show() }, h("summary", {}, "The same numbers as a table"), this.body);
  }

  close() {
    clearTimeout(this.#waits);
  }

  // Reload the table, at most once per second.
  refresh() {
    if (!this.element.open) return;
    this.#waits ||= setTimeout(() => {
      this.#waits = 0;
      this.show();
    }, 1000);
  }

  async show() {
    if (!this.element.open) return;
    const { series, range: [from, to], change, interval } = this.shown();
    try {
      const found = await Promise.all(this.models.map((model) =>
        ask(jobPath(model.name, "table"), { series: model.own(series).join(","), from, to, change, interval, limit: ROWS })));
      this.body.replaceChildren(...found.map((body, index) => this.#table(this.models[index], body.rows)));
    } catch (failure) {
      this.body.replaceChildren(h("p", { class: "problem" }, failure.message));
    }
  }

  #table(model, rows) {
    const ids = model.own(this.shown().series);
    const labels = new Map(model.detail.series.map((each) => [each.id, each.label]));
    const { calendar: starts } = model.detail;
    const { change, interval } = this.shown();
    const columns = [interval ? column("epochs") : numbers("epoch"), ...(starts ? [column("start")] : []), column("closed"), column("status"), numbers("devices"),
      ...ids.flatMap((id) => [numbers(labels.get(id) ?? id), numbers("95 % CI")])];
    const cells = (row) => [interval ? `${count(row.first_epoch)} to ${count(row.epoch)}` : count(row.epoch), ...(starts ? [date(model.detail, row.begins)] : []), time(row.closed_at), [row.window_status, ...row.flags].join(", "), count(row.contributors),
      ...ids.flatMap((id) => {
        const [value, low, high] = row.series[id] ?? [];
        const unit = change ? "change" : model.unitOf(id);
        const words = said(unit, valueOf(model.unitOf(id)), value, low, high, row.population);
        return [words.value, words.interval];
      })];
    return h("div", {}, this.models.length > 1 && h("h3", {}, model.name), table(`Estimates of ${model.name}`, columns, rows.map(cells)),
      rows.length === ROWS && h("p", { class: "note" }, `The latest ${ROWS} of the epochs shown; downloads contain all.`));
  }
}

// Save the visible epochs of all curves as CSV, with the published numbers.
export async function saveSeen(models, series, [from, to], change, interval) {
  const mean = interval ? `mean over ${interval} epochs` : "estimate";
  const epochs = interval ? ["first_epoch", "last_epoch"] : ["epoch"];
  const lines = [["job", ...epochs, "start", "series", change ? `change over ${change} ${interval ? `periods of ${interval} ` : ""}epochs` : mean, "ci95_low", "ci95_high", "window_status", "flags"]];
  for (const model of models) {
    const labels = new Map(model.detail.series.map((each) => [each.id, each.label]));
    const found = [];
    for (let last = to; last >= from;) {
      const { rows } = await ask(jobPath(model.name, "table"), { series: model.own(series).join(","), from, to: last, change, interval, limit: MOST_ROWS });
      found.push(...rows);
      last = rows.length < MOST_ROWS ? -1 : rows.at(-1).epoch - 1;
    }
    for (const row of found.reverse()) {
      for (const id of model.own(series)) {
        lines.push([model.name, ...(interval ? [row.first_epoch] : []), row.epoch, stamp(model.detail, row.begins), labels.get(id) ?? id, ...(row.series[id] ?? ["", "", ""]), row.window_status, row.flags.join(" ")]);
      }
    }
  }
  const quoted = (cell) => (/[",\n\r]/.test(cell) ? `"${String(cell).replaceAll('"', '""')}"` : String(cell));
  saveFile(`${models.map((model) => model.name).join("-and-")}-epochs-${from}-to-${to}.csv`, new Blob([lines.map((line) => `${line.map(quoted).join(",")}\n`).join("")], { type: "text/csv" }));
}

// Download links of a job.
export const downloads = (model, named) => h("p", {}, named ? `Download ${model.name}: ` : "Download ",
  FILES.map(([format, name]) => [h("a", { href: `${jobPath(model.name, "estimates")}?format=${format}`, download: `${model.name}.${format}` }, name), " "]));
