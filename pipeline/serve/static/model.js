// State of a job on the page: loaded once, then updated by the WebSocket.

import { ask, jobPath } from "./api.js";
import { Connection } from "./connection.js";

const RECENT = 500;

export class Model extends EventTarget {
  pipeline = null;
  // Recently closed epochs, which a requested curve may lack.
  recent = [];

  // `detail` is the response of /api/jobs/J; `run` is from /api/jobs.
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

  // The series among `ids` that this job has, or else the server's default.
  own(ids) {
    const own = ids.filter((id) => this.detail.series.some((each) => each.id === id));
    return own.length ? own : this.detail.chosen;
  }

  // Unit of a series: in jobs over numbers, some are user counts, and some are domain values.
  unitOf(id) {
    return this.detail.series.find((each) => each.id === id)?.unit ?? "users";
  }

  // Whether domain values are comparable with those of another job, which needs the same buckets.
  measuresAs(other) {
    const ids = (model) => String(model.detail.series.map((each) => each.id));
    return ids(this) === ids(other);
  }

  // Unit of the headline.
  get unit() {
    return this.kind === "numbers" ? "value" : "users";
  }

  #hear(message) {
    if (message.type === "hello" || message.type === "jobs") {
      const summary = message.jobs.find((each) => each.job === this.name);
      // A summary has the budget only as text; its numbers arrive in a separate message.
      if (summary) Object.assign(this.detail, { ...summary, budget: this.detail.budget, last_epoch: this.detail.last_epoch });
    } else if (message.type === "epoch") {
      if (message.epoch <= this.lastEpoch) return;
      const { epoch: last_epoch, closed_at, window_status, flags, headline, estimate, sentence, sentence_epoch } = message;
      if (this.recent.push(message) > RECENT) this.recent.shift();
      const begun = !this.lastEpoch;
      Object.assign(this.detail, { last_epoch, closed_at, window_status, flags, headline, estimate, sentence, sentence_epoch });
      // Items may be unknown until the first estimate.
      if (begun && !this.detail.chosen.length) this.dispatchEvent(new Event("begun"));
    } else if (message.type === "budget") {
      this.detail.budget = message.budget;
    } else if (message.type === "pipeline") {
      this.pipeline = message;
    }
    this.dispatchEvent(new CustomEvent(message.type, { detail: message }));
  }
}
