// State of the view, stored in the page address, so that links and the back button restore it.

const DEFAULTS = { job: "", with: "", series: [], crowd: "", range: "all", change: "", interval: "", measure: "", by: "", where: "", epoch: "", show: "", pair: "", tab: "results", theme: "", embed: "" };
const CHANGE = /^[1-9]\d{0,4}$/;
const EPOCH = /^[1-9]\d{0,15}$/;
const RANGE = /^(all|latest-[1-9]\d{0,8}|[1-9]\d{0,15}-[1-9]\d{0,15})$/;
const { series, crowd, range, measure, by, where, epoch, show, pair } = DEFAULTS;
// The part of the view that is about one job: another job starts without it.
export const OF_ANY_JOB = { series, crowd, range, measure, by, where, epoch, show, pair };
export const MOST_SERIES = 12;
// Maximum number of jobs side by side; `with` has all names but the first, separated by commas.
export const MOST_JOBS = 4;

function read(search) {
  const asked = new URLSearchParams(search);
  const range = asked.get("range") ?? "";
  const change = asked.get("change") ?? "";
  const interval = asked.get("interval") ?? "";
  const epoch = asked.get("epoch") ?? "";
  return {
    job: asked.get("job") ?? "",
    with: asked.get("with") ?? "",
    series: [...new Set((asked.get("series") ?? "").split(",").filter(Boolean))].slice(0, MOST_SERIES),
    crowd: asked.get("crowd") ?? "",
    range: RANGE.test(range) ? range : "all",
    change: CHANGE.test(change) ? change : "",
    interval: CHANGE.test(interval) ? interval : "",
    // A measure, a breakdown of it, values of attributes, and what is shown.
    measure: asked.get("measure") ?? "",
    by: asked.get("by") ?? "",
    where: asked.get("where") ?? "",
    // Epoch of the table of groups; empty for the latest one.
    epoch: EPOCH.test(epoch) ? epoch : "",
    show: ["difference", "cohorts", "ratios"].includes(asked.get("show")) ? asked.get("show") : "",
    pair: asked.get("pair") ?? "",
    tab: asked.get("tab") === "operators" ? "operators" : "results",
    // Show only the curve, for a frame in another page.
    embed: asked.get("embed") === "1" ? "1" : "",
    theme: ["light", "dark"].includes(asked.get("theme")) ? asked.get("theme") : "",
  };
}

function address(state) {
  const asked = new URLSearchParams();
  for (const [name, value] of Object.entries(state)) {
    const text = String(value);
    if (text !== String(DEFAULTS[name])) asked.set(name, text);
  }
  // Commas and colons need no escape in a query, and are easier to read.
  const query = asked.toString().replaceAll("%2C", ",").replaceAll("%3A", ":").replaceAll("%3D", "=");
  return query ? `?${query}` : location.pathname;
}

class View extends EventTarget {
  state = read(location.search);

  constructor() {
    super();
    addEventListener("popstate", () => this.#become(read(location.search)));
  }

  // Choices of the user add a history entry; their consequences replace it.
  set(changes, { replace = false } = {}) {
    const next = { ...this.state, ...changes };
    const target = address(next);
    if (target === address(this.state)) return;
    history[replace ? "replaceState" : "pushState"](null, "", target);
    this.#become(next);
  }

  href(changes) {
    return address({ ...this.state, ...changes });
  }

  #become(next) {
    const before = this.state;
    this.state = next;
    this.dispatchEvent(new CustomEvent("change", { detail: { before } }));
  }
}

export const view = new View();
