// The WebSocket of a job: catches up after every interruption, and reports when the data is stale.

import { ask } from "./api.js";

const FIRST_WAIT = 250;
const LONGEST_WAIT = 4000;
// The server sends a message at least every 10 s.
const SILENCE = 25_000;

export class Connection extends EventTarget {
  #socket = null;
  #wait = FIRST_WAIT;
  #timer = 0;
  #closed = false;
  #silence = 0;
  run;
  lastHeard = Date.now();
  connected = false;

  // `query` is called for every attempt; it returns the job and its latest known epoch.
  constructor(run, query) {
    super();
    this.run = run;
    this.query = query;
    this.#open();
    this.wake = () => !document.hidden && this.#hurry();
    addEventListener("online", this.wake);
    document.addEventListener("visibilitychange", this.wake);
  }

  close() {
    this.#closed = true;
    clearTimeout(this.#timer);
    clearTimeout(this.#silence);
    removeEventListener("online", this.wake);
    document.removeEventListener("visibilitychange", this.wake);
    const socket = this.#socket;
    // Browsers log an error if a socket is closed before it is open.
    if (socket?.readyState === WebSocket.CONNECTING) socket.onopen = () => socket.close();
    else socket?.close();
  }

  #open() {
    const query = new URLSearchParams({ ...this.query(), start: this.run });
    const scheme = location.protocol === "https:" ? "wss:" : "ws:";
    const socket = new WebSocket(`${scheme}//${location.host}/ws?${query}`);
    this.#socket = socket;
    this.#listen();
    socket.onmessage = (event) => this.#hear(JSON.parse(event.data));
    socket.onclose = () => this.#lose(socket);
  }

  // A broken network closes no socket, so silence is detected by a timer.
  #listen() {
    clearTimeout(this.#silence);
    this.#silence = setTimeout(() => {
      const socket = this.#socket;
      socket.close();
      this.#lose(socket);
    }, SILENCE);
  }

  #hear(message) {
    if (this.#closed) return;
    this.#listen();
    this.lastHeard = Date.now();
    if (message.type === "reload") {
      location.reload();
      return;
    }
    if (!this.connected) {
      this.connected = true;
      this.#wait = FIRST_WAIT;
      this.dispatchEvent(new Event("connected"));
    }
    this.dispatchEvent(new CustomEvent("message", { detail: message }));
  }

  #lose(socket) {
    if (this.#closed || socket !== this.#socket) return;
    this.#socket = null;
    clearTimeout(this.#silence);
    if (this.connected) {
      this.connected = false;
      this.dispatchEvent(new Event("lost"));
    } else ask("/api/jobs").catch(() => {});
    // Randomized, so that many pages do not reconnect at the same time.
    const wait = this.#wait * (0.75 + 0.25 * Math.random());
    this.#wait = Math.min(2 * this.#wait, LONGEST_WAIT);
    this.#timer = setTimeout(() => this.#open(), wait);
  }

  #hurry() {
    if (this.#socket !== null || this.#closed) return;
    clearTimeout(this.#timer);
    this.#open();
  }
}
