// Start dates of epochs, in the time zone of the job rather than of the viewer.

const formats = new Map();

// Date format of a time zone; if the browser does not know the zone, UTC, labeled as such.
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

// Format the start of an epoch; `begins` is in milliseconds. Empty without a calendar.
export function date({ calendar }, begins) {
  if (!calendar || !known(begins)) return "";
  return formatOf(calendar.zone, calendar.days ? DAY : calendar.seconds ? SECOND : MINUTE).format(begins);
}

// ISO 8601 for files: a day, or the local time with its UTC offset.
export function stamp({ calendar }, begins) {
  if (!calendar || !known(begins)) return "";
  const there = Date.UTC(...clockOf(calendar.zone, begins));
  const [day, time] = new Date(there).toISOString().slice(0, 19).split("T");
  if (calendar.days) return day;
  const minutes = Math.round((there - begins) / 60_000);
  const [hours, rest] = [Math.floor(Math.abs(minutes) / 60), Math.abs(minutes) % 60].map((each) => String(each).padStart(2, "0"));
  return `${day}T${time}${minutes < 0 ? "-" : "+"}${hours}:${rest}`;
}

// Name of an epoch: its date, or without a calendar its number.
export function epochWords(detail, epoch, begins) {
  const said = date(detail, begins);
  if (!said) return `Epoch ${epoch.toLocaleString("en")}`;
  return detail.period === "week" ? `Week of ${said}` : said;
}

// Local time in a zone: [year, month, day, hour, minute, second]; months are numbered from 0.
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

// Levels from coarse to fine: a tick is where the number changes. The letter selects its format.
const LEVELS = [
  ...[100, 50, 20, 10, 5, 2, 1].map((years) => ["y", ([y]) => Math.floor(y / years)]),
  ...[6, 3, 1].map((months) => ["m", ([y, m]) => y * 12 + Math.floor(m / months) * months]),
  ["d", ([y, m, d]) => (y * 12 + m) * 2 + (d > 15)],
  ["d", ([y, m, d]) => (y * 12 + m) * 6 + Math.min(5, Math.floor((d - 1) / 5))],
  ["d", ([y, m, d]) => (y * 12 + m) * 31 + d],
  ...[12, 6, 3, 1].map((hours) => ["h", ([y, m, d, h]) => ((y * 12 + m) * 31 + d) * 24 + Math.floor(h / hours) * hours]),
  ...[30, 10, 5, 1].map((minutes) => ["h", ([y, m, d, h, i]) => (((y * 12 + m) * 31 + d) * 24 + h) * 60 + Math.floor(i / minutes) * minutes]),
];

// At most `most` ticks for a range of epochs, as a Map from epoch to text.
export function dateTicks({ calendar }, epochs, begins, [from, to], most) {
  const seen = epochs.map((epoch, index) => [epoch, begins[index]]).filter(([epoch, at]) => epoch >= from && epoch <= to && known(at));
  if (!seen.length) return new Map();
  const clock = seen.map(([, at]) => clockOf(calendar.zone, at));
  let [kind, found, held] = ["d", [0], 0];
  for (const [level, key] of LEVELS) {
    const places = clock.map((_, index) => index).filter((index) => index && key(clock[index]) !== key(clock[index - 1]));
    if (places.length > most) break;
    // A finer level without additional ticks would only add false precision.
    if (places.length > held) [kind, found, held] = [level, places, places.length];
  }
  // Shorter ranges have ticks at regular intervals, with a time of day.
  if (found.length < 2 && seen.length > 1) {
    const step = Math.ceil(seen.length / Math.max(most, 1));
    [kind, found] = [calendar.days ? "d" : "s", seen.map((_, index) => index).filter((index) => index % step === 0)];
  }
  return new Map(found.map((index, place) => [seen[index][0], tick(calendar.zone, seen[index][1], kind, clock[index], place && clock[found[place - 1]])]));
}

// Includes the year or the day only if it differs from that of the previous tick.
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
