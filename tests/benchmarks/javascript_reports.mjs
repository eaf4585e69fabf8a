// Milliseconds of a report in JavaScript, for every protocol the slowest law of the golden vectors.
import { readFileSync } from 'node:fs';
import { sealing } from '../../randomizers/javascript/src/client/sealing.js';
import { PROTOCOLS, createDevice, parseJson } from '../../randomizers/javascript/src/index.js';

const SECONDS = 0.5;
const folder = new URL('../../randomizers/javascript/vectors/', import.meta.url);

/** The mean of what one call of `work` takes, in milliseconds; `work` returns how many it stands for. */
function timed(work) {
  work();
  const begun = performance.now();
  let done = 0;
  while (performance.now() - begun < 1000 * SECONDS) done += work();
  return (performance.now() - begun) / done;
}

function slowest(protocol) {
  const { cases } = parseJson(readFileSync(new URL(`${protocol}.json`, folder), 'utf8'));
  return Math.max(
    ...cases.map(({ law, runs }) => {
      const { epochs } = runs[0];
      const enrolled = () => {
        const device = createDevice(protocol, law);
        device.enroll();
        return device;
      };
      return timed(() => {
        const device = enrolled();
        for (const [epoch, value] of epochs) device.report(epoch, value);
        return epochs.length;
      });
    }),
  );
}

const figures = Object.fromEntries(PROTOCOLS.map((protocol) => [protocol, slowest(protocol)]));

const seal = await sealing();
const { publicKey } = await crypto.subtle.generateKey('X25519', false, ['deriveBits']);
const key = new Uint8Array(await crypto.subtle.exportKey('raw', publicKey));
const content = new Uint8Array(8);
await seal(content, key, content);
const begun = performance.now();
const boxes = 300;
for (let box = 0; box < boxes; box++) await seal(content, key, content);
figures['seal a report'] = (performance.now() - begun) / boxes;

console.log(JSON.stringify(figures));
