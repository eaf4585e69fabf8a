// The smaller cards of a job's page: largest items, quantiles, and a description of privacy.

import { ask, jobPath } from "./api.js";
import { h, setText, svg, table, column, numbers } from "./dom.js";
import { capital, chance, count, inPeriod, left, loss, said, tied, valueOf } from "./format.js";
import { trustPicture } from "./trust.js";

const TOP = 14;

// Requests data at most once per second, and again if an epoch closed in the meantime.
class Asking {
  #waits = 0;
  #last = 0;

  refresh() {
    if (this.#waits || !this.model.lastEpoch) return;
    const wait = Math.max(0, this.#last + 1000 - performance.now());
    this.#waits = setTimeout(async () => {
      this.#waits = 0;
      this.#last = performance.now();
      try {
        this.draw(await ask(jobPath(this.model.name, this.what), this.asked));
      } catch (failure) {
        setText(this.notes, failure.message);
      }
    }, wait);
  }

  close() {
    clearTimeout(this.#waits);
  }
}

// Heading of a card; includes the job's name if several jobs are shown.
const titled = (title, model, named) => (named ? `${title}: ${model.detail.title === model.name ? model.name : `${model.detail.title} (${model.name})`}` : title);

// A bar up to the value, and a line across the interval; `least` and `most` are the ends of the scale.
function bar(value, low, high, [least, most]) {
  const share = (of) => `${(100 * (Math.min(Math.max(of, least), most) - least)) / (most - least || 1)}%`;
  const zero = share(0);
  return svg("svg", { class: "bar", width: "100%", height: 16, "aria-hidden": "true" },
    svg("rect", { x: zero, y: 3, width: share(Math.max(0, value)), height: 10, rx: 2, class: "body" }),
    svg("line", { x1: share(low), x2: share(high), y1: 8, y2: 8, class: "whisker" }),
    [low, high].map((end) => svg("line", { x1: share(end), x2: share(end), y1: 4, y2: 12, class: "whisker" })));
}

// Range of possible ranks of an item; a single rank if the order is certain.
const places = (of) => (!of ? "–" : of[0] === of[1] ? count(of[0]) : `${count(of[0])} to ${count(of[1])}`);

export class TopCard extends Asking {
  what = "top";
  asked = { count: TOP };

  constructor(model, named) {
    super();
    this.model = model;
    this.format = valueOf("users");
    this.buckets = model.kind === "numbers";
    this.asked = { count: this.buckets ? 100 : TOP };
    this.body = h("div", { class: this.buckets ? "scroll" : "" });
    this.notes = h("p", { class: "note" });
    this.when = h("p", { class: "note" });
    this.element = h("section", { class: "card topitems", "aria-label": "Most frequent items" },
      h("div", { class: "card-head" }, h("h2", {}, titled(this.buckets ? `${capital(model.detail.people)} by value` : "Most frequent items", model, named)), this.when), this.body, this.notes);
  }

  draw(body) {
    const [least, most] = [0, Math.max(1, ...body.items.map((item) => item.ci95_high))];
    const ranked = body.items.some((item) => item.places);
    setText(this.when, body.epoch ? body.name : "");
    const groundTruth = body.items.some((item) => item.ground_truth !== null);
    const { people } = this.model.detail;
    const columns = [...(ranked ? [column("rank")] : []), column(this.buckets ? "value" : "item"), column(""), numbers(people), numbers("95 % CI"), ...(groundTruth ? [numbers("ground truth, not private")] : [])];
    const rows = body.items.map((item) => {
      const words = said("users", this.format, item.value, item.ci95_low, item.ci95_high, body.population);
      return [...(ranked ? [places(item.places)] : []), item.label, bar(item.value, item.ci95_low, item.ci95_high, [least, most]), words.value, words.interval, ...(groundTruth ? [this.format(item.ground_truth)] : [])];
    });
    const made = table("Most frequent items with 95 % intervals", columns, rows);
    made.classList.add("bars");
    made.classList.toggle("ranked", ranked);
    this.body.replaceChildren(body.items.length ? made : h("p", { class: "empty" }, "No estimate for this epoch."));
    const all = body.simultaneous_half_width;
    setText(this.notes, [all && `Simultaneous 95 % intervals of all items: ± ${this.format(all)}.`,
      body.detection_threshold && `Detection threshold: about ${this.format(body.detection_threshold)} ${this.model.detail.people}.`, ...body.notes].filter(Boolean).join(" "));
  }
}

export class QuantileCard extends Asking {
  what = "quantiles";
  asked = {};

  constructor(model, named) {
    super();
    this.model = model;
    this.format = valueOf("value");
    this.body = h("div");
    this.notes = h("p", { class: "note" });
    this.element = h("section", { class: "card quantiles", "aria-label": "Quantiles" }, h("div", { class: "card-head" }, h("h2", {}, titled("Quantiles", model, named)), this.notes), this.body);
  }

  draw(body) {
    setText(this.notes, body.epoch ? body.name : "");
    const held = body.quantiles.filter((each) => each.value !== null);
    const groundTruth = held.some((each) => each.ground_truth !== null);
    const rows = held.map((each) => {
      const words = said("value", this.format, each.value, each.ci95_low, each.ci95_high);
      return [`${count(100 * each.share)} % are below`, words.value, words.interval, ...(groundTruth ? [this.format(each.ground_truth)] : [])];
    });
    const columns = [column(this.model.detail.people), numbers("value"), numbers("95 % CI"), ...(groundTruth ? [numbers("ground truth, not private")] : [])];
    this.body.replaceChildren(held.length ? table("Quantiles of the last epoch", columns, rows) : h("p", { class: "empty" }, "No estimate for this epoch."));
  }
}

function account({ epsilon, delta }, spent) {
  if (epsilon === null) return "unlimited";
  const [loses, round] = spent ? [loss, Math.ceil] : [left, Math.floor];
  return `ε ${loses(epsilon)}${delta ? `, δ ${chance(delta, round)}` : ""}`;
}

export class PrivacyCard {
  constructor(model, named) {
    this.model = model;
    this.account = h("div", {});
    const { guarantee_description: words, trust } = model.detail;
    const promised = [h("div", { class: "words" }, words.map((each) => h("p", {}, tied(each)))), this.account];
    this.element = h("section", { class: "card privacy", "aria-label": `Privacy of ${model.name}` },
      h("div", { class: "card-head" }, h("h2", {}, titled("Trust and privacy guarantee", model, named))),
      trustPicture(trust),
      // Collapsed if several jobs are shown.
      named ? h("details", {}, h("summary", {}, "Privacy guarantee"), promised) : promised);
    this.show();
  }

  // Includes the charges of other jobs for the same population.
  show() {
    this.account.replaceChildren(...charged(this.model.detail));
  }
}

function charged({ budget, loss: { each }, guarantee: { unit }, period }) {
  const covered = each ? `each ${each === "epoch" ? period : each}` : unit === "value" ? "a value that never changes" : "the whole stream";
  const rows = [[`Guarantee of this job, for ${covered}`, budget.declared, true], ["Charged to this population so far", budget.charged, true],
    ...(budget.filtered === null ? [] : [["With advanced composition (privacy filter)", { epsilon: budget.filtered }, true]]),
    ["Remaining", budget.remaining, false]];
  return [
    h("dl", { class: "account" }, rows.map(([name, of, spent]) => h("div", {}, h("dt", {}, name), h("dd", {}, of ? account(of, spent) : spent || !budget.periods.length ? "no limit is set" : inPeriod(budget.periods[0]))))),
    ...budget.description.map((each) => h("p", { class: "note" }, tied(each))),
  ];
}
