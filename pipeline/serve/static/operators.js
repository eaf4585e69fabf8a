// The tab for operators.

import { jobPath } from "./api.js";
import { column, h, numbers, table } from "./dom.js";
import { count, moment, phaseOf, rate, seconds } from "./format.js";
import { idleWords, reasons, waitsFor } from "./pipeline.js";

// A table that scrolls if it is wider than the page.
const wide = (name, columns, rows) => h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": name }, table(name, columns, rows));

const DOMAINS = { value: "yes or no", items: "listed items", numbers: "numbers in buckets", found: "items found by a search" };
// Meaning of the reasons for dead letters, as in topics/records.py.
const DEAD_LETTERS = {
  unreadable: "damaged, or not a dpstream record",
  fingerprint: "sent for a job with another configuration",
  deployment: "sent for another deployment",
  version: "unsupported version of the format",
  oversized: "larger than the maximum record size",
  enrollment: "producer not registered, or not for this epoch",
  epoch: "epoch out of range or in another partition",
  punctuation: "end-of-epoch mark contradicts the producer's batches",
  protocol: "messages invalid for the protocol",
  sealed: "not sealed as the job requires, or sealed to an unavailable key",
};
const silent = ({ age }) => `no heartbeat for ${seconds(age)}`;

function collectorRows(collectors, idle) {
  return collectors.map((each) => [
    each.name, each.up ? `${seconds(each.age)} ago` : idle ? silent(each) : h("b", { class: "bad" }, silent(each)),
    count(each.stored), rate(each.stored_per_second), count(each.waiting), reasons(each.rejected) || "none"]);
}

function stageRows(stages, idle) {
  return stages.flatMap(({ stage, workers, lag, waiting }) => {
    const lags = [count(lag), seconds(waiting)];
    if (!workers.length) return [[stage, idle || "none", "–", "–", "–", "–", ...lags]];
    return workers.map((worker, index) => [
      index ? "" : stage, worker.name, worker.idle ? "idle" : worker.up ? `${seconds(worker.age)} ago` : idle ? silent(worker) : h("b", { class: "bad" }, silent(worker)),
      worker.partitions.join(" ") || "–", worker.up ? rate(worker.records_per_second) : "–", worker.up ? rate(worker.reports_per_second) : "–",
      ...(index ? ["", ""] : lags)]);
  });
}

export class Operators {
  constructor(model) {
    this.model = model;
    this.facts = h("dl", { class: "facts" });
    this.body = h("div");
    this.element = h("section", { class: "card operators", "aria-label": `Operation of ${model.name}` },
      h("div", { class: "card-head" }, h("h2", {}, `Operation of ${model.name}`)), this.facts, this.body);
  }

  show() {
    const { detail, pipeline } = this.model;
    const collectors = pipeline?.collectors;
    const known = (value) => value !== null && value !== undefined;
    const facts = [["Protocol", detail.protocol], ["Phase", phaseOf(detail) || detail.phase], ["Lag", seconds(detail.lag_seconds)], ["Deployment", detail.deployment], ["Deployed", moment(detail.deployed_at)],
      ["Replay of", detail.replay_of ?? "none"], ["Position", detail.position ?? "no epoch yet"], ["Values", DOMAINS[detail.domain.kind] ?? detail.domain.kind], ["Horizon", `${count(detail.horizon)} epochs`]];
    if (pipeline?.stages) {
      facts.push(["Finalized windows", reasons(pipeline.finalized_windows ?? {}) || "unknown: no shuffle worker has reported yet"]);
      if (collectors) facts.push(["Collectors", `${count(collectors.filter((each) => each.up).length)} up`], ["Invalid reports", count(pipeline.unusable_reports)]);
      else if (known(pipeline.producers)) facts.push(["Producers", count(pipeline.producers)], ["Missing producers", pipeline.missing_producers?.join(", ") || "none"]);
      facts.push(["Late reports", count(pipeline.late_reports)]);
    }
    this.facts.replaceChildren(...facts.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
    if (!pipeline?.stages) {
      this.body.replaceChildren(h("p", { class: "empty" }, "No worker has reported yet."));
      return;
    }
    const idle = idleWords(pipeline, detail.phase);
    const counted = pipeline.windows.every((each) => known(each.reports)) ? "reports" : "devices";
    const dead = Object.entries(pipeline.dead_letters ?? {});
    this.body.replaceChildren(
      h("h3", {}, "Stages and workers"),
      wide("Stages and workers",
        [column("stage"), column("worker"), column("last heartbeat"), column("partitions"), numbers("records"), numbers("reports"), numbers("lag"), numbers("longest wait")], stageRows(pipeline.stages, idle)),
      ...(collectors ? [h("h3", {}, "Collectors"), collectors.length
        ? wide("Collectors", [column("collector"), column("last heartbeat"), numbers("stored"), numbers("per second"), numbers("waiting"), column("rejected requests")], collectorRows(collectors, idle))
        : h("p", { class: "empty" }, "None.")] : []),
      h("h3", {}, "Open windows"),
      pipeline.windows.length
        ? wide("Open windows", [numbers("epoch"), numbers(`${counted} so far`), column("waits for")], pipeline.windows.map((each) => [count(each.epoch), count(each[counted]), waitsFor(each, Boolean(collectors))]))
        : h("p", { class: "empty" }, "None."),
      h("h3", {}, "Dead letters"),
      dead.length ? table("Dead letters", [column("reason"), column("code"), numbers("records")], dead.map(([reason, number]) => [DEAD_LETTERS[reason] ?? reason, reason, count(number)])) : h("p", { class: "empty" }, "None."),
      h("h3", {}, "Action required"),
      pipeline.issues.length ? h("ul", { class: "issues" }, pipeline.issues.map((each) => h("li", {}, each))) : h("p", { class: "empty" }, "None."),
      ...(pipeline.notes?.length ? [h("h3", {}, "Notes")] : []), ...(pipeline.notes ?? []).map((each) => h("p", { class: "note" }, each)),
      h("p", { class: "note" }, "For programs: ", ["", "estimates", "pipeline"].map((what) => [h("a", { href: jobPath(this.model.name, what) }, jobPath(this.model.name, what)), " "])));
  }
}
