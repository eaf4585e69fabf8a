// Save the visible charts as a PNG file, with title and legend.

import { h, saveFile } from "./dom.js";
import { path } from "./marks.js";

const MARGIN = 20;
const LINE = 24;

export async function savePicture(name, title, panels) {
  const scale = window.devicePixelRatio || 1;
  const style = getComputedStyle(document.body);
  const width = Math.max(...panels.map(({ canvas }) => canvas.width)) / scale;
  const height = panels.reduce((sum, { canvas, heading }) => sum + canvas.height / scale + (heading ? LINE : 0) + LINE, 0);
  const canvas = h("canvas", { width: Math.ceil((width + 2 * MARGIN) * scale), height: Math.ceil((height + LINE + 2 * MARGIN) * scale) });
  const pen = canvas.getContext("2d");
  pen.scale(scale, scale);
  pen.fillStyle = style.getPropertyValue("--card");
  pen.fillRect(0, 0, width + 2 * MARGIN, height + LINE + 2 * MARGIN);
  const write = (text, x, y, size, weight = 400) => {
    pen.font = `${weight} ${size}px ${style.fontFamily}`;
    pen.fillStyle = style.getPropertyValue("--ink");
    pen.fillText(text, x, y);
    return pen.measureText(text).width;
  };
  let y = MARGIN + 16;
  write(title, MARGIN, y, 16, 600);
  y += LINE / 2;
  for (const panel of panels) {
    if (panel.heading) write(panel.heading, MARGIN, (y += LINE) - 6, 14, 600);
    pen.drawImage(panel.canvas, MARGIN, y, panel.canvas.width / scale, panel.canvas.height / scale);
    y += panel.canvas.height / scale + LINE / 2;
    let x = MARGIN;
    for (const { label, color, shape } of panel.entries) {
      pen.save();
      pen.translate(x, y - 12);
      pen.fillStyle = color;
      pen.fill(path(shape));
      pen.restore();
      x += 20 + write(label, x + 20, y, 13) + 18;
    }
    y += LINE / 2;
  }
  const blob = await new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
  saveFile(name, blob);
}
