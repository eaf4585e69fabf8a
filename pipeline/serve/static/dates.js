// When epochs begin: dates of their job's time zone, wherever the reader lives.

const formats = new Map();

// A format of dates in a zone; in UTC, and saying so, where the browser does not know the zone.
function formatOf(zone, options) {
  const key = `${zone} ${JSON.stringify(options)}`;
  if (!formats.has(key)) {
    let format;
    try {
      format = new Intl.DateTimeFormat("en-US", { ...options, timeZone: zone });
    } catch {
      format = new Intl.DateTimeFormat("en-US", { ...options, timeZone: "UTC", timeZoneName: "short" });
    }
    formats.set(key, format);
  }
  return formats.get(key);
}

const DAY = { day: "numeric", month: "short", year: "numeric" };
const MINUTE = { ...DAY, hour: "2-digit", minute: "2-digit", hourCycle: "h23", timeZoneName: "short" };
const SECOND = { ...MINUTE, second: "2-digit" };
const known = (value) => value !== null && value !== undefined;

// `detail` of a job, `begins` in milliseconds; empty where no calendar says when that is.
export function date({ calendar }, begins) {
  if (!calendar || !known(begins)) return "";
  return formatOf(calendar.zone, calendar.days ? DAY : calendar.seconds ? SECOND : MINUTE).format(begins);
}

// For programs: a day, or a moment with its distance from UTC, as clocks there show it.
export function stamp({ calendar }, begins) {
  if (!calendar || !known(begins)) return "";
  const there = Date.UTC(...clockOf(calendar.zone, begins));
  const [day, time] = new Date(there).toISOString().slice(0, 19).split("T");
  if (calendar.days) return day;
  const minutes = Math.round((there - begins) / 60_000);
  const [hours, rest] = [Math.floor(Math.abs(minutes) / 60), Math.abs(minutes) % 60].map((each) => String(each).padStart(2, "0"));
  return `${day}T${time}${minutes < 0 ? "-" : "+"}${hours}:${rest}`;
}

// What an epoch is called: by its number, with its date where there is one.
export function epochWords(detail, epoch, begins) {
  const said = date(detail, begins);
  if (!said) return `Epoch ${epoch.toLocaleString("en")}`;
  return detail.period === "week" ? `Week of ${said}` : said;
}

// Local time in a zone: [year, month, day, hour, minute, second]; only year and day count from 1.
const clocks = new Map();
function clockOf(zone, begins) {
  const key = `${zone} ${begins}`;
  if (!clocks.has(key)) {
    if (clocks.size > 5_000) clocks.clear();
    const parts = formatOf(zone, { year: "numeric", month: "numeric", day: "numeric", hour: "numeric", minute: "numeric", second: "numeric", hourCycle: "h23" }).formatToParts(begins);
    const by = Object.fromEntries(parts.map(({ type, value }) => [type, Number(value)]));
    clocks.set(key, [by.year, by.month - 1, by.day, by.hour, by.minute, by.second]);
  }
  return clocks.get(key);
}

// From coarse to fine: a tick stands where the number changes. The letter says how it is written.
const LEVELS = [
  ...[100, 50, 20, 10, 5, 2, 1].map((years) => ["y", ([y]) => Math.floor(y / years)]),
  ...[6, 3, 1].map((months) => ["m", ([y, m]) => y * 12 + Math.floor(m / months) * months]),
  ["d", ([y, m, d]) => (y * 12 + m) * 2 + (d > 15)],
  ["d", ([y, m, d]) => (y * 12 + m) * 6 + Math.min(5, Math.floor((d - 1) / 5))],
  ["d", ([y, m, d]) => (y * 12 + m) * 31 + d],
  ...[12, 6, 3, 1].map((hours) => ["h", ([y, m, d, h]) => ((y * 12 + m) * 31 + d) * 24 + Math.floor(h / hours) * hours]),
  ...[30, 10, 5, 1].map((minutes) => ["h", ([y, m, d, h, i]) => (((y * 12 + m) * 31 + d) * 24 + h) * 60 + Math.floor(i / minutes) * minutes]),
];

// At most `most` ticks for a range of epochs: a Map of epoch to text.
export function dateTicks({ calendar }, epochs, begins, [from, to], most) {
  const seen = epochs.map((epoch, index) => [epoch, begins[index]]).filter(([epoch, at]) => epoch >= from && epoch <= to && known(at));
  if (!seen.length) return new Map();
  const clock = seen.map(([, at]) => clockOf(calendar.zone, at));
  let [kind, found, held] = ["d", [0], 0];
  for (const [level, key] of LEVELS) {
    const places = clock.map((_, index) => index).filter((index) => index && key(clock[index]) !== key(clock[index - 1]));
    if (places.length > most) break;
    // A finer level that has no more ticks would only say more than is known.
    if (places.length > held) [kind, found, held] = [level, places, places.length];
  }
  // Shorter ranges have ticks at regular epochs, with a time of day.
  if (found.length < 2 && seen.length > 1) {
    const step = Math.ceil(seen.length / Math.max(most, 1));
    [kind, found] = [calendar.days ? "d" : "s", seen.map((_, index) => index).filter((index) => index % step === 0)];
  }
  return new Map(found.map((index, place) => [seen[index][0], tick(calendar.zone, seen[index][1], kind, clock[index], place && clock[found[place - 1]])]));
}

// With the year, or the day, only where it is another one than at the tick before.
function tick(zone, begins, kind, [year, month, day], before) {
  if (kind === "y") return String(year);
  const sameYear = before && before[0] === year;
  const sameDay = sameYear && before[1] === month && before[2] === day;
  const options = kind === "m" ? { month: "short" } : kind === "d" || !sameDay ? { day: "numeric", month: "short" } : {};
  if (!sameYear) options.year = "numeric";
  const time = kind === "h" ? { hour: "2-digit", minute: "2-digit" } : kind === "s" ? { hour: "2-digit", minute: "2-digit", second: "2-digit" } : null;
  const parts = [Object.keys(options).length && formatOf(zone, options).format(begins), time && formatOf(zone, { ...time, hourCycle: "h23" }).format(begins)];
  return parts.filter(Boolean).join(", ");
}
