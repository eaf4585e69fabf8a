// Marker shapes of legends and lists, which distinguish curves of the same color.

import { svg } from "./dom.js";

const PATHS = {
  circle: "M8 3.6a4.4 4.4 0 1 0 .01 0z",
  square: "M4 4h8v8H4z",
  triangle: "M8 2.8l5 9H3z",
  diamond: "M8 2.4L12.6 8 8 13.6 3.4 8z",
};

export const shape = ({ color, shape: name }) =>
  svg("svg", { class: "mark", viewBox: "0 0 16 16", "aria-hidden": "true" }, svg("path", { d: PATHS[name], fill: color }));

// The same shape as a path for a canvas.
export const path = (name) => new Path2D(PATHS[name]);
