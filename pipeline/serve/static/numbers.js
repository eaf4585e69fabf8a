// The numbers behind the curves: as a table on the page, and as files.

import { ask, jobPath } from "./api.js";
import { column, h, numbers, table } from "./dom.js";
import { beginning, count, interval, time, valueOf } from "./format.js";

const ROWS = 200;
const FILES = [["csv", "CSV"], ["parquet", "Parquet"], ["json", "JSON"]];

export class NumbersTable {
  #waits = 0;

  // `shown` says which series are drawn, from which epoch to which, and the change since how many epochs.
  constructor(models, shown) {
    [this.models, this.shown] = [models, shown];
    this.body = h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Numbers behind the curve" });
    this.element = h("details", { ontoggle: () => this.show() }, h("summary", {}, "The same numbers as a table"), this.body);
  }

  close() {
    clearTimeout(this.#waits);
  }

  // Show them anew, once a second at most.
  refresh() {
    if (!this.element.open) return;
    this.#waits ||= setTimeout(() => {
      this.#waits = 0;
      this.show();
    }, 1000);
  }

  async show() {
    if (!this.element.open) return;
    const { series, range: [from, to], change } = this.shown();
    try {
      const found = await Promise.all(this.models.map((model) =>
        ask(jobPath(model.name, "table"), { series: model.own(series).join(","), from, to, change, limit: ROWS })));
      this.body.replaceChildren(...found.map((body, index) => this.#table(this.models[index], body.rows)));
    } catch (failure) {
      this.body.replaceChildren(h("p", { class: "problem" }, failure.message));
    }
  }

  #table(model, rows) {
    const ids = model.own(this.shown().series);
    const labels = new Map(model.detail.series.map((each) => [each.id, each.label]));
    const { epoch_starts: starts } = model.detail;
    const columns = [numbers("epoch"), ...(starts ? [column("begins")] : []), column("closed"), column("fate"), numbers("devices"),
      ...ids.flatMap((id) => [numbers(labels.get(id) ?? id), numbers("95 %")])];
    const cells = (row) => [count(row.epoch), ...(starts ? [beginning(starts, row.epoch)] : []), time(row.closed_at), [row.fate, ...row.flags].join(", "), count(row.contributors),
      ...ids.flatMap((id) => {
        const [value, low, high] = row.series[id] ?? [];
        const format = valueOf(model.unitOf(id));
        return [format(value), interval(format, low, high)];
      })];
    return h("div", {}, this.models.length > 1 && h("h3", {}, model.name), table(`Estimates of ${model.name}`, columns, rows.map(cells)),
      rows.length === ROWS && h("p", { class: "note" }, `The latest ${ROWS} of the epochs shown; downloads hold them all.`));
  }
}

// Links to the files of a job.
export const downloads = (model, named) => h("p", {}, named ? `Download ${model.name}: ` : "Download ",
  FILES.map(([format, name]) => [h("a", { href: `${jobPath(model.name, "estimates")}?format=${format}`, download: `${model.name}.${format}` }, name), " "]));
