// Drawing of the pipeline from devices to estimates, with live numbers.

import { h, svg } from "./dom.js";
import { count, plural, rate, seconds } from "./format.js";

// Stages to show until those of the job are known.
const USUAL = [{ stage: "shuffle", reads: "reports" }, { stage: "aggregate", reads: "shuffled" }, { stage: "publish", reads: "partials" }];

function does(stage) {
  if (stage.startsWith("instance-")) return "removes senders and order from its part of the reports";
  if (stage.startsWith("shuffle")) return "removes senders and order from reports";
  if (stage.startsWith("aggregate-")) return "aggregates its shares";
  return stage === "publish" ? "publishes an estimate for every epoch" : "sums the reports of every epoch";
}

// Columns from left to right; parallel stages are in one column.
function columnsOf(body, replay) {
  // A replay has no devices and no shuffle stage, because its windows are already released.
  const stages = body?.stages ?? (replay ? USUAL.slice(1) : USUAL);
  const columns = [];
  for (const each of stages) {
    if (each.stage.startsWith("instance-") || each.stage === "aggregate-b") columns.at(-1).push(each);
    else columns.push([each]);
  }
  return columns;
}

const text = (x, y, words, attributes = {}) => svg("text", { x, y, "text-anchor": "middle", ...attributes }, words);

function workers(x, y, all, idle) {
  const shown = all.slice(0, 9);
  const left = x - (shown.length - 1) * 8;
  return shown.map((worker, index) => svg("g", {},
    svg("title", {}, `${worker.name}: ${worker.idle ? "idle" : worker.up ? "up" : "no heartbeat for " + seconds(worker.age)}`),
    worker.up || idle
      ? svg("circle", { cx: left + index * 16, cy: y, r: 5, class: worker.up ? "up" : "ended" })
      : svg("path", { d: `M${left + index * 16 - 4} ${y - 4}l8 8m0 -8l-8 8`, class: "gone" })));
}

function stageBox(x, y, width, height, stage, found, idle) {
  const all = found?.workers ?? [];
  const up = all.filter((worker) => worker.up).length;
  const speeds = all.filter((worker) => worker.up).map((worker) => worker.reports_per_second ?? null).filter((each) => each !== null);
  const read = all.filter((worker) => worker.up && known(worker.records_per_second)).map((worker) => worker.records_per_second);
  // If the number of records must stay hidden, no rate is shown.
  const records = read.length ? read.reduce((sum, each) => sum + each, 0) : null;
  const total = speeds.reduce((sum, each) => sum + each, 0);
  const speed = speeds.length ? rate(total, " reports") : rate(records, " records");
  const middle = x + width / 2;
  const warns = !idle && up < all.length;
  const state = idle && !up ? idle : all.length ? `${count(up)} of ${plural(all.length, "worker")} up` : "no worker";
  return svg("g", { class: found && !up ? (idle ? "stage idle" : "stage bad") : "stage" },
    svg("title", {}, `${stage}: ${does(stage)}`),
    svg("rect", { x, y, width, height, rx: 9 }),
    text(middle, y + 24, stage, { class: "name" }),
    found ? workers(middle, y + 44, all, idle) : null,
    text(middle, y + 68, found ? state : "unknown", { class: warns ? "small warn" : "small" }),
    found && (up || !idle) && text(middle, y + 86, speed, { class: "small" }));
}

// Collectors, in jobs whose devices report for themselves.
function collectorsBox(x, y, width, height, all, idle) {
  const up = all.filter((each) => each.up);
  const speeds = up.map((each) => each.stored_per_second).filter(known);
  const speed = rate(speeds.length ? speeds.reduce((sum, each) => sum + each, 0) : null, " stored");
  const middle = x + width / 2;
  const state = all.length ? `${count(up.length)} of ${count(all.length)} up` : "none";
  return svg("g", { class: up.length ? "stage" : idle ? "stage idle" : "stage bad" },
    svg("title", {}, "collectors: receive reports from devices"),
    svg("rect", { x, y, width, height, rx: 9 }),
    text(middle, y + 24, "collectors", { class: "name" }),
    workers(middle, y + 44, all, idle),
    text(middle, y + 68, state, { class: !idle && (up.length < all.length || !all.length) ? "small warn" : "small" }),
    up.length > 0 && text(middle, y + 86, speed, { class: "small" }));
}

