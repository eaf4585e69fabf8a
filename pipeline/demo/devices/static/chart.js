// The published curve, its interval and the truth.

const NAMESPACE = 'http://www.w3.org/2000/svg';
const SHOWN = 60;
const LEFT = 56;
const RIGHT = 888;
const TOP = 12;
const BOTTOM = 226;

function element(name, attributes, text = '') {
  const made = document.createElementNS(NAMESPACE, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.textContent = text;
  return made;
}

/** Draw the last epochs, from zero to all devices. */
export function draw(svg, epochs, timeOf, most) {
  const shown = epochs.slice(-SHOWN);
  const first = shown[0].epoch;
  const span = Math.max(10, shown.at(-1).epoch - first);
  const x = (epoch) => LEFT + ((epoch - first) / span) * (RIGHT - LEFT);
  const y = (value) => BOTTOM - (Math.min(Math.max(value, 0), most) / most) * (BOTTOM - TOP);
  const path = (points) => points.map(([a, b], i) => `${i ? 'L' : 'M'}${a.toFixed(1)} ${b.toFixed(1)}`).join('');
  const known = shown.filter(({ value }) => value !== null);
  const children = [];
  for (const part of [0, 0.25, 0.5, 0.75, 1]) {
    const level = y(part * most);
    children.push(element('line', { class: 'axis', x1: LEFT, x2: RIGHT, y1: level, y2: level }));
    children.push(element('text', { x: LEFT - 8, y: level + 4, 'text-anchor': 'end' }, Math.round(part * most).toLocaleString('en')));
  }
  for (const index of [0, Math.floor(shown.length / 2), shown.length - 1]) {
    const anchor = index === 0 ? 'start' : index === shown.length - 1 ? 'end' : 'middle';
    children.push(element('text', { x: x(shown[index].epoch), y: BOTTOM + 22, 'text-anchor': anchor }, timeOf(shown[index].epoch)));
  }
  const band = [
    ...known.map(({ epoch, high }) => [x(epoch), y(high)]),
    ...known.toReversed().map(({ epoch, low }) => [x(epoch), y(low)]),
  ];
  if (known.length) {
    children.push(element('path', { class: 'band', d: `${path(band)}Z` }));
    children.push(element('path', { class: 'estimate', d: path(known.map(({ epoch, value }) => [x(epoch), y(value)])) }));
  }
  const truth = shown.filter((each) => each.true !== null);
  if (truth.length) {
    children.push(element('path', { class: 'truth', d: path(truth.map((each) => [x(each.epoch), y(each.true)])) }));
  }
  svg.replaceChildren(...children);
}
