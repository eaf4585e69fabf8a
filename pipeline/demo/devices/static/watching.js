// A way to the collectors that shows what goes over it.

import { fetching } from '/device/client/fetching.js';

/**
 * The client's transport: one collector after the other is asked until one answers.
 *
 * @param {string[]} urls
 * @param {(sent: { body: Uint8Array, state: string, words: string }) => void} seen
 */
export function watched(urls, seen) {
  const ways = urls.map((url) => fetching(url));
  return async (method, path, body, headers) => {
    const left = (state, words) => body && seen({ body, state, words });
    left('sending', 'On its way …');
    for (const way of ways) {
      try {
        const answer = await way(method, path, body, headers);
        const now = new Date().toLocaleTimeString('en-GB');
        if (answer.status === 202) left('taken', `Acknowledged at ${now}: it counts, once.`);
        else left('refused', `The collector answers ${answer.status}: it is sent again, or given up.`);
        return answer;
      } catch {
        continue;
      }
    }
    left('waiting', 'No network: it is kept, and sent again unchanged.');
    throw new Error('no collector answers');
  };
}
