// Data that the page stores in this browser: the switch, and a copy of the last request.

const VALUE = 'dpstream-demo-value';
const LAST = 'dpstream-demo-last';

export const kept = {
  get value() {
    return localStorage.getItem(VALUE) === '1';
  },
  set value(on) {
    localStorage.setItem(VALUE, on ? '1' : '0');
  },
  get last() {
    const text = localStorage.getItem(LAST);
    if (text === null) return null;
    const { body, ...rest } = JSON.parse(text);
    return { ...rest, body: Uint8Array.from(body) };
  },
  set last(sent) {
    if (sent === null) localStorage.removeItem(LAST);
    else localStorage.setItem(LAST, JSON.stringify({ ...sent, body: [...sent.body] }));
  },
};
