// Build the page from its address, and again when the address changes.

import { ask } from "./api.js";
import { Connection } from "./connection.js";
import { byId, h, setText } from "./dom.js";
import { time } from "./format.js";
import { JobList, alike } from "./job_list.js";
import { JobPage } from "./job_page.js";
import { Model } from "./model.js";
import { MOST_JOBS, OF_ANY_JOB, view } from "./view.js";

const dark = matchMedia("(prefers-color-scheme: dark)");
const KEPT = "dpstream-theme";

class Page {
  jobs = [];
  // The job that was the only one: it stays selected when others appear.
  only = "";
  run = "";
  shown = null;
  lost = new Map();
  kafka = { answers: true, since: null };

  async start() {
    document.body.classList.toggle("embed", Boolean(view.state.embed));
    this.#theme();
    byId("theme").addEventListener("click", () => this.#switch());
    byId("logout").addEventListener("click", () => this.#leave());
    dark.addEventListener("change", () => this.#theme());
    view.addEventListener("change", (event) => this.#change(event.detail.before));
    document.addEventListener("click", (event) => this.#follow(event));
    await this.#begin();
  }

  // Request the list of jobs; retry until the server responds.
  async #begin(wait = 250) {
    try {
      const { run, jobs, kafka, login } = await ask("/api/jobs");
      [this.run, this.jobs, this.kafka] = [run, jobs, kafka];
      byId("logout").hidden = !login;
    } catch (failure) {
      this.#warn(`The server does not respond: ${failure.message}. Retrying.`);
      setTimeout(() => this.#begin(Math.min(2 * wait, 4000)), wait);
      return;
    }
    await this.#show();
  }

  // Log out: the server ends the session, and shows the login form.
  async #leave() {
    try {
      await fetch("/logout", { method: "POST" });
      location.reload();
    } catch (failure) {
      this.#warn(`Logout failed: ${failure.message}. Try again.`);
    }
  }

  // Replace the content of the page, or its placeholders.
  #fill(...elements) {
    const main = byId("main");
    main.replaceChildren(...elements);
    main.removeAttribute("aria-busy");
  }

  get job() {
    return view.state.job || this.only;
  }

  async #show() {
    const turn = (this.turn = Symbol("turn"));
    this.shown?.close();
    this.shown = null;
    this.lost.clear();
    if (!this.jobs.some(({ job }) => job === this.only)) this.only = this.jobs.length === 1 ? this.jobs[0].job : "";
    this.#say();
    this.#trail();
    document.title = this.job ? `${this.job} · dpstream` : "dpstream";
    if (!this.job) {
      const list = new JobList(this.jobs);
      this.#fill(list.element);
      this.#await(() => (this.jobs.length === 1 ? this.#show() : list.show(this.jobs)), () => list.close());
      return;
    }
    const names = [...new Set([this.job, ...view.state.with.split(",")])].filter(Boolean).slice(0, MOST_JOBS);
    const loaded = await Promise.allSettled(names.map((name) => Model.load(name, this.run)));
    const models = loaded.filter((each) => each.status === "fulfilled").map((each) => each.value);
    if (turn !== this.turn || loaded[0].status === "rejected") {
      for (const model of models) model.close();
      if (turn !== this.turn) return;
      this.#fill(this.#missing(loaded[0].reason));
      // The job may be deployed soon, or the server may still be starting.
      this.#await(() => this.jobs.some((job) => job.job === this.job) && this.#show());
      return;
    }
    for (const model of models) this.#watch(model, model.connection);
    this.shown = new JobPage(models, () => this.theme, () => this.#show());
    const left = loaded.flatMap(({ status, reason }, index) => (status === "rejected" ? [h("p", { class: "sentence" }, `Loading ${names[index]} failed: ${reason.message}`)] : []));
    this.#fill(...left, this.shown.element);
    document.title = `${models[0].detail.title} · dpstream`;
    await this.shown.load();
  }

  // Without a selected job, watch the list of jobs.
  #await(heard, close = () => {}) {
    const connection = new Connection(this.run, () => ({}));
    this.#watch(connection, connection, (type) => ["hello", "jobs"].includes(type) && heard());
    const ended = () => {
      connection.close();
      close();
    };
    this.shown = { close: ended, change() {}, restyle() {} };
  }

  #missing(reason) {
    return h("section", {}, h("h1", {}, `Job ${this.job} is not available`), h("p", { class: "sentence" }, reason.message), h("p", {}, h("a", { href: "/" }, "All jobs")));
  }

  // Watch a connection: its state, and the list of jobs that it sends.
  #watch(source, connection, heard = () => {}) {
    source.addEventListener("lost", () => {
      this.lost.set(source, connection.lastHeard);
      this.#say();
    });
    source.addEventListener("connected", () => {
      this.lost.delete(source);
      this.#say();
    });
    connection.addEventListener("message", ({ detail: message }) => {
      if (message.kafka) this.kafka = message.kafka;
      else if (message.type === "kafka") this.kafka = message;
      if (message.jobs) {
        this.jobs = message.jobs;
        this.#trail();
      }
      if (message.kafka || message.type === "kafka") this.#say();
      heard(message.type);
    });
  }

