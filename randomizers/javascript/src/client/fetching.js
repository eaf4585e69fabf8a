/** Requests to a collector, sent by `fetch`. */

import { ClientError } from './errors.js';

const ANSWER_MAX = 8 * 1024 * 1024;

/** @typedef {{ status: number, text: string, retryAfter: string | null }} Answer */
/** @typedef {(method: string, path: string, body: Uint8Array | null, headers: Record<string, string>) => Promise<Answer>} Transport */

/**
 * Return a transport that sends each request once, over HTTPS and without redirects.
 *
 * @param {string} url - address of the collector
 * @param {{ timeout?: number, plain?: boolean }} [options] - `timeout` is in seconds per request;
 *   `plain` allows unencrypted HTTP to other machines, if other means protect it
 * @returns {Transport}
 */
export function fetching(url, { timeout = 30, plain = false } = {}) {
  const { protocol, hostname } = new URL(url);
  const own = ['localhost', '127.0.0.1', '[::1]'].includes(hostname);
  if (protocol !== 'https:' && !(protocol === 'http:' && (plain || own))) {
    throw new ClientError('app', 'the collector address is not encrypted; expected an address that starts with https');
  }
  return async (method, path, body, headers) => {
    try {
      const response = await fetch(url.replace(/\/+$/, '') + path, {
        method,
        headers,
        body: /** @type {any} */ (body),
        redirect: 'manual',
        credentials: 'omit',
        cache: 'no-store',
        referrerPolicy: 'no-referrer',
        signal: AbortSignal.timeout(timeout * 1000),
      });
      let text = '';
      const decoder = new TextDecoder();
      const reader = response.body?.getReader();
      for (let size = 0; reader; ) {
        const { done, value } = await reader.read();
        if (done) break;
        size += value.length;
        if (size > ANSWER_MAX) {
          await reader.cancel();
          throw new Error('the response is too long');
        }
        text += decoder.decode(value, { stream: true });
      }
      return { status: response.status, text: text + decoder.decode(), retryAfter: response.headers.get('retry-after') };
    } catch {
      // The original message can contain the address.
      throw new ClientError('unreachable', 'no response from the server: try again later');
    }
  };
}
