import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import test from 'node:test';
import { vectorsOf } from './support.js';

test('the example in the README of randomizers runs', async () => {
  const page = readFileSync(new URL('../README.md', import.meta.url), 'utf8');
  const [, example] = /## Randomizers[^]*?```js\n([^]*?)```/.exec(page);
  const index = new URL('../src/index.js', import.meta.url).href;
  const [{ law }] = vectorsOf('value_stream').cases;
  const stored = new Map();
  globalThis.text = JSON.stringify({ ...law, noise: 0 }).replace('"noise":0', `"noise":${law.noise}`);
  globalThis.localStorage = { setItem: (name, value) => stored.set(name, value), getItem: (name) => stored.get(name) };
  const code = `${example.replace("'dpstream-device'", `'${index}'`)}\nexport { later, words };`;
  const { later, words } = await import(`data:text/javascript,${encodeURIComponent(code)}`);
  assert.equal(later.epoch, 3);
  assert.equal(words.length, 1);
  assert.equal(JSON.parse(stored.get('state')).epoch, 1);
});
