/** Cells that an item raises, as in `randomizers/cell_codes`. */

import { check, constants, list, oneOf, shown, whole } from './laws.js';
import { pairwiseHash } from './hashes.js';

/**
 * @typedef {object} CellCode
 * @property {number} cells - number of cells
 * @property {number} messages - maximum number of cells that an item raises
 * @property {number} size - number of items
 * @property {(item: bigint) => number[]} encode - cells of an item; cells are numbered from 0, items from 1
 */

const MOST_SIZE = Number.MAX_SAFE_INTEGER;
const MOST_BUCKETS = 1 << 24;

/** @type {Record<string, (body: any) => CellCode>} */
const READERS = { rows, levels, kept_nodes: keptNodes, grid, prefixes };

/**
 * @param {any} body
 * @param {string[]} [kinds]
 * @returns {CellCode}
 */
export function readCode(body, kinds = Object.keys(READERS)) {
  oneOf('the kind of a code', body?.kind, kinds);
  const code = READERS[body.kind](body);
  check(code.cells <= 2 ** 32, `the code has ${code.cells} cells; expected at most 2^32`);
  return code;
}

/** @param {any} body */
function rows(body) {
  constants('rows', body, ['kind', 'size', 'rows', 'buckets', 'seed']);
  const size = whole('size', body.size, 1, MOST_SIZE);
  const number = whole('rows', body.rows, 1, 64);
  const buckets = whole('buckets', body.buckets, 1, MOST_BUCKETS);
  check(typeof body.seed === 'string', `seed is ${shown(body.seed)}; expected text`);
  check(body.seed || (number === 1 && buckets === size), `seed is empty for ${number} rows; expected text, unless one row has a bucket per item`);
  const hashed = body.seed ? number : 0;
  const hashes = Array.from({ length: hashed }, (_, row) => pairwiseHash(`${body.seed} row ${row}`));
  return {
    size,
    cells: number * buckets,
    messages: number,
    encode: (/** @type {bigint} */ item) =>
      hashed
        ? hashes.map((hash, row) => hash(item, buckets) + row * buckets)
        : [Number(item) - 1],
  };
}

/** @param {any} body */
function levels(body) {
  constants('levels', body, ['kind', 'size', 'branching']);
  const size = whole('size', body.size, 1, MOST_SIZE);
  /** @type {number[]} */
  const branching = list('branching', body.branching).map((b) => whole('branching', b, 2, MOST_SIZE));
  const nodes = [1];
  for (const b of branching) nodes.push(nodes[nodes.length - 1] * b);
  const leaves = nodes[nodes.length - 1];
  check(branching.length && leaves >= size && leaves <= 2 ** 32, `branching has ${leaves} leaves; expected ${size} to 2^32`);
  return {
    size,
    cells: nodes.reduce((sum, each) => sum + each),
    messages: nodes.length,
    encode: (/** @type {bigint} */ item) => {
      let offset = 0;
      return nodes.map((each) => {
        const cell = offset + Math.floor((Number(item) - 1) / (leaves / each));
        offset += each;
        return cell;
      });
    },
  };
}

/** @param {any} body */
function keptNodes(body) {
  constants('kept_nodes', body, ['kind', 'size']);
  const size = whole('size', body.size, 1, 2 ** 32);
  return {
    size,
    cells: size,
    messages: size.toString(2).length,
    encode: (/** @type {bigint} */ item) => {
      const cells = [];
      for (let node = item; node <= size; node += node & -node) cells.push(Number(node) - 1);
      return cells;
    },
  };
}

/** @param {any} body */
function grid(body) {
  constants('grid', body, ['kind', 'axes']);
  const axes = list('axes', body.axes).map((axis) => readCode(axis, ['levels', 'kept_nodes']));
  check(axes.length, 'axes is empty; expected at least one axis');
  /** @param {(axis: CellCode) => number} of */
  const product = (of) => axes.reduce((all, axis) => all * of(axis), 1);
  return {
    size: product((axis) => axis.size),
    cells: product((axis) => axis.cells),
    messages: product((axis) => axis.messages),
    encode: (/** @type {bigint} */ item) => {
      // For items and cells alike, the last coordinate varies fastest.
      let left = item - 1n;
      const coordinates = [...axes].reverse().map((axis) => {
        const coordinate = left % BigInt(axis.size);
        left /= BigInt(axis.size);
        return coordinate;
      });
      return axes.reduce((cells, axis) => {
        const own = axis.encode(/** @type {bigint} */ (coordinates.pop()) + 1n);
        return cells.flatMap((cell) => own.map((each) => cell * axis.cells + each));
      }, [0]);
    },
  };
}

/** @param {any} body */
function prefixes(body) {
  constants('prefixes', body, ['kind', 'levels', 'seed']);
  let cells = 0;
  let longest = 0;
  const parts = list('levels', body.levels).map((level, index) => {
    const [length, buckets] = list('level', level);
    whole('length', length, longest + 1, 61);
    whole('buckets', buckets, 2, Math.min(2 ** length, MOST_BUCKETS));
    const part = {
      start: cells,
      length,
      buckets,
      hash: buckets < 2 ** length ? pairwiseHash(`${body.seed} level ${index}`) : null,
    };
    cells += buckets;
    longest = length;
    return part;
  });
  check(parts.length, 'levels is empty; expected at least one level');
  return {
    size: 2 ** longest,
    cells,
    messages: parts.length,
    encode: (/** @type {bigint} */ item) =>
      parts.map(({ start, length, buckets, hash }) => {
        const prefix = (item - 1n) >> BigInt(longest - length);
        return start + (hash ? hash(prefix, buckets) : Number(prefix));
      }),
  };
}
