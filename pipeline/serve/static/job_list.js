// The list of all jobs.

import { ask } from "./api.js";
import { h } from "./dom.js";
import { capital, lossOf, phaseOf, plural, progress, tied, time } from "./format.js";
import { smallCurve } from "./small_curve.js";
import { view } from "./view.js";

const EPOCHS = 100;
const PAUSE = 2000;
const MOST_PAIRS = 12;

export class JobList {
  #curves = {};
  #drawn = "";
  #waits = 0;
  #closed = false;

  constructor(jobs) {
    this.body = h("div", { class: "jobs" });
    this.pairs = h("p", { class: "pairs" });
    this.element = h("section", { "aria-labelledby": "jobs-title" }, h("h1", { id: "jobs-title" }, "Jobs"), this.body, this.pairs);
    this.show(jobs);
  }

  close() {
    this.#closed = true;
    clearTimeout(this.#waits);
  }

  show(jobs) {
    this.jobs = jobs;
    this.#draw();
    if (this.#epochs() !== this.#drawn) this.#refresh(0);
  }

  #draw() {
    const { jobs } = this;
    const focused = document.activeElement?.getAttribute?.("href");
    this.body.replaceChildren(...(jobs.length ? jobs.map((job) => card(job, this.#curves[job.job])) : [h("p", { class: "sentence" }, "No jobs yet. Deploy one with ", h("code", {}, "dpstream deploy"), " or ", h("code", {}, "dpstream up"), "; this page updates automatically.")]));
    const found = pairs(jobs);
    this.pairs.hidden = !found.length;
    this.pairs.replaceChildren(...found.slice(0, MOST_PAIRS).map(([one, other]) =>
      h("a", { href: view.href({ job: one.job, with: other.job }) }, `Compare ${one.job} with ${other.job}`)));
    if (focused) [...this.element.querySelectorAll("a")].find((link) => link.getAttribute("href") === focused)?.focus();
  }

  // Deployments and last epochs of the jobs, to detect outdated curves.
  #epochs() {
    return JSON.stringify(this.jobs.map((job) => [job.deployment, job.last_epoch]));
  }

  // Request all curves at once, with a pause between requests.
  #refresh(wait) {
    this.#waits ||= setTimeout(async () => {
      const drawn = this.#epochs();
      const body = await ask("/api/recent", { epochs: EPOCHS }).catch(() => null);
      this.#waits = 0;
      if (this.#closed) return;
      if (body) {
        [this.#curves, this.#drawn] = [body.jobs, drawn];
        this.#draw();
      }
      if (this.#epochs() !== this.#drawn) this.#refresh(PAUSE);
    }, wait);
  }
}

function card(job, curve) {
  const fact = (name, value, note) => h("div", {}, h("dt", {}, name), h("dd", {}, value), note && h("dd", { class: "note" }, note));
  return h("article", { class: "card job" },
    h("h2", {}, h("a", { href: view.href({ job: job.job }) }, job.title), " ", h("small", {}, [job.title !== job.job && job.job, job.replay_of && `replay of ${job.replay_of}`].filter(Boolean).join(", "))),
    h("p", { class: "headline" }, tied(job.sentence.join(""))),
    curve?.value.some((value) => value !== null) && h("figure", {}, smallCurve(curve, job), h("figcaption", { class: "note" }, caption(job, curve))),
    h("dl", { class: "facts" }, fact(capital(`${job.period}s`), progress(job)), fact(`Last ${job.period} closed`, time(job.closed_at)),
      fact("Privacy loss", lossOf(job), job.budget), phaseOf(job) && fact("Phase", phaseOf(job))),
    job.issues.length > 0 && h("div", { class: "actions" }, h("h3", {}, "Action required"), job.issues.map((issue) => h("p", { class: "problem" }, issue))));
}

function caption(job, { label, epochs }) {
  return `${capital(label)}, ${epochs.length > 1 ? `last ${plural(epochs.length, job.period)}` : `first ${job.period}`}`;
}

// Whether two jobs publish the same kind of number, and can be compared in one chart or side by side.
export const alike = (one, other) => one.domain.kind === other.domain.kind;

// Pairs of such jobs over the same population, or with the same known domain and horizon.
function pairs(jobs) {
  const about = ({ domain: { kind, items }, horizon }) => (kind === "value" || items ? JSON.stringify([kind, items, horizon]) : NaN);
  return jobs.flatMap((one, index) => jobs.slice(index + 1)
    .filter((other) => alike(one, other) && (one.population === other.population || about(one) === about(other)))
    .map((other) => [one, other]));
}
