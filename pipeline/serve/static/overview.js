// A job in one sentence and four tiles.

import { h, setText } from "./dom.js";
import { count, error, interval, left, loss, moment, seconds, time, valueOf } from "./format.js";

const FATES = { "too small": "too few devices took part, so nothing was released", empty: "nobody took part" };
const GAP = "reports that it needs were never received";

// What the estimate is about: a headline of items is "name: number (95 %: ...)".
function subject({ domain, headline }) {
  if (domain.measure) return domain.measure;
  if (domain.kind === "value") return "users";
  return domain.kind === "numbers" ? "median" : headline.replace(/: [-\d.,]+( \(95 %.*)?$/, "");
}

// An estimate that lacks something is published, but nothing is claimed of it.
const said = ({ estimate, flags }) => (estimate && estimate.value !== null && !flags.includes("gap") ? estimate : null);

// Parts of the sentence; what stands in an array is said with weight.
export function sentence(detail, format) {
  const { estimate, last_epoch: epoch } = detail;
  if (!epoch) return ["No epoch has closed yet; the first estimate appears here by itself."];
  if (!said(detail)) {
    const why = FATES[detail.fate] ?? (detail.flags.includes("gap") ? GAP : "nothing can be said of it");
    return [`Epoch ${count(epoch)} has no estimate: ${why}.`];
  }
  const [value, range] = [[format(estimate.value)], interval(format, estimate.low, estimate.high).replace(" to ", " and ")];
  const surely = `between ${range}, with 95 % confidence`;
  if (detail.domain.measure) {
    const [what, unit] = detail.domain.measure.split(", ");
    return [`The ${what} is `, value, ` ${unit} at epoch ${count(epoch)}; ${surely}.`];
  }
  if (detail.domain.kind === "value") return ["About ", value, ` users at epoch ${count(epoch)}; ${surely}.`];
  if (detail.domain.kind === "numbers") return ["Half of the values lie below ", value, ` at epoch ${count(epoch)}; ${surely}.`];
  return ["Most frequent at epoch ", count(epoch), " is ", [subject(detail)], ", with about ", value, ` users; ${surely}.`];
}

export class Overview {
  constructor(model, named) {
    this.model = model;
    this.format = valueOf(model.unit);
    this.sentence = h("p", { class: "sentence" });
    this.tiles = Object.fromEntries(["Estimate", "Last epoch", "Behind", "Privacy budget"].map((name) => {
      const tile = { value: h("dd", { class: "figure" }), note: h("dd", { class: "note" }), bar: h("i", { class: "fill" }) };
      tile.element = h("div", { class: "tile" }, h("dt", {}, name), tile.value, tile.note, h("span", { class: "bar", "aria-hidden": "true", hidden: true }, tile.bar));
      return [name, tile];
    }));
    const { detail } = model;
    const kind = [detail.protocol, detail.replay_of && `a replay of ${detail.replay_of}`].filter(Boolean).join(" · ");
    this.phase = h("span", { class: "phase" });
    this.element = h("section", { class: "overview", "aria-label": `${model.name} in short` },
      h(named ? "h2" : "h1", {}, model.name, " ", h("small", {}, kind), " ", this.phase), this.sentence,
      h("dl", { class: "tiles" }, Object.values(this.tiles).map((tile) => tile.element)));
    this.show();
  }

  show() {
    const { detail } = this.model;
    this.sentence.replaceChildren(...sentence(detail, this.format).map((part) => (Array.isArray(part) ? h("strong", {}, part[0]) : part)));
    setText(this.phase, detail.phase === "running" ? "" : detail.phase);
    this.phase.hidden = detail.phase === "running";
    this.#estimate(detail);
    this.#epoch(detail);
    this.#behind(detail);
    this.#budget(detail);
  }

  #say(name, value, note, share = null) {
    const tile = this.tiles[name];
    setText(tile.value, value);
    setText(tile.note, note);
    tile.bar.parentElement.hidden = share === null;
    if (share !== null) tile.bar.style.width = `${100 * Math.min(1, Math.max(0, share))}%`;
  }

  #estimate({ domain, headline }) {
    const estimate = said(this.model.detail);
    const { value, low, high } = estimate ?? {};
    this.#say("Estimate", `${this.format(value)} ${error(this.format, value, low, high)}`.trim(),
      estimate ? `${subject({ domain, headline })}, 95 %: ${interval(this.format, low, high)}` : "no estimate of this epoch");
  }

  #epoch({ last_epoch: last, epochs, closed_at }) {
    const closed = last ? `closed ${time(closed_at)}` : "none has closed yet";
    this.#say("Last epoch", last ? `${count(last)}${epochs ? ` of ${count(epochs)}` : ""}` : "–", closed, epochs ? (last ?? 0) / epochs : null);
    this.tiles["Last epoch"].note.title = moment(closed_at);
  }

  #behind({ behind_seconds: behind, problems }) {
    const waits = behind === null ? "not known yet" : behind === 0 ? "nothing waits" : "since the oldest waiting record came";
    this.#say("Behind", behind === 0 ? "0 s" : seconds(behind), problems.length ? problems[0] : waits);
    this.tiles.Behind.element.classList.toggle("bad", problems.length > 0);
  }

  #budget({ budget }) {
    const { charged, allowed, remaining } = budget;
    if (!allowed) {
      this.#say("Privacy budget", charged.epsilon === null ? "no end" : `ε ${loss(charged.epsilon)}`, "charged; no limit was set");
      return;
    }
    this.#say("Privacy budget", `ε ${loss(charged.epsilon)} of ${loss(allowed.epsilon)}`,
      remaining ? `${left(remaining.epsilon)} remains for each person` : "", charged.epsilon / allowed.epsilon);
  }
}
