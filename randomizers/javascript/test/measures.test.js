import assert from 'node:assert/strict';
import { readFileSync, readdirSync } from 'node:fs';
import test from 'node:test';
import { EventHistory } from '../src/history.js';
import { parseJson } from '../src/index.js';
import { answerOf, numberText, readMeasure, scaled } from '../src/measures.js';

const folder = new URL('../vectors/measures/', import.meta.url);

for (const file of readdirSync(folder)) {
  test(`measures in ${file} have the same answers as in Python`, () => {
    const { measures, answer, labels, histories } = parseJson(readFileSync(new URL(file, folder), 'utf8'));
    const read = measures.map(readMeasure);
    assert.deepEqual(read.map((measure) => measure.answer), answer);
    assert.deepEqual(read.map((measure) => measure.labels), labels);
    for (const steps of histories) {
      let history = new EventHistory(read, { l: ['tv'] }, [[], ['buy']]);
      for (const { record, close, answers } of steps) {
        for (const [epoch, moment, event, numbers, labels] of record) history.record({ epoch, moment, event, numbers, labels });
        const saved = JSON.parse(JSON.stringify(history.toJson()));
        history = new EventHistory(read, { l: ['tv'] }, [[], ['buy']]);
        history.restore(saved);
        history.close(close);
        assert.deepEqual(read.map((_, index) => history.answer(index, close)), answers);
        assert.throws(() => history.answer(0, close + 1), /expected the last closed epoch/);
      }
    }
  });
}

test('sums are exact in any order, and saturate only when they are read', () => {
  const measure = readMeasure({ type: 'sum', number: 'n', within: 3, mean: { low: 0, high: 9e12 } });
  for (const order of [[9e12, 9e12, -9e12], [-9e12, 9e12, 9e12], [9e12, -9e12, 9e12]]) {
    const history = new EventHistory([measure]);
    order.forEach((n, index) => history.record({ epoch: index + 1, moment: index, event: '', numbers: { n }, labels: {} }));
    history.restore(JSON.parse(JSON.stringify(history.toJson())));
    history.close(3);
    assert.equal(history.answer(0, 3), 2 ** 32);
  }
});

test('numbers are rounded half to even and bounded as in Python', () => {
  const rounded = [0.0125, 0.0135, -2.5e-3, 1e300, -1e300, 0.0005].map((number) => scaled(number, 1000));
  assert.deepEqual(rounded, [12, 14, -2, 2 ** 53, -(2 ** 53), 0]);
  assert.deepEqual([1e-5, 2.5, 1e15, 0.0001, -1.5e-5].map(numberText), ['1e-05', '2.5', '1000000000000000', '0.0001', '-1.5e-05']);
  const tenths = readMeasure({ type: 'sum', number: 'n', buckets: [0, 0.1, 0.3] });
  assert.deepEqual([99, 100, 299, 300].map((value) => answerOf(tenths, value)), [1, 2, 2, 3]);
});

test('measures that cannot be are rejected', () => {
  const sum = { type: 'sum', number: 'n' };
  for (const wrong of [
    null, 5, {}, { type: 'average' }, { type: 'active', within: 0 }, { type: 'active', more: 1 }, sum, { ...sum, at_least: 1, mean: { low: 0, high: 1 } },
    { ...sum, mean: { low: 1, high: 1 } }, { ...sum, buckets: [1, 0] }, { ...sum, buckets: [0, 1e-9, 2e-9] }, { type: 'sum', at_least: 1 },
    { type: 'steps', steps: ['a', 'a'] }, { type: 'steps' }, { type: 'last', number: 'n', label: 'l', values: ['a'] }, { type: 'most', label: 'l' },
  ]) assert.throws(() => readMeasure(wrong), { name: 'DeviceError' }, JSON.stringify(wrong));
});
