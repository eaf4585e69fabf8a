// Small chart of a job's latest epochs: a band and a line, with gaps.

import { Curve } from "./curve.js";
import { svg } from "./dom.js";
import { date } from "./dates.js";
import { count, plural, valueOf } from "./format.js";

const WIDTH = 300;
const HEIGHT = 56;
const EDGE = 4;

// `body` is from /api/recent or a series of a curve, `job` from /api/jobs. `ends` are those of the axis;
// with `zero`, a line marks 0.
export function smallCurve(body, job, { ends, zero = false } = {}) {
  const curve = new Curve(body, "");
  const [first, last] = [curve.epochs[0], curve.lastEpoch];
  const [low, high] = ends ?? curve.extent(first, last);
  const scale = (value, from, to, width) => EDGE + ((value - from) / (to - from || 1)) * (width - 2 * EDGE);
  const at = (epoch, value) => `${scale(epoch, first, last, WIDTH).toFixed(1)} ${(HEIGHT - scale(value, low, high, HEIGHT)).toFixed(1)}`;
  const { band, alone } = curve.band();
  const end = curve.lastKnown(last);
  const dot = end < 0 ? "" : `M${at(curve.epochs[end], curve.value[end])}h0`;
  // The drawing is stretched to its container; strokes and dots are not.
  return svg("svg", { class: "small-curve", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": words(curve, body.unit, job) },
    zero && svg("path", { class: "zero", d: `M0 ${at(first, 0).split(" ")[1]}H${WIDTH}` }),
    svg("path", { class: "band", d: path(band.x, band.y, at) }),
    svg("path", { class: "alone", d: alone.x.map((epoch, index) => `M${at(epoch, alone.low[index])}L${at(epoch, alone.high[index])}`).join("") }),
    svg("path", { class: "estimate", d: path(curve.epochs, curve.value, at) }),
    svg("path", { class: "end", d: dot }));
}

// Every unbroken run is a separate line; a single point is a dot.
function path(x, y, at) {
  let drawn = false;
  return x.map((epoch, index) => {
    if (Number.isNaN(y[index])) drawn = false;
    else {
      const alone = !drawn && !(index + 1 < x.length && !Number.isNaN(y[index + 1]));
      const move = `${drawn ? "L" : "M"}${at(epoch, y[index])}${alone ? "h0" : ""}`;
      drawn = true;
      return move;
    }
    return "";
  }).join("");
}

function words(curve, unit, job) {
  const format = valueOf(unit);
  const known = curve.value.filter((value) => !Number.isNaN(value));
  const said = known.length ? `${format(Math.min(...known))} to ${format(Math.max(...known))}` : "no estimate";
  const gaps = curve.value.length - known.length;
  const [from, to] = [0, -1].map((end) => date(job, curve.begins?.at(end)));
  const when = from ? `${from} to ${to}` : `epochs ${count(curve.epochs[0])} to ${count(curve.lastEpoch)}`;
  return `${curve.label}, ${when}: ${said}${gaps && known.length ? `, ${plural(gaps, "gap")}` : ""}`;
}
