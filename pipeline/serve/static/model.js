// A job as the page knows it: what the server said first, kept up to date by its WebSocket.

import { ask, jobPath } from "./api.js";
import { Connection } from "./connection.js";

const RECENT = 500;

export class Model extends EventTarget {
  pipeline = null;
  // Epochs that closed while a curve was on its way.
  recent = [];

  // `detail` as of /api/jobs/J, `run` as of /api/jobs.
  constructor(detail, run) {
    super();
    this.detail = detail;
    this.name = detail.job;
    // The deployment shown; if it is replaced, the server requests a reload.
    const { deployment } = detail;
    this.connection = new Connection(run, () => ({ job: this.name, after: this.detail.last_epoch ?? 0, deployment }));
    this.connection.addEventListener("message", (event) => this.#hear(event.detail));
    for (const type of ["lost", "connected"]) {
      this.connection.addEventListener(type, () => this.dispatchEvent(new Event(type)));
    }
  }

  static async load(name, run) {
    return new Model(await ask(jobPath(name)), run);
  }

  close() {
    this.connection.close();
  }

  get lastEpoch() {
    return this.detail.last_epoch ?? 0;
  }

  get kind() {
    return this.detail.domain.kind;
  }

  // Those of some series that this job has; if it has none of them, what the server would draw.
  own(ids) {
    const own = ids.filter((id) => this.detail.series.some((each) => each.id === id));
    return own.length ? own : this.detail.chosen;
  }

  // Unit of a series: of jobs over numbers some are users, and some are values of the domain.
  unitOf(id) {
    return this.detail.series.find((each) => each.id === id)?.unit ?? "users";
  }

  // Whether values of the domain mean the same as another job's: their buckets are the same.
  measuresAs(other) {
    const ids = (model) => String(model.detail.series.map((each) => each.id));
    return ids(this) === ids(other);
  }

  // Unit of the headline.
  get unit() {
    if (this.detail.domain.measure) return "percent";
    return this.kind === "numbers" ? "value" : "users";
  }

  #hear(message) {
    if (message.type === "hello" || message.type === "jobs") {
      const summary = message.jobs.find((each) => each.job === this.name);
      // The budget of a summary is a text; its account comes by itself.
      if (summary) Object.assign(this.detail, { ...summary, budget: this.detail.budget, last_epoch: this.detail.last_epoch });
    } else if (message.type === "epoch") {
      if (message.epoch <= this.lastEpoch) return;
      const { epoch: last_epoch, closed_at, window_status, flags, headline, estimate, sentence, sentence_epoch } = message;
      if (this.recent.push(message) > RECENT) this.recent.shift();
      const begun = !this.lastEpoch;
      Object.assign(this.detail, { last_epoch, closed_at, window_status, flags, headline, estimate, sentence, sentence_epoch });
      // Which items there are is known from the first estimate on.
      if (begun && !this.detail.chosen.length) this.dispatchEvent(new Event("begun"));
    } else if (message.type === "budget") {
      this.detail.budget = message.budget;
    } else if (message.type === "pipeline") {
      this.pipeline = message;
    }
    this.dispatchEvent(new CustomEvent(message.type, { detail: message }));
  }
}
