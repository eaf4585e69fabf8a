/**
 * A sealed report that is made here, for Python to open. `node sealed_report.js` prints it, in base64.
 */

import { readFileSync } from 'node:fs';
import { Device } from '../../src/client/index.js';
import { MemoryStore, countedBytes } from '../../test/support.js';

/** The body of a request. */
export async function sealedReport() {
  const { sealed, signer } = JSON.parse(readFileSync(new URL('client.json', import.meta.url), 'utf8'));
  const sent = [];
  const device = new Device({
    job: 'logins',
    signers: [signer],
    limit: { epsilon: 1 },
    store: new MemoryStore(),
    read: countedBytes(sealed.label).read,
    now: () => sealed.now,
    transport: async (method, path, body) => {
      if (body) sent.push(Buffer.from(body));
      return { status: method === 'POST' ? 202 : 200, text: sealed.description, retryAfter: null };
    },
  });
  await device.join();
  await device.report(true);
  return sent[0];
}

if (process.argv[1] === import.meta.filename) console.log((await sealedReport()).toString('base64'));
