// Trust diagram: the path of a report, with a boundary around trusted parties.

import { h, svg } from "./dom.js";

const [WIDTH, HEIGHT, GAP, DOWN, EDGE] = [158, 76, 40, 26, 16];

// Wrap text into lines of at most `most` characters.
function lines(text, most = 24) {
  return text.split(" ").reduce((all, word) => {
    if (all.length && `${all.at(-1)} ${word}`.length <= most) all[all.length - 1] += ` ${word}`;
    else all.push(word);
    return all;
  }, []);
}

const words = (x, y, text, attributes) => svg("text", { x, y, "text-anchor": "middle", ...attributes }, text);

function box(x, y, { name, sees, trusted, either }, width = WIDTH) {
  const middle = x + width / 2;
  return svg("g", { class: trusted || either ? "party trusted" : "party" },
    svg("rect", { x, y, width, height: HEIGHT, rx: 9 }),
    words(middle, y + 23, name, { class: "name" }),
    lines(sees, width < WIDTH ? 15 : 24).map((line, index) => words(middle, y + 43 + 15 * index, line, { class: "small" })));
}

// Steps of the path; parties of which one must be trusted share a step.
function steps(parties) {
  const found = [];
  for (const party of parties) {
    if (party.either && found.at(-1)?.[0].either) found.at(-1).push(party);
    else found.push([party]);
  }
  return found;
}

const HAS = "trusted";
const EITHER = "one of them is trusted";

// Adjacent trusted parties share a boundary: [first, last, label].
function runs(all) {
  const found = [];
  all.forEach(([{ trusted, either }], index) => {
    if (either) found.push([index, index, EITHER]);
    else if (trusted && index && all[index - 1][0].trusted) found.at(-1)[1] = index;
    else if (trusted) found.push([index, index, HAS]);
  });
  return found;
}

const boundary = (x, y, width, height) => svg("rect", { class: "boundary", x: x - 10, y: y - 10, width: width + 20, height: height + 20, rx: 14 });

function across(all) {
  const at = (index) => EDGE + index * (WIDTH + GAP);
  const rows = Math.max(...all.map((step) => step.length));
  const tall = (step) => step.length * (HEIGHT + EDGE) - EDGE;
  const middle = 34 + tall({ length: rows }) / 2;
  const top = (step, row = 0) => middle - tall(step) / 2 + row * (HEIGHT + EDGE);
  const way = (index, from, to) => {
    const [y, end] = [from + HEIGHT / 2, to + HEIGHT / 2];
    return svg("path", { class: "way", d: `M${at(index) - GAP + 1} ${y}h${GAP / 2 - 4}V${end}h${GAP / 2}m-7 -4l7 4l-7 4` });
  };
  return svg("svg", { class: "sidewise", viewBox: `0 0 ${at(all.length) - GAP + EDGE} ${middle + tall({ length: rows }) / 2 + EDGE}`, "aria-hidden": "true" },
    runs(all).map(([first, last, said]) => [
      boundary(at(first), top(all[first]), at(last) + WIDTH - at(first), tall(all[first])),
      svg("text", { x: at(first) - 4, y: top(all[first]) - 17, class: "said" }, said)]),
    all.map((step, index) => [
      index > 0 && all[index - 1].flatMap((_, from) => step.map((_, to) => way(index, top(all[index - 1], from), top(step, to)))),
      step.map((party, row) => box(at(index), top(step, row), party))]));
}

function folded(all) {
  const left = EDGE + 20;
  const tops = [];
  let y = 34;
  for (const [{ either }] of all) {
    // A boundary further down needs space for its label.
    if (either) y += 22;
    tops.push(y);
    y += HEIGHT + DOWN;
  }
  const wide = (step) => (step.length > 1 ? WIDTH + 40 : WIDTH);
  const start = (step) => left - (wide(step) - WIDTH) / 2;
  const each = (step) => (wide(step) - 10 * (step.length - 1)) / step.length;
  return svg("svg", { class: "downwards", viewBox: `0 0 ${WIDTH + 2 * EDGE + 40} ${y - DOWN + EDGE}`, "aria-hidden": "true" },
    runs(all).map(([first, last]) => boundary(start(all[first]), tops[first], wide(all[first]), tops[last] + HEIGHT - tops[first])),
    all.map((step, index) => [
      index > 0 && svg("path", { class: "way", d: `M${left + WIDTH / 2} ${tops[index - 1] + HEIGHT + 1}V${tops[index] - 3}m-4 -7l4 7l4 -7` }),
      step.map((party, place) => box(start(step) + place * (each(step) + 10), tops[index], party, each(step)))]),
    // Drawn last, above the path that crosses it.
    runs(all).map(([first, , said]) => (first === 0 || said === EITHER) && svg("text", { x: start(all[first]) - 4, y: tops[first] - 17, class: "said" }, said)));
}

// `trust` is from /api/jobs/J.
export function trustPicture({ parties, description: said }) {
  const all = steps(parties);
  const list = parties.map(({ name, sees, trusted, either }) => `${name} (${sees}): ${either ? EITHER : trusted ? HAS : "not trusted"}`);
  return h("figure", { class: "trust" },
    h("div", { role: "img", "aria-label": `Path of a report. ${list.join("; ")}.` }, across(all), folded(all)),
    h("figcaption", {}, said));
}
