/**
 * Current epoch by the calendar of a statement, in milliseconds since 1970, with the arithmetic of
 * `randomizers/client/epoch_clock.py`.
 */

/** @typedef {{ start: number, months: number, milliseconds: number, count: number, first: number, last: number | null }} Epochs */

const DAY = 86_400_000;
const MEAN_MONTH = 2_629_746_000;

/** Last millisecond of year 9999. */
export const LAST_MOMENT = 253_402_300_799_999;
const FIRST_MOMENT = -62_135_596_800_000;

/** @param {number} number @param {number} by */
const floorDivided = (number, by) => (number - (((number % by) + by) % by)) / by;

/**
 * Return the start of an epoch; NaN outside the years 1 to 9999.
 *
 * @param {Epochs} epochs
 * @param {number} epoch
 */
export function begins({ start, months, milliseconds }, epoch) {
  const days = floorDivided(start, DAY);
  const first = new Date(days * DAY);
  const month = first.getUTCFullYear() * 12 + first.getUTCMonth() + (epoch - 1) * months;
  const year = Math.floor(month / 12);
  if (!(year >= 1 && year <= 9999)) return NaN;
  const date = new Date(0);
  // The last day of that month. `setUTCFullYear` does not map years below 100 to the 20th century.
  date.setUTCFullYear(year, (month % 12) + 1, 0);
  date.setUTCDate(Math.min(first.getUTCDate(), date.getUTCDate()));
  return date.getTime() + (start - days * DAY) + (epoch - 1) * milliseconds;
}

/**
 * Return the epoch that contains an instant, or a number below 1 before `start`.
 *
 * @param {Epochs} epochs
 * @param {number} instant
 */
export function epochAt(epochs, instant) {
  /** @param {number} epoch */
  const beginsAfter = (epoch) => {
    const moment = begins(epochs, epoch);
    return Number.isNaN(moment) ? epoch > 1 : moment > instant;
  };
  const mean = epochs.months * MEAN_MONTH + epochs.milliseconds;
  let epoch = floorDivided(instant - epochs.start, mean) + 1;
  while (beginsAfter(epoch)) epoch -= 1;
  while (!beginsAfter(epoch + 1)) epoch += 1;
  return epoch;
}

/** Return the horizon of an epoch, numbered from 0. @param {Epochs} epochs @param {number} epoch */
export const horizonOf = (epochs, epoch) => Math.floor((epoch - 1) / epochs.count);

/** Return an epoch's number within its horizon, from 1 on. @param {Epochs} epochs @param {number} epoch */
export const localEpoch = (epochs, epoch) => ((epoch - 1) % epochs.count) + 1;

/** Return whether a deployment includes an epoch. @param {Epochs} epochs @param {number} epoch */
export const hasEpoch = (epochs, epoch) =>
  epoch >= epochs.first && (epochs.last === null || epoch <= epochs.last);

/**
 * Parse epochs; throw if they are malformed.
 *
 * @param {any} told
 * @returns {Epochs}
 */
export function readEpochs({ start, months, milliseconds, count, first, last }) {
  const numbers = [start, months, milliseconds, count, first, last ?? first];
  const epochs = { start, months, milliseconds, count, first, last };
  if (
    !numbers.every(Number.isSafeInteger) ||
    !(count >= 1 && first >= 1 && months >= 0 && milliseconds >= 0 && months + milliseconds > 0) ||
    (last !== null && last < first) ||
    !(start >= FIRST_MOMENT && start <= LAST_MOMENT)
  ) {
    throw new Error('epochs are invalid; expected integers, a positive epoch length and years 1 to 9999');
  }
  return epochs;
}