// A topic as a pipe, with the number of waiting records.
function topic(x, y, name, found) {
  const waits = found?.lag > 0;
  return svg("g", { class: waits ? "topic waits" : "topic" },
    svg("path", { d: `M${x - 45} ${y - 15}h90a7 15 0 0 1 0 30h-90a7 15 0 0 1 0 -30z` }),
    svg("path", { d: `M${x + 45} ${y - 15}a7 15 0 0 0 0 30`, class: "rim" }),
    text(x - 7, y + 4, name, { class: "name" }),
    found && text(x, y + 32, found.lag === null || found.lag === undefined ? "" : waits ? `${count(found.lag)} waiting` : "none waiting", { class: "small" }),
    waits && known(found.waiting) && text(x, y + 48, `oldest ${seconds(found.waiting)}`, { class: "small" }));
}

const known = (value) => value !== null && value !== undefined;

function arrow(x1, y1, x2, y2, busy) {
  const turn = x1 === x2 ? 90 : 0;
  return svg("g", { class: busy ? "flow busy" : "flow" }, svg("line", { x1, y1, x2, y2 }),
    svg("path", { class: "tip", d: "M0 0l-8 -3.6v7.2z", transform: `translate(${x2} ${y2}) rotate(${turn})` }));
}

const busy = (found) => found?.workers.some((worker) => worker.up && worker.records_per_second > 0) ?? false;

function across(body, replay, idle) {
  const by = stagesOf(body);
  const columns = columnsOf(body, replay);
  const [y, row] = [62, 128];
  const nodes = [source(52, y, replay, body)];
  let x = 104;
  if (body?.collectors) {
    nodes.push(arrow(x, y, x + 18, y, stores(body)), collectorsBox(x + 19, y - 50, 134, 100, body.collectors, idle));
    x += 153;
  }
  for (const column of columns) {
    column.forEach((each, index) => {
      const found = by.get(each.stage);
      const at = y + index * row;
      // Connect to a lower row and back, with right angles.
      if (index) nodes.push(svg("path", { d: `M${x + 4} ${y}V${at}h8`, class: "flow" }), svg("path", { d: `M${x + 277} ${at}h4V${y}`, class: "flow" }));
      nodes.push(arrow(index ? x + 12 : x, at, x + 18, at, busy(found)), topic(x + 71, at, each.reads, found),
        arrow(x + 124, at, x + 142, at, busy(found)), stageBox(x + 143, at - 50, 134, 100, each.stage, found, idle));
    });
    x += 277;
  }
  nodes.push(arrow(x, y, x + 18, y, busy(by.get("publish"))), topic(x + 71, y, "estimates", null));
  const rows = Math.max(...columns.map((column) => column.length));
  return svg("svg", { viewBox: `0 0 ${x + 126} ${rows * row}`, role: "img", "aria-label": words(body, idle), class: "across" }, nodes);
}

// Layout for narrow screens: a row for every stage, with the topic that it reads on the left.
function folded(body, replay, idle) {
  const by = stagesOf(body);
  const nodes = [source(66, body?.collectors ? 46 : 26, replay, body)];
  let y = 46;
  if (body?.collectors) {
    nodes.push(arrow(117, y, 162, y, stores(body)), collectorsBox(163, y - 44, 200, 100, body.collectors, idle),
      svg("path", { d: `M263 ${y + 56}v10h-197v8`, class: stores(body) ? "flow busy" : "flow" }));
    y += 74;
  }
  for (const column of columnsOf(body, replay)) {
    column.forEach((each, index) => {
      const found = by.get(each.stage);
      if (!index) nodes.push(arrow(66, y, 66, y + 30, busy(found)));
      nodes.push(topic(66, y + 46, each.reads, found),
        arrow(119, y + 46, 162, y + 46, busy(found)), stageBox(163, y - 4, 200, 100, each.stage, found, idle));
      y += 114;
    });
    const last = by.get(column.at(-1).stage);
    nodes.push(svg("path", { d: `M263 ${y - 18}v10h-197v8`, class: busy(last) ? "flow busy" : "flow" }));
  }
  nodes.push(arrow(66, y, 66, y + 10, busy(by.get("publish"))), topic(66, y + 26, "estimates", null));
  return svg("svg", { viewBox: `0 0 372 ${y + 46}`, role: "img", "aria-label": words(body, idle), class: "folded" }, nodes);
}

const stores = (body) => body.collectors.some((each) => each.up && each.stored_per_second > 0);

function source(x, y, replay, body) {
  return svg("g", { class: "stage source" }, svg("rect", { x: x - 51, y: y - 20, width: 102, height: 40, rx: 20 }),
    text(x, y + 4, replay ? "replay" : body?.collectors ? "devices" : "producers", { class: "name" }));
}

const stagesOf = (body) => new Map((body?.stages ?? []).map((each) => [each.stage, each]));

