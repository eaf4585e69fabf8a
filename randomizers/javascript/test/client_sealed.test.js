import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import test from 'node:test';
import { sealedReport } from '../vectors/client/sealed_report.js';

const { sealed } = JSON.parse(readFileSync(new URL('../vectors/client/client.json', import.meta.url), 'utf8'));
const hpke = await import('@hpke/core').catch(() => null);
const skip = hpke ? false : 'needs @hpke/core: npm install';
const hex = (text) => new Uint8Array(Buffer.from(text, 'hex'));

/** Decrypt the content of a sealed report with the shuffler's key. */
async function opened(body) {
  const { Aes128Gcm, CipherSuite, DhkemX25519HkdfSha256, HkdfSha256 } = hpke;
  const suite = new CipherSuite({ kem: new DhkemX25519HkdfSha256(), kdf: new HkdfSha256(), aead: new Aes128Gcm() });
  const recipientKey = await suite.kem.importKey('raw', hex(sealed.privateKey), false);
  const info = Buffer.concat([
    Buffer.from('dpstream sealed report\0device\0'),
    body.subarray(8, 48),
    body.subarray(72, 88),
  ]);
  const box = body.subarray(89);
  const plain = await suite.open({ recipientKey, enc: box.subarray(0, 32), info }, box.subarray(32));
  return Buffer.from(plain).toString('hex');
}

test('reports sealed by Python and by JavaScript can be decrypted', { skip }, async () => {
  assert.equal(await opened(Buffer.from(sealed.body, 'base64')), sealed.content);
  assert.equal(await opened(Buffer.from(sealed.javascript, 'base64')), sealed.content);
});

test('a sealed report differs from the report that Python sends only in its ciphertext', { skip }, async () => {
  const [ours, theirs] = [await sealedReport(), Buffer.from(sealed.body, 'base64')];
  assert.equal(await opened(ours), sealed.content);
  // Everything except the ciphertext is the same as in Python.
  assert.deepEqual(ours.subarray(0, 89), theirs.subarray(0, 89));
  assert.equal(ours.length, theirs.length);
  assert.notDeepEqual(ours.subarray(89), theirs.subarray(89));
  ours[72] ^= 1;
  await assert.rejects(opened(ours));
});

test('sealed jobs are rejected without the sealing package', { skip: hpke ? 'has @hpke/core' : false }, async () => {
  await assert.rejects(sealedReport(), { kind: 'app', message: /npm install @hpke\/core/ });
});
