// The second tab: what operators look at.

import { jobPath } from "./api.js";
import { column, h, numbers, table } from "./dom.js";
import { count, moment, rate, seconds } from "./format.js";
import { idleWords, waitsFor } from "./pipeline.js";

function stageRows(stages, idle) {
  const silent = (worker) => `silent for ${seconds(worker.age)}`;
  return stages.flatMap(({ stage, workers, lag, waiting }) => {
    const behind = [count(lag), seconds(waiting)];
    if (!workers.length) return [[stage, idle || "none", "–", "–", "–", "–", ...behind]];
    return workers.map((worker, index) => [
      index ? "" : stage, worker.name, worker.alive ? `${seconds(worker.age)} ago` : idle ? silent(worker) : h("b", { class: "bad" }, silent(worker)),
      worker.partitions.join(" ") || "–", worker.alive ? rate(worker.records_per_second) : "–", worker.alive ? rate(worker.reports_per_second) : "–",
      ...(index ? ["", ""] : behind)]);
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
    const known = (value) => value !== null && value !== undefined;
    const facts = [["Protocol", detail.protocol], ["Phase", detail.phase], ["Deployment", detail.deployment], ["Deployed", moment(detail.deployed_at)],
      ["Replay of", detail.replay_of ?? "no other job"], ["Position", detail.position ?? "no epoch yet"], ["Domain", detail.domain.kind], ["Horizon", `${count(detail.horizon)} epochs`]];
    if (pipeline?.stages) {
      const decided = Object.entries(pipeline.decided ?? {}).map(([fate, number]) => `${count(number)} ${fate}`).join(", ");
      facts.push(["Windows decided", decided || "none"], ["Producers", known(pipeline.producers) ? count(pipeline.producers) : "–"],
        ["Silent producers", pipeline.silent?.join(", ") || "none"], ["Late reports", count(pipeline.late_reports)]);
    }
    this.facts.replaceChildren(...facts.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
    if (!pipeline?.stages) {
      this.body.replaceChildren(h("p", { class: "empty" }, "Nothing is known of the workers yet."));
      return;
    }
    const dead = Object.entries(pipeline.dead_letters ?? {});
    this.body.replaceChildren(
      h("h3", {}, "Stages and workers"),
      h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Stages and workers" }, table("Stages and workers",
        [column("stage"), column("worker"), column("heard"), column("partitions"), numbers("records"), numbers("reports"), numbers("lag"), numbers("oldest")], stageRows(pipeline.stages, idleWords(pipeline, detail.phase)))),
      h("h3", {}, "Open windows"),
      pipeline.windows.length
        ? table("Open windows", [numbers("epoch"), numbers("reports so far"), column("waits for")], pipeline.windows.map((each) => [count(each.epoch), count(each.reports), waitsFor(each)]))
        : h("p", { class: "empty" }, "None."),
      h("h3", {}, "Dead letters"),
      dead.length ? table("Dead letters", [column("reason"), numbers("records")], dead.map(([reason, number]) => [reason, count(number)])) : h("p", { class: "empty" }, "None."),
      h("h3", {}, "What needs a person"),
      pipeline.problems.length ? h("ul", { class: "problems" }, pipeline.problems.map((each) => h("li", {}, each))) : h("p", { class: "empty" }, "Nothing: all is well."),
      (pipeline.notes ?? []).map((each) => h("p", { class: "note" }, each)),
      h("p", { class: "note" }, "For programs: ", ["", "estimates", "pipeline"].map((what) => [h("a", { href: jobPath(this.model.name, what) }, jobPath(this.model.name, what)), " "])));
  }
}