// Text version of the drawing, for screen readers.
function words(body, idle) {
  if (!body?.stages) return "No pipeline status yet.";
  const collectors = body.collectors ? [`collectors: ${count(body.collectors.filter((each) => each.up).length)} of ${count(body.collectors.length)} up`] : [];
  return collectors.concat(body.stages.map((each) => {
    const up = each.workers.filter((worker) => worker.up).length;
    const waits = known(each.lag) ? `, ${plural(each.lag, "record")} waiting` : "";
    const state = idle && !up ? idle : `${up} of ${plural(each.workers.length, "worker")} up`;
    return `${each.stage}: ${state}${waits}`;
  })).join("; ");
}

// Describe what a window waits for; `collected` is true if devices report for themselves.
export function waitsFor(window, collected) {
  // Until its epoch ends, collectors accept reports, and the window does not wait for them.
  if (collected && !known(window.grace_left)) return "the end of the epoch";
  if (!window.waits_for.length) return collected ? `the end of its grace period, in ${seconds(window.grace_left)}` : "finalization";
  const [first, second, ...others] = window.waits_for;
  const names = [first, second && `, ${second}`, others.length > 0 && ` and ${plural(others.length, "other")}`].filter(Boolean).join("");
  return known(window.grace_left) ? `${names}, for at most ${seconds(window.grace_left)}` : names;
}

// Number of reports if known, otherwise of devices.
function soFar(window) {
  if (known(window.reports)) return ` with ${plural(window.reports, "report")}`;
  return known(window.devices) ? ` with ${plural(window.devices, "device")}` : "";
}

// Reason why the job needs no worker; empty if it needs workers.
export function idleWords(body, phase) {
  if (!body?.stages || body.workers_needed) return "";
  return phase === "paused" ? "paused" : "no worker needed";
}

// Counts of rejections by reason, as text.
export const reasons = (found) => Object.entries(found).map(([reason, number]) => `${count(number)} ${reason}`).join(", ");

// Status of collectors as sentences: `[sentence, whether it requires action]`.
function collectorWords(all, idle) {
  if (!all?.length) return [];
  const rejected = {};
  for (const each of all) for (const [reason, number] of Object.entries(each.rejected)) rejected[reason] = (rejected[reason] ?? 0) + number;
  const sum = (what) => all.reduce((total, each) => total + (each[what] ?? 0), 0);
  const waiting = sum("waiting");
  const stored = `Collectors stored ${plural(sum("stored"), "report")}; ${waiting ? `${plural(waiting, "request is waiting", "requests are waiting")} for Kafka` : "no requests are waiting"}; `;
  const silent = all.filter((each) => !each.up);
  return [[`${stored}${Object.keys(rejected).length ? `rejected requests: ${reasons(rejected)}` : "no requests were rejected"}.`, false],
    ...silent.slice(0, 3).map((each) => [`Collector ${each.name}: no heartbeat for ${seconds(each.age)}.`, !idle]),
    ...(silent.length > 3 ? [[`${plural(silent.length - 3, "more collector")} without a heartbeat.`, !idle]] : [])];
}

export const deadLetters = (found) => Object.values(found ?? {}).reduce((sum, each) => sum + each, 0);

export class PipelineCard {
  constructor(title, replay) {
    this.replay = replay;
    this.drawing = h("div", { class: "drawing" });
    this.windows = h("ul", { class: "windows" });
    this.element = h("section", { class: "card pipeline", "aria-label": title }, h("div", { class: "card-head" }, h("h2", {}, title)), this.drawing, this.windows);
  }

  // `phase` is the phase that operators set, such as "paused".
  show(body, phase) {
    const idle = idleWords(body, phase);
    this.drawing.replaceChildren(across(body, this.replay, idle), folded(body, this.replay, idle));
    const open = (body?.windows ?? []).slice(0, 3);
    const more = (body?.open_windows ?? 0) - open.length;
    const dead = deadLetters(body?.dead_letters);
    this.windows.replaceChildren(
      ...open.map((window) => h("li", {}, h("b", {}, `Epoch ${count(window.epoch)}`), ` is open${soFar(window)}; it waits for ${waitsFor(window, known(body.collectors))}.`)),
      ...(more > 0 ? [h("li", {}, `${plural(more, "more window is", "more windows are")} open.`)] : []),
      ...collectorWords(body?.collectors, idle).map(([words, warns]) => h("li", { class: warns ? "warn" : "" }, words)),
      ...(body?.stages ? [h("li", { class: dead ? "warn" : "" }, dead ? `${plural(dead, "record")} rejected (dead letters).` : "No records were rejected.")] : []),
      ...(body?.issues ?? []).map((issue) => h("li", { class: "bad" }, `Action required: ${issue}`)));
  }
}
