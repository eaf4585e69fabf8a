/** Encryption for the shuffler: HPKE with `@hpke/core`, loaded on demand. */

import { ClientError } from './errors.js';

/** @returns {Promise<import('./steps.js').Seal>} */
export async function sealing() {
  let hpke;
  try {
    // @ts-ignore: an optional dependency
    hpke = await import('@hpke/core');
  } catch {
    throw new ClientError('app', 'reports of this job are sealed, which requires the package @hpke/core. Install it: npm install @hpke/core');
  }
  const { Aes128Gcm, CipherSuite, DhkemX25519HkdfSha256, HkdfSha256 } = hpke;
  const suite = new CipherSuite({ kem: new DhkemX25519HkdfSha256(), kdf: new HkdfSha256(), aead: new Aes128Gcm() });
  return async (content, key, info) => {
    const recipientPublicKey = await suite.kem.deserializePublicKey(key);
    const { enc, ct } = await suite.seal({ recipientPublicKey, info }, content);
    const box = new Uint8Array([...new Uint8Array(enc), ...new Uint8Array(ct)]);
    const digest = await globalThis.crypto.subtle.digest('SHA-256', /** @type {any} */ (key));
    return { box, keyId: new Uint8Array(digest).slice(0, 8) };
  };
}
