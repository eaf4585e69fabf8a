// Epsilon against an observer of only some reports of a device, as a curve and as a table.

import { h, numbers, svg, table } from "./dom.js";
import { count, loss } from "./format.js";

const [WIDTH, HEIGHT] = [320, 136];
const [LEFT, RIGHT, TOP, BOTTOM] = [34, 8, 10, 34];
// Beyond this number of reports, the axis is logarithmic.
const LINEAR = 16;

// `body` is `exposure` of /api/jobs/J; null if devices do not report a value several times.
export function exposureOf(body) {
  if (!body) return null;
  const { reports, epsilons, likely } = body;
  const last = reports.length - 1;
  const shown = reports.map((seen, index) => [seen, index]).filter(([seen, index]) => index === last || Number.isInteger(Math.log2(seen)));
  const rows = shown.map(([seen, index]) => [count(seen), loss(epsilons[index]), likely[index]]);
  const named = "Epsilon by number of linked reports";
  return h("section", { class: "exposure", "aria-label": named },
    h("h3", {}, "If an observer links only some reports of a device"),
    h("p", {}, body.description),
    h("div", { class: "halves" },
      h("figure", {}, drawing(body)),
      h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Numbers of the chart" }, table(named, [numbers("linked reports"), numbers("epsilon"), numbers("a 50 % guess is right in at most")], rows))));
}

function drawing({ reports, epsilons, limit }) {
  const last = reports.at(-1);
  const place = last > LINEAR ? Math.log : (seen) => seen;
  const across = (seen) => LEFT + ((place(seen) - place(1)) / (place(last) - place(1))) * (WIDTH - LEFT - RIGHT);
  const up = (epsilon) => HEIGHT - BOTTOM - (epsilon / limit) * (HEIGHT - TOP - BOTTOM);
  const at = (index) => `${across(reports[index]).toFixed(1)} ${up(epsilons[index]).toFixed(1)}`;
  const ticks = [1, ...(last > LINEAR ? [Math.round(Math.sqrt(last))] : []), last];
  const said = `A user's epsilon rises from ${loss(epsilons[0])} with 1 report to ${loss(epsilons.at(-1))} with all ${count(last)}; it never exceeds ${loss(limit)}.`;
  return svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": said },
    svg("path", { class: "axis", d: `M${LEFT} ${up(0)}H${WIDTH - RIGHT}` }),
    svg("path", { class: "limit", d: `M${LEFT} ${up(limit)}H${WIDTH - RIGHT}` }),
    svg("path", { class: "estimate", d: reports.map((_, index) => `${index ? "L" : "M"}${at(index)}`).join("") }),
    reports.length <= LINEAR && reports.map((_, index) => svg("path", { class: "end", d: `M${at(index)}h0` })),
    svg("text", { x: LEFT - 6, y: up(limit) + 4, "text-anchor": "end" }, loss(limit)),
    svg("text", { x: LEFT - 6, y: up(0) + 4, "text-anchor": "end" }, "0"),
    ticks.map((seen, index) => svg("text", { x: across(seen), y: HEIGHT - 19, "text-anchor": index === ticks.length - 1 ? "end" : index ? "middle" : "start" }, count(seen))),
    svg("text", { x: (LEFT + WIDTH - RIGHT) / 2, y: HEIGHT - 5, "text-anchor": "middle" }, "linked reports"));
}
