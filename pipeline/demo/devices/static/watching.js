// A transport to the collectors that shows each request.

import { fetching } from '/device/client/fetching.js';

/**
 * The client's transport: tries one collector after the other until one responds.
 *
 * @param {string[]} urls
 * @param {(sent: { body: Uint8Array, state: string, words: string }) => void} seen
 */
export function watched(urls, seen) {
  const ways = urls.map((url) => fetching(url));
  return async (method, path, body, headers) => {
    const left = (state, words) => body && seen({ body, state, words });
    left('sending', 'Sending …');
    for (const way of ways) {
      try {
        const answer = await way(method, path, body, headers);
        const now = new Date().toLocaleTimeString('en-US', { hourCycle: 'h23' });
        if (answer.status === 202) left('taken', `Acknowledged at ${now}: the report counts once.`);
        else left('rejected', `The collector responded with status ${answer.status}: the report is resent or dropped.`);
        return answer;
      } catch {
        continue;
      }
    }
    left('waiting', 'No network: the report is stored, and resent unchanged.');
    throw new Error('no collector responds');
  };
}
