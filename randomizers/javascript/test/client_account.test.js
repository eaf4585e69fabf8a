import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import test from 'node:test';
import { Device } from '../src/client/index.js';
import { readStatement } from '../src/client/statements.js';
import { MemoryStore } from './support.js';

const vectors = JSON.parse(readFileSync(new URL('../vectors/client/client.json', import.meta.url), 'utf8'));
const DAY = 86_400_000;

/** Return a collector's description of a job of the vectors. */
const described = (label) => vectors.scenarios.find((each) => each.label === label).steps[0].requests[0].text;

const JOBS = { stream: described('client future_rand'), epoch: described('client single_message') };

const told = (text) => readStatement(atob(JSON.parse(text).statement));

/** Yield pseudorandom numbers that are the same in every run (xorshift). */
function* numbers(state) {
  for (;;) {
    state ^= state << 13;
    state ^= state >>> 17;
    state ^= state << 5;
    yield state >>> 0;
  }
}

/** A store that records every draw ever stored, whether or not it was sent. */
class Watched extends MemoryStore {
  drawn = new Map();
  meanwhile = null;

  async replace(revision, text) {
    const { meanwhile } = this;
    this.meanwhile = null;
    if (meanwhile) await meanwhile();
    if (!(await super.replace(revision, text))) return false;
    for (const member of Object.values(JSON.parse(text).members)) {
      for (const { epoch, body } of member?.waiting ?? []) {
        this.drawn.set(epoch, (this.drawn.get(epoch) ?? new Set()).add(body));
      }
    }
    return true;
  }
}

/** Run random steps with two tabs, false clocks, a false server, and tabs that close at any step. */
async function walk(unit, seed, steps) {
  const text = JOBS[unit];
  const statement = told(text);
  const random = numbers(seed);
  const below = (bound) => random.next().value % bound;
  const store = new Watched();
  const start = statement.epochs.start;
  const clocks = [start, start];
  const limit = { epsilon: 1 + below(5), delta: 1 };
  let server = start;
  let status = 202;
  let left = Infinity;
  const carryOut = async (action) => {
    left -= 1;
    if (left === 0) throw new Error('the page is closed');
    const done = await action();
    if (left === 0.5) throw new Error('the page is closed');
    return done;
  };
  const open = (tab) =>
    new Device({
      job: statement.job,
      signers: vectors.signer,
      limit,
      store: { read: () => store.read(), replace: (revision, kept) => carryOut(() => store.replace(revision, kept)) },
      transport: (method, path) =>
        carryOut(() => ({
          status: method === 'GET' ? 200 : status,
          text: path.endsWith('/time') ? `{"time": ${server}}` : text,
          retryAfter: null,
        })),
      now: () => clocks[tab],
      monotonic: () => 0,
    });
  const tabs = [open(0), open(1)];
  const jump = () => (below(2) ? below(9) - 4 : below(2001) - 1000) * (DAY / 2);
  const value = () => (unit === 'stream' ? below(2) === 1 : null);
  for (let step = 0; step < steps; step++) {
    const tab = below(2);
    const action = below(8);
    try {
      if (action === 0) server += jump();
      if (action === 1) clocks[tab] += jump();
      if (action === 2) server = clocks[0] = clocks[1] = start + below(3) * DAY;
      if (action === 3) status = [202, 409, 410, 503][below(4)];
      if (action === 4) {
        left = 1 + below(5) + below(2) / 2;
        await tabs[tab].join();
        await tabs[tab].report(value());
      }
      if (action === 5) {
        store.meanwhile = async () => {
          server += jump();
          await tabs[1 - tab].report(value()).catch(() => {});
        };
      }
      if (action >= 5) {
        await tabs[tab].join();
        await tabs[tab].report(value());
      }
    } catch (error) {
      assert.ok(error.name === 'ClientError' || left < 1, error.stack);
    }
    if (left < 1) tabs[tab] = open(tab);
    left = Infinity;
    store.meanwhile = null;
    const { entries, spent } = await tabs[0].account();
    const indices = [...store.drawn.keys()].map((epoch) =>
      unit === 'stream' ? Math.floor((epoch - 1) / statement.epochs.count) : epoch,
    );
    for (const bodies of store.drawn.values()) assert.equal(bodies.size, 1);
    for (const { charges } of entries) {
      assert.equal(charges, Math.max(new Set(indices).size, Number(unit === 'stream')));
    }
    assert.ok(spent.epsilon <= BigInt(limit.epsilon) * 1_000_000_000n);
  }
  return store.drawn.size;
}

for (const unit of Object.keys(JOBS)) {
  test(`each drawn ${unit} is charged once, regardless of tabs, clocks and servers`, async () => {
    let drawn = 0;
    for (let seed = 1; seed <= 60; seed++) drawn += await walk(unit, seed * 7919, 30);
    assert.ok(drawn > 100, `${drawn} draws`);
  });

  test(`a wrong server time when joining does not allow another ${unit}`, async () => {
    const statement = told(JOBS[unit]);
    for (const days of [-3, 1, 400, 100_000]) {
      let own = statement.epochs.start;
      let lie = days * DAY;
      const transport = async (method, path) => ({
        status: method === 'GET' ? 200 : 202,
        text: path.endsWith('/time') ? `{"time": ${own + lie}}` : JOBS[unit],
        retryAfter: null,
      });
      const device = new Device({
        job: statement.job,
        signers: vectors.signer,
        limit: { epsilon: 2, delta: 1 },
        store: new MemoryStore(),
        transport,
        now: () => own,
      });
      await device.join();
      lie = 0;
      let drawn = 0;
      for (let day = 0; day < 12; day++, own += DAY) {
        drawn += await device.report(unit === 'stream' ? true : null).then(
          (report) => Number(report.drawn),
          (error) => assert.equal(error.kind, 'limit') ?? 0,
        );
      }
      assert.equal(drawn, unit === 'stream' ? 8 : 2);
      assert.equal((await device.account()).spent.epsilon, 2_000_000_000n);
    }
  });
}

test('a deployment older than the app allows is rejected, and a device joins under the terms it was given', async () => {
  const statement = told(JOBS.stream);
  let text = JOBS.stream;
  const options = {
    job: statement.job,
    signers: vectors.signer,
    limit: { epsilon: 4 },
    transport: async (method, path) => ({ status: path.endsWith('/time') ? 404 : 200, text, retryAfter: null }),
    now: () => statement.epochs.start,
  };
  const store = new MemoryStore();
  const late = new Device({ ...options, store, since: statement.deployed + 1 });
  await assert.rejects(late.terms(), { kind: 'statement', message: /older than the app allows/ });
  await assert.rejects(late.join(), { kind: 'statement' });
  await assert.rejects(late.join({ statement: statement.text }), { kind: 'statement' });
  const device = new Device({ ...options, store, since: statement.deployed });
  const terms = await device.terms();
  assert.equal(store.text, null);
  assert.deepEqual([terms.charges, terms.spent.epsilon, terms.recurring, terms.sealed], [4n, 0n, true, false]);
  text = 'something else by now';
  await device.join(terms);
  assert.equal(JSON.parse(store.text).members[statement.job].statement, statement.text);
});
