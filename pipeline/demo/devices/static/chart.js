// The published curve, its interval and the ground truth.

const NAMESPACE = 'http://www.w3.org/2000/svg';
const SHOWN = 60;
const LEFT = 56;
const MARGIN = 12;
const TOP = 12;
const BOTTOM = 226;

function element(name, attributes, text = '') {
  const made = document.createElementNS(NAMESPACE, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.textContent = text;
  return made;
}

/** Runs of consecutive epochs: a line through a gap would claim unknown values. */
export function runs(epochs) {
  const found = [];
  for (const each of epochs) {
    const run = found.at(-1);
    if (run?.at(-1).epoch === each.epoch - 1) run.push(each);
    else found.push([each]);
  }
  return found;
}

/** Draw the last epochs, from zero to all devices. */
export function draw(svg, epochs, timeOf, most) {
  const shown = epochs.slice(-SHOWN);
  const first = shown[0].epoch;
  const span = Math.max(10, shown.at(-1).epoch - first);
  // One unit is one pixel, so that labels are readable on narrow screens.
  const width = svg.clientWidth || 900;
  svg.setAttribute('viewBox', `0 0 ${width} 260`);
  const right = width - MARGIN;
  const x = (epoch) => LEFT + ((epoch - first) / span) * (right - LEFT);
  const y = (value) => BOTTOM - (Math.min(Math.max(value, 0), most) / most) * (BOTTOM - TOP);
  // A point without neighbors is drawn as a dot: a line of no length with round ends.
  const path = ([...points]) => {
    if (points.length === 1) points.push(points[0]);
    return points.map(([a, b], i) => `${i ? 'L' : 'M'}${a.toFixed(1)} ${b.toFixed(1)}`).join('');
  };
  const children = [];
  for (const part of [0, 0.25, 0.5, 0.75, 1]) {
    const level = y(part * most);
    children.push(element('line', { class: 'axis', x1: LEFT, x2: right, y1: level, y2: level }));
    children.push(element('text', { x: LEFT - 8, y: level + 4, 'text-anchor': 'end' }, Math.round(part * most).toLocaleString('en')));
  }
  for (const index of [0, Math.floor(shown.length / 2), shown.length - 1]) {
    const anchor = index === 0 ? 'start' : index === shown.length - 1 ? 'end' : 'middle';
    children.push(element('text', { x: x(shown[index].epoch), y: BOTTOM + 22, 'text-anchor': anchor }, timeOf(shown[index].epoch)));
  }
  for (const run of runs(shown.filter(({ value }) => value !== null))) {
    const band = [
      ...run.map(({ epoch, ci95_high: high }) => [x(epoch), y(high)]),
      ...run.toReversed().map(({ epoch, ci95_low: low }) => [x(epoch), y(low)]),
    ];
    children.push(element('path', { class: 'band', d: `${path(band)}Z` }));
    children.push(element('path', { class: 'estimate', d: path(run.map(({ epoch, value }) => [x(epoch), y(value)])) }));
  }
  for (const run of runs(shown.filter((each) => each.true !== null))) {
    children.push(element('path', { class: 'ground-truth', d: path(run.map((each) => [x(each.epoch), y(each.true)])) }));
  }
  svg.replaceChildren(...children);
}