  // Show whether the numbers are current; if not, show a warning and mark them as stale.
  #say() {
    const since = Math.min(...this.lost.values());
    const cut = this.lost.size > 0;
    const silent = this.kafka?.answers === false;
    document.body.classList.toggle("stale", cut || silent);
    setText(byId("connection"), cut ? "reconnecting" : silent ? "Kafka: no response" : "live");
    byId("connection").className = `connection ${cut || silent ? "lost" : "live"}`;
    if (cut) this.#warn(`Connection lost. The numbers below are from ${time(since)}; they update automatically after reconnecting.`);
    else if (silent) this.#warn(`Kafka ${this.kafka.since ? `has not responded to the server since ${time(this.kafka.since)}` : "does not respond to the server"}. The numbers below may be outdated; they update automatically once it responds.`);
    else this.#warn("");
  }

  #warn(words) {
    setText(byId("warning"), words);
    byId("warning").hidden = !words;
  }

  // Menus of the selected job, and of the job to compare it with.
  #trail() {
    const names = this.jobs.map((job) => job.job);
    const twice = (title) => this.jobs.filter((job) => job.title === title).length > 1;
    const titles = new Map(this.jobs.map(({ job, title }) => [job, title !== job && twice(title) ? `${title} (${job})` : title]));
    const own = this.jobs.find(({ job }) => job === this.job);
    const others = this.jobs.filter((job) => own && job !== own && alike(own, job)).map(({ job }) => job);
    const key = JSON.stringify([[...titles], others, this.job, view.state.with]);
    if (key === this.key) return;
    this.key = key;
    if (!this.job || names.length < 2) {
      byId("trail").replaceChildren();
      return;
    }
    const choice = (label, current, options, none, chosen) => h("select", { "aria-label": label, onchange: (event) => chosen(event.target.value) },
      none && h("option", { value: "" }, none), options.map((name) => h("option", { value: name, selected: name === current }, titles.get(name) ?? name.split(",").map((each) => titles.get(each) ?? each).join(" and "))));
    // The compared jobs are an additional choice if a link specifies several, or another job.
    const { with: compared } = view.state;
    const offered = [...others, ...(compared && !others.includes(compared) ? [compared] : [])];
    const chosen = choice("Job", this.job, names.includes(this.job) ? names : [this.job, ...names], null, (job) => view.set({ ...OF_ANY_JOB, job, with: "" }));
    byId("trail").replaceChildren(chosen, ...(offered.length ? [choice("Compare with", compared, offered, "compare with …", (other) => view.set({ job: this.job, with: other }))] : []));
  }

  #change(before) {
    const { state } = view;
    if (state.theme !== before.theme) this.#theme({ redraw: false });
    if (state.job !== before.job || state.with !== before.with) this.#show();
    else this.shown?.change(before);
  }

  // Follow links within the page without reloading it.
  #follow(event) {
    const link = event.target.closest("a");
    if (!link || event.defaultPrevented || event.button || event.ctrlKey || event.metaKey || event.shiftKey) return;
    const href = link.getAttribute("href") ?? "";
    if (href !== "/" && !href.startsWith("?")) return;
    event.preventDefault();
    if (href === "/" && this.only) {
      this.only = "";
      if (!view.state.job) this.#show();
    }
    const asked = new URLSearchParams(href.slice(1));
    view.set({ ...OF_ANY_JOB, job: asked.get("job") ?? "", with: asked.get("with") ?? "", tab: "results" });
    byId("main").focus();
  }

  #theme({ redraw = true } = {}) {
    const kept = view.state.theme || stored() || (dark.matches ? "dark" : "light");
    const changed = kept !== this.theme;
    this.theme = kept;
    document.documentElement.dataset.theme = kept;
    const other = kept === "dark" ? "light" : "dark";
    setText(byId("theme"), other === "dark" ? "Dark" : "Light");
    byId("theme").setAttribute("aria-label", `Use ${other} colors`);
    if (changed && redraw) this.shown?.restyle();
  }

  #switch() {
    const theme = this.theme === "dark" ? "light" : "dark";
    try {
      localStorage.setItem(KEPT, theme);
    } catch {
      // Without storage, the theme is only in the page address.
    }
    view.set({ theme }, { replace: true });
  }
}

function stored() {
  try {
    const theme = localStorage.getItem(KEPT);
    return ["light", "dark"].includes(theme) ? theme : "";
  } catch {
    return "";
  }
}

new Page().start();
