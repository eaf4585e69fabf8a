// Who has to be trusted, as a picture: the way of a report, and the boundary round those it rests on.

import { h, svg } from "./dom.js";

const [WIDTH, HEIGHT, GAP, EDGE] = [158, 76, 26, 16];

// Words on lines of so many letters.
function lines(text, most = 24) {
  return text.split(" ").reduce((all, word) => {
    if (all.length && `${all.at(-1)} ${word}`.length <= most) all[all.length - 1] += ` ${word}`;
    else all.push(word);
    return all;
  }, []);
}

const words = (x, y, text, attributes) => svg("text", { x, y, "text-anchor": "middle", ...attributes }, text);

function box(x, y, { name, sees, trusted }) {
  const middle = x + WIDTH / 2;
  return svg("g", { class: trusted ? "party trusted" : "party" },
    svg("rect", { x, y, width: WIDTH, height: HEIGHT, rx: 9 }),
    words(middle, y + 23, name, { class: "name" }),
    lines(sees).map((line, index) => words(middle, y + 43 + 15 * index, line, { class: "small" })));
}

// Neighbours inside the boundary share it.
function runs(parties) {
  const found = [];
  parties.forEach(({ trusted }, index) => {
    if (!trusted) return;
    if (index && parties[index - 1].trusted) found.at(-1)[1] = index;
    else found.push([index, index]);
  });
  return found;
}

function across(parties) {
  const at = (index) => EDGE + index * (WIDTH + GAP);
  const top = 34;
  return svg("svg", { class: "sidewise", viewBox: `0 0 ${at(parties.length) - GAP + EDGE} ${top + HEIGHT + EDGE}`, "aria-hidden": "true" },
    runs(parties).map(([first, last]) => [
      svg("rect", { class: "boundary", x: at(first) - 10, y: top - 10, width: at(last) + WIDTH - at(first) + 20, height: HEIGHT + 20, rx: 14 }),
      svg("text", { x: at(first) - 4, y: top - 17, class: "said" }, "has to be trusted")]),
    parties.map((party, index) => [
      index > 0 && svg("path", { class: "way", d: `M${at(index) - GAP + 1} ${top + HEIGHT / 2}h${GAP - 4}m-7 -4l7 4l-7 4` }),
      box(at(index), top, party)]));
}

function folded(parties) {
  const at = (index) => 34 + index * (HEIGHT + GAP);
  return svg("svg", { class: "downwards", viewBox: `0 0 ${WIDTH + 2 * EDGE + 40} ${at(parties.length) - GAP + EDGE}`, "aria-hidden": "true" },
    runs(parties).map(([first, last]) => [
      svg("rect", { class: "boundary", x: EDGE + 10, y: at(first) - 10, width: WIDTH + 20, height: at(last) + HEIGHT - at(first) + 20, rx: 14 }),
      first === 0 && svg("text", { x: EDGE + 16, y: at(first) - 17, class: "said" }, "has to be trusted")]),
    parties.map((party, index) => [
      index > 0 && svg("path", { class: "way", d: `M${EDGE + 20 + WIDTH / 2} ${at(index) - GAP + 1}v${GAP - 4}m-4 -7l4 7l4 -7` }),
      box(EDGE + 20, at(index), party)]));
}

// `trust` as of /api/jobs/J.
export function trustPicture({ parties, words: said }) {
  const list = parties.map(({ name, sees, trusted }) => `${name} (${sees}): ${trusted ? "has to be trusted" : "need not be trusted"}`);
  return h("figure", { class: "trust" },
    h("div", { role: "img", "aria-label": `The way of a report. ${list.join("; ")}.` }, across(parties), folded(parties)),
    h("figcaption", {}, said));
}
