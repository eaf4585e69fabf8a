// Format numbers, times and durations for English readers.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const fine = new Intl.NumberFormat("en", { maximumSignificantDigits: 4 });
const tenths = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
const RECENT = 20 * 3600 * 1000;
const clock = new Intl.DateTimeFormat("en-US", { timeStyle: "medium", hourCycle: "h23" });
const calendar = new Intl.DateTimeFormat("en-US", { dateStyle: "medium", timeStyle: "medium", hourCycle: "h23" });

const known = (value) => value !== null && value !== undefined && !Number.isNaN(value);
const minus = (text) => text.replace("-", "−");

export const count = (value) => (known(value) ? minus(whole.format(value)) : "–");

// Labels of axis ticks, with enough decimals to distinguish them.
export function tickLabels(ticks) {
  const step = Math.abs(ticks[1] - ticks[0]) || Math.abs(ticks[0]) || 1;
  let decimals = 0;
  while (decimals < 12 && ticks.some((tick) => Math.abs(tick - Number(tick.toFixed(decimals))) > step / 1000)) decimals++;
  const format = new Intl.NumberFormat("en", { minimumFractionDigits: decimals, maximumFractionDigits: decimals });
  return ticks.map((tick) => minus(format.format(Math.abs(tick) < step / 1000 ? 0 : tick)));
}

// Formatter of values: whole users, percentages, or values of a domain with four digits.
export function valueOf(unit) {
  const format = { users: whole, percent: tenths }[unit] ?? fine;
  return (value) => (known(value) ? minus(format.format(value === 0 ? 0 : value)).replace(/^−0$/, "0") : "–");
}

// On a narrow screen, an interval wraps only before its upper end.
export const interval = (format, low, high) => (known(low) && known(high) ? `${format(low)}\u00a0to ${format(high)}` : "–");

// A user count and its interval as displayed everywhere, including the sentence at the top (`known_count`
// in Python): rounded outward to the second digit of half the interval, and clipped to the range from 0
// to `people`, the population.
export function knownCount(value, low, high, people) {
  const half = (high - low) / 2;
  const step = half < 100 ? 1 : 10 ** (Math.floor(Math.log10(half)) - 1);
  const most = people || Infinity;
  const upper = Math.min(Math.max(Math.ceil(high / step) * step, step), most);
  const lower = Math.max(Math.min(Math.floor(low / step) * step, most - step), 0);
  return { value: Math.min(Math.max(Math.round(value / step) * step, 0), upper), low: lower, high: upper, most };
}

// An estimate and its 95 % interval as texts, rounded and clipped to credible numbers.
export function said(unit, format, value, low, high, people) {
  if (!known(value)) return { value: "–", interval: "–" };
  if (unit !== "users" || !known(low) || !known(high)) {
    const shown = fitted(unit, format, low, high);
    return { value: shown(value), interval: interval(unit === "value" ? shown : format, low, high) };
  }
  const cut = knownCount(value, low, high, people);
  const below = cut.high === cut.most ? "at\u00a0most" : "fewer\u00a0than";
  return { value: cut.low > 0 ? format(cut.value) : `${below} ${format(cut.high)}`, interval: interval(format, cut.low, cut.high), mayBeNone: cut.low <= 0 };
}

// The same as a single text.
export function valueText(unit, format, value, low, high, people) {
  const words = said(unit, format, value, low, high, people);
  if (unit !== "users") return `${words.value} ${error(fitted(unit, format, low, high), value, low, high)}`.trim();
  return words.mayBeNone || words.interval === "–" ? words.value : `${words.value} (${words.interval})`;
}

// Formatter of domain values, rounded to the second digit of half their interval.
export function fitted(unit, format, low, high) {
  const half = (high - low) / 2;
  if (unit !== "value" || !(half > 0)) return format;
  const digits = Math.min(Math.max(1 - Math.floor(Math.log10(half)), 0), 12);
  const shown = new Intl.NumberFormat("en", { maximumFractionDigits: digits });
  return (value) => (known(value) ? minus(shown.format(Number(value.toFixed(digits)) || 0)) : "–");
}

