// Summary of a job: a sentence and a few tiles.

import { h, setText } from "./dom.js";
import { capital, count, inPeriod, left, loss, lossOf, moment, phaseOf, progress, tied, time } from "./format.js";

// Names of the tiles that all given jobs have.
export function tilesOf(models) {
  const changes = models.some(({ detail }) => detail.changes && detail.domain.kind === "value");
  return [...(changes ? ["change"] : []), "part", "epochs", "privacy"];
}

// Longer names have a smaller font.
const LONG = 24;
const NAMES = { change: () => "Change", part: () => "Participation", epochs: ({ period }) => capital(`${period}s`), privacy: () => "Privacy loss" };

export class Overview {
  // `named` is true if several jobs are shown, one below the other.
  constructor(model, named, tiles) {
    this.model = model;
    // With several jobs, the sentence already has the date.
    this.short = named;
    this.sentence = h("p", { class: "sentence" });
    const { detail } = model;
    this.tiles = Object.fromEntries(tiles.map((name) => {
      const tile = { value: h("dd", { class: "statistic" }), note: h("dd", { class: "note" }), bar: h("i", { class: "fill" }) };
      tile.element = h("div", { class: "tile" }, h("dt", {}, NAMES[name](detail)), tile.value, tile.note, h("span", { class: "bar", "aria-hidden": "true", hidden: true }, tile.bar));
      return [name, tile];
    }));
    const more = [detail.title !== model.name && model.name, detail.replay_of && `replay of ${detail.replay_of}`].filter(Boolean).join(" · ");
    [this.assumption, this.partial, this.warning] = [h("p", { class: "note" }), h("p", { class: "note" }), h("p", { class: "problem" })];
    this.phase = h("span", { class: "phase" });
    this.issues = h("ul", { class: "issues" });
    this.actions = h("section", { class: "actions", "aria-label": "Action required" }, h(named ? "h3" : "h2", {}, "Action required"), this.issues);
    this.element = h("section", { class: "overview", "aria-label": `Summary of ${detail.title}` },
      h("div", {}, h(named ? "h2" : "h1", {}, detail.title, " ", h("small", {}, more), " ", this.phase),
        !named && detail.description && h("p", { class: "note" }, detail.description), this.sentence, this.assumption, this.partial, this.warning, this.actions),
      h("dl", { class: "tiles" }, Object.values(this.tiles).map((tile) => tile.element)));
    this.show();
  }

  show() {
    const { detail } = this.model;
    // Parts at odd positions are emphasized.
    this.sentence.replaceChildren(...detail.sentence.map((part, index) => (index % 2 ? h("strong", { class: part.length > LONG ? "long" : "" }, tied(part)) : tied(part))));
    for (const name of ["assumption", "partial", "warning"]) {
      setText(this[name], detail[name] ?? "");
      this[name].hidden = !detail[name];
    }
    setText(this.phase, phaseOf(detail));
    this.phase.hidden = !phaseOf(detail);
    const { issues } = detail;
    this.actions.hidden = !issues.length;
    if (this.issues.textContent !== issues.join("")) this.issues.replaceChildren(...issues.map((each) => h("li", { class: "problem" }, each)));
    this.#change(detail);
    this.#part(detail);
    this.#epochs(detail);
    this.#budget(detail);
  }

  #say(name, value, note, share = null) {
    const tile = this.tiles[name];
    if (!tile) return;
    setText(tile.value, value);
    setText(tile.note, note);
    tile.bar.parentElement.hidden = share === null;
    if (share !== null) tile.bar.style.width = `${100 * Math.min(1, Math.max(0, share))}%`;
  }

  #change({ change, changes, last_epoch: last }) {
    this.#say("change", change?.number ?? "–", change?.description ?? (changes ? (last ? "not known yet" : "no estimate yet") : "not available for this protocol"));
  }

  #part({ sentence_epoch, people }) {
    this.#say("part", count(sentence_epoch?.contributors), sentence_epoch ? `of ${count(sentence_epoch.population)} ${people}${this.short ? "" : ` ${sentence_epoch.at}`}` : "no estimate yet");
  }

  #epochs(detail) {
    const { last_epoch: last, epochs, counted_from: first, closed_at } = detail;
    const closed = last ? `last closed ${time(closed_at)}` : "none closed yet";
    this.#say("epochs", progress(detail), closed, epochs ? Math.max(0, (last ?? 0) - first + 1) / (epochs - first + 1) : null);
    this.tiles.epochs.note.title = moment(closed_at);
  }

  // Privacy loss of this job, and below it, of all jobs over its population.
  #budget(detail) {
    const { charged, filtered, allowed, remaining, periods } = detail.budget;
    const all = `all jobs with these ${detail.people} combined`;
    if (!allowed && periods.length) {
      this.#say("privacy", lossOf(detail), `${all}: ${inPeriod(periods[0])}`);
      return;
    }
    if (!allowed || charged.epsilon === null) {
      const endless = allowed ? "one was deployed to recur without a limit, so no budget can hold" : "one was deployed to recur without a limit; no limit is set";
      this.#say("privacy", lossOf(detail), `${all}: ${charged.epsilon === null ? endless : `ε ${loss(charged.epsilon)}; no limit is set`}`);
      return;
    }
    const counted = filtered ?? charged.epsilon, composed = filtered === null ? "" : ", with advanced composition (privacy filter)";
    const rest = remaining ? `; ${filtered === null ? "" : "at least "}${left(remaining.epsilon)} remains per user` : "";
    this.#say("privacy", lossOf(detail), `${all}${composed}: ε ${loss(counted)} of ${loss(allowed.epsilon)}${rest}`, counted / allowed.epsilon);
  }
}
