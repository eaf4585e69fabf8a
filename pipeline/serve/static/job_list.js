// All jobs at a glance.

import { h } from "./dom.js";
import { count, seconds, time } from "./format.js";
import { view } from "./view.js";

export class JobList {
  constructor(jobs) {
    this.body = h("div", { class: "jobs" });
    this.element = h("section", { "aria-labelledby": "jobs-title" }, h("h1", { id: "jobs-title" }, "Jobs"), this.body);
    this.show(jobs);
  }

  show(jobs) {
    const focused = document.activeElement?.getAttribute?.("href");
    this.body.replaceChildren(...(jobs.length ? jobs.map(card) : [h("p", { class: "sentence" }, "No job is deployed yet; it appears here by itself once ", h("code", {}, "dpstream deploy"), " or ", h("code", {}, "dpstream up"), " has begun one.")]));
    if (focused) [...this.body.querySelectorAll("a")].find((link) => link.getAttribute("href") === focused)?.focus();
  }
}

function card(job) {
  const { epochs, last_epoch: last } = job;
  const fact = (name, value) => h("div", {}, h("dt", {}, name), h("dd", {}, value));
  return h("article", { class: "card job" },
    h("h2", {}, h("a", { href: view.href({ job: job.job }) }, job.job), " ", h("small", {}, job.replay_of ? `replay of ${job.replay_of}` : job.protocol)),
    h("p", { class: "headline" }, last ? job.headline : "no epoch has closed yet"),
    h("dl", { class: "facts" }, fact("Epoch", `${count(last)}${epochs ? ` of ${count(epochs)}` : ""}`), fact("Closed", time(job.closed_at)),
      fact("Behind", seconds(job.behind_seconds)), fact("Budget", job.budget), job.phase !== "running" && fact("Phase", job.phase)),
    job.problems.map((problem) => h("p", { class: "problem" }, problem)));
}
