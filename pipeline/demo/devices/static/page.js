// The visitor's browser as a device: its question, data, reports and privacy loss.

import { Device, IndexedDbStore } from '/device/client/index.js';
import { draw } from './chart.js';
import { dissect } from './envelope.js';
import { kept } from './keeping.js';
import { watched } from './watching.js';

const LIMIT = { epsilon: 8, delta: 0 };
const $ = (id) => document.getElementById(id);
const number = (value) => Math.round(value).toLocaleString('en');

const config = await (await fetch('/config.json')).json();
const store = new IndexedDbStore();
const transport = watched(config.collectors, (sent) => {
  kept.last = sent;
  showLeft();
});
const device = new Device({
  url: config.collectors[0],
  job: config.job,
  signers: [config.signer],
  limit: LIMIT,
  store,
  transport,
});

let terms = null;
let joined = false;
let busy = false;

function epochNow() {
  const { start, milliseconds } = terms.epochs;
  return Math.floor((Date.now() - start) / milliseconds) + 1;
}

function beginsAt(epoch) {
  return new Date(terms.epochs.start + (epoch - 1) * terms.epochs.milliseconds);
}

const clock = (moment) => moment.toLocaleTimeString('en-US', { hourCycle: 'h23' });

function showProblem(error) {
  $('problem').hidden = error === null;
  $('problem').textContent = error === null ? '' : error.message;
}

async function member() {
  const { text } = await store.read();
  return text === null ? null : JSON.parse(text).members[config.job];
}

function showTerms() {
  const { epsilon } = terms.guarantee;
  const sure = Math.ceil(Number((1000 - 1000 / (1 + Math.exp(epsilon))).toFixed(6))) / 10;
  const { milliseconds } = terms.epochs;
  $('terms').textContent =
    `The question is asked every ${milliseconds / 1000} seconds. An observer who sees everything that this browser ever sends, and ` +
    `guesses whether you always said yes or always said no, starting from a 50:50 guess, can be at most ${sure} % sure ` +
    `(epsilon ${epsilon}), however long you take part in this job. A job that replaces it costs as much again.`;
}

async function showHeld() {
  const held = await member();
  joined = Boolean(held) && !held.gone;
  $('join').hidden = joined;
  $('leave').hidden = !joined;
  const value = kept.value;
  $('value').setAttribute('aria-checked', String(value));
  $('value-words').textContent = `Dark mode is ${value ? 'on' : 'off'}`;
  if (!joined) {
    $('state-words').textContent = 'Nothing else is stored yet.';
    $('state').textContent = '';
    return;
  }
  const drawn = held.epoch;
  $('state-words').textContent = drawn
    ? `Also stored in this browser: your device's random draws, up to the question asked at ${clock(beginsAt(drawn))}.`
    : 'Also stored in this browser: that you joined. No random numbers have been generated yet.';
  const { statement: _, ...secret } = held;
  $('state').textContent = JSON.stringify(secret, null, 1);
}

function showLeft() {
  const sent = kept.last;
  if (!sent) return;
  const parts = dissect(sent.body);
  const words = parts.words.join(' and ') || 'nothing this time';
  $('left-words').textContent =
    `${sent.body.length} bytes, for the question asked at ${clock(beginsAt(parts.epoch))}: “I say ${words}.” ` +
    'That number is random; your answer only makes some numbers more likely than others.';
  const rows = parts.fields.map(({ kind, name, hex }) => {
    const row = document.createElement('div');
    row.className = kind;
    const [label, value] = [document.createElement('span'), document.createElement('span')];
    label.textContent = name;
    value.textContent = hex;
    row.append(label, value);
    return row;
  });
  $('bytes').replaceChildren(...rows);
  $('bytes').hidden = false;
  $('bytes').dataset.epoch = String(parts.epoch);
  $('bytes').dataset.words = JSON.stringify(parts.words);
  $('bytes').dataset.report = parts.report;
  $('delivery').textContent = sent.words;
  $('delivery').dataset.state = sent.state;
}

async function showSpent() {
  const account = await device.account();
  const spent = Number(account.spent.epsilon) / 1e9;
  $('spent-words').textContent = `Epsilon ${spent} of the ${LIMIT.epsilon} that this browser allows, for all questions to this population combined.`;
  $('spent-bar').style.width = `${Math.min(100, (100 * spent) / LIMIT.epsilon)}%`;
  $('spent-bar').parentElement.setAttribute('aria-valuenow', String(spent));
}

async function showSeen() {
  const epochs = await (await fetch('/estimates.json')).json();
  const last = epochs.filter(({ value }) => value !== null).at(-1);
  if (!last) return;
  $('seen-words').textContent = `At ${clock(beginsAt(last.epoch))}: ${last.description}.`;
  $('seen-words').dataset.epoch = String(last.epoch);
  $('seen-assumes').textContent = [last.assumption, last.warning].filter(Boolean).join(' ');
  draw($('chart'), epochs, (epoch) => clock(beginsAt(epoch)), config.devices);
}

async function show() {
  await showHeld();
  showLeft();
  await showSpent();
}

/** Report once per epoch, as soon as it starts; resend pending reports. */
async function step() {
  if (busy || terms === null) return;
  busy = true;
  try {
    if (joined) {
      const held = await member();
      const drawn = held?.epoch ?? 0;
      if (held?.gone) {
        terms = await device.terms();
        showTerms();
        throw new Error('The job was replaced. To participate again, choose “Take part”.');
      }
      const epoch = epochNow();
      if (epoch >= terms.epochs.first && epoch > drawn) await device.report(kept.value);
      else if (held?.waiting?.length) await device.send();
      showProblem(null);
    }
  } catch (error) {
    showProblem(error);
  } finally {
    busy = false;
  }
  await show();
}

async function begin() {
  while (terms === null) {
    try {
      terms = await device.terms();
      showProblem(null);
    } catch (error) {
      if (error.kind !== 'unreachable') showProblem(error);
      await new Promise((resolve) => setTimeout(resolve, 1000));
    }
  }
  showTerms();
  $('join').disabled = false;
  await show();
  setInterval(step, 500);
  setInterval(() => showSeen().catch(() => {}), 1000);
}

$('devices').textContent = number(config.devices + 1);
$('operators').href = config.operators;
$('value').addEventListener('click', async () => {
  kept.value = !kept.value;
  await showHeld();
});
$('join').addEventListener('click', async () => {
  $('join').disabled = true;
  try {
    // Join exactly the terms shown.
    await device.join({ ...terms, again: true });
    showProblem(null);
  } catch (error) {
    showProblem(error);
  }
  $('join').disabled = false;
  await show();
});
$('leave').addEventListener('click', async () => {
  await device.leave();
  kept.last = null;
  await show();
});
addEventListener('storage', () => show());
await begin();