// Half width of the interval, or both ends if it is asymmetric, as for a median.
export function error(format, value, low, high) {
  if (!known(value) || !known(low) || !known(high)) return "";
  const [below, above] = [value - low, high - value];
  if (Math.abs(above - below) <= 0.02 * (above + below)) return `± ${format((above + below) / 2)}`;
  return `(${interval(format, low, high)})`;
}

// Losses have three digits; the charged loss is rounded up, the remaining budget down.
const cutTo = (round) => (value) => {
  if (!known(value)) return "–";
  const scale = 10 ** (2 - Math.floor(Math.log10(Math.max(value, 1e-12))));
  return fine.format(round(Number((value * scale).toFixed(6))) / scale);
};
export const loss = cutTo(Math.ceil);
export const left = cutTo(Math.floor);

// Privacy loss of a job by itself.
export const lossOf = ({ loss: { epsilon, each }, period }) => `ε ${loss(epsilon)}${each ? ` each ${each === "epoch" ? period : each}` : ""}`;

// A small probability, with two digits.
export function chance(value, round = Math.ceil) {
  if (value <= 0) return "0";
  let power = Math.floor(Math.log10(value));
  let digits = round(Number((value / 10 ** power).toFixed(9)) * 10) / 10;
  if (digits >= 10) [digits, power] = [digits / 10, power + 1];
  const raised = String(power).replaceAll(/./g, (each) => "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"["-0123456789".indexOf(each)]);
  return digits === 1 ? `10${raised}` : `${digits} × 10${raised}`;
}

// `what` is the unit, such as " records"; empty if a heading contains it.
export function rate(perSecond, what = "") {
  if (!known(perSecond)) return "–";
  if (perSecond >= 1e6) return `${fine.format(Math.round(perSecond / 1e4) / 100)} M${what}/s`;
  return `${perSecond > 0 && perSecond < 10 ? fine.format(Math.round(perSecond * 10) / 10) : whole.format(perSecond)}${what}/s`;
}

export function seconds(value) {
  if (!known(value)) return "–";
  if (value === 0) return "0 s";
  if (value < 10) return `${value.toFixed(1)} s`;
  if (value < 100) return `${Math.round(value)} s`;
  if (value < 100 * 60) return `${Math.round(value / 60)} min`;
  if (value < 48 * 3600) return `${Math.round(value / 3600)} h`;
  return `${whole.format(value / 86400)} days`;
}

// A time of day, with the date if it is not recent.
export function time(milliseconds) {
  if (!known(milliseconds)) return "–";
  return (Math.abs(Date.now() - milliseconds) < RECENT ? clock : calendar).format(milliseconds);
}
export const moment = (milliseconds) => (known(milliseconds) ? calendar.format(milliseconds) : "–");
// Keep percent signs on the line of their number.
export const tied = (words) => words.replaceAll(" %", "\u00a0%");
export const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);
export const plural = (number, one, many = `${one}s`) => `${count(number)} ${number === 1 ? one : many}`;

// Number of closed epochs, and of all epochs, both counted from the deployment's first one.
export function progress({ last_epoch: last, epochs, counted_from: first }) {
  return last ? `${count(last - first + 1)}${epochs ? ` of ${count(epochs - first + 1)}` : ""}` : "–";
}

// Phase of a job that is not running: the one set by operators, or "ended".
export const phaseOf = ({ phase, ended }) => (phase !== "running" ? phase : ended ? "ended" : "");

/** What remains of a budget for a period, such as "5 remaining; epsilon 8 in any year". */
export function inPeriod([limit, counted]) {
  return `${counted.split("; ")[1] ?? counted} of ${limit}`;
}
