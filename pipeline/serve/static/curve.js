// The data of one curve, and the shapes drawn from it.

const number = (value) => (value === null || value === undefined ? NaN : value);
const numbers = (values) => Array.from(values ?? [], number);

export class Curve {
  // `body` is a series of /api/jobs/J/curve. Its nulls are gaps, converted to NaN: null would be drawn as 0.
  // `widening` is from /api/jobs/J, and applies to appended epochs.
  constructor(body, job, widening = 1) {
    this.widening = widening;
    this.id = body.id;
    this.label = body.label;
    this.job = job;
    this.epochs = Array.from(body.epochs);
    // Starts of the epochs; null without a calendar.
    this.begins = body.begins ? Array.from(body.begins) : null;
    // Number of users at each epoch; null if users are not counted.
    this.population = body.population ? Array.from(body.population) : null;
    // Drawn values are clipped to possible counts; texts use the published values.
    const cut = (values) => numbers(values).map((each, index) => this.#cut(each, index));
    for (const [name, key] of [["value", "value"], ["low", "ci95_low"], ["high", "ci95_high"]]) this[name] = cut(body[key]);
    const [lows, highs] = [body.own_ci95_low ?? body.ci95_low, body.own_ci95_high ?? body.ci95_high];
    this.published = numbers(body.value).map((value, index) => [value, number(lows[index]), number(highs[index])]);
    this.smoothed = body.smoothed ? cut(body.smoothed) : null;
    this.groundTruth = body.ground_truth ? numbers(body.ground_truth) : null;
    const [low, high] = [body.simultaneous_low, body.simultaneous_high];
    this.simultaneous = low && high ? { low: cut(low), high: cut(high) } : null;
  }

  #cut(value, index) {
    return this.population ? Math.min(Math.max(value, 0), this.population[index]) : value;
  }

  // Whether the line "smoothed", "groundTruth" or "simultaneous" has any value.
  has(name) {
    const values = this[name]?.low ?? this[name];
    return Boolean(values?.some((value) => !Number.isNaN(value)));
  }

  get lastEpoch() {
    return this.epochs.at(-1) ?? 0;
  }

  // Add an epoch that just closed; `estimate` is [value, low, high], or null for a gap.
  append({ epoch, begins = null, population }, estimate, groundTruth) {
    if (epoch <= this.lastEpoch) return false;
    const [value, low, high] = (estimate ?? [NaN, NaN, NaN]).map(number);
    this.epochs.push(epoch);
    this.begins?.push(begins);
    this.population?.push(population);
    this.published.push([value, low, high]);
    const add = (values, each) => values?.push(this.#cut(each, this.epochs.length - 1));
    add(this.value, value);
    add(this.low, low);
    add(this.high, high);
    add(this.simultaneous?.low, value - this.widening * (value - low));
    add(this.simultaneous?.high, value + this.widening * (high - value));
    // The server smooths only occasionally, so the new epoch has no smoothed value yet.
    this.smoothed?.push(NaN);
    this.groundTruth?.push(number(groundTruth));
    return true;
  }

  // Index of the point nearest to an epoch.
  nearest(epoch) {
    let low = 0;
    let high = this.epochs.length - 1;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.epochs[middle] < epoch) low = middle + 1;
      else high = middle;
    }
    return low > 0 && epoch - this.epochs[low - 1] <= this.epochs[low] - epoch ? low - 1 : low;
  }

  // Index of the last point with an estimate up to an epoch, or -1.
  lastKnown(epoch) {
    return this.value.findLastIndex((value, index) => this.epochs[index] <= epoch && !Number.isNaN(value));
  }

  // Outline of a band, its own or `simultaneous`: along the upper ends and back along the lower ones, for every unbroken run.
  // A run of one epoch has no area, and becomes a line between both ends (`alone`).
  band({ low, high } = this) {
    const [x, y] = [[], []];
    const alone = { x: [], low: [], high: [] };
    const ends = low.map((each, index) => !Number.isNaN(each) && !Number.isNaN(high[index]));
    for (let start = 0; start < ends.length; start++) {
      if (!ends[start]) continue;
      let stop = start;
      while (stop < ends.length && ends[stop]) stop++;
      if (stop - start === 1) {
        alone.x.push(this.epochs[start]);
        alone.low.push(low[start]);
        alone.high.push(high[start]);
      } else {
        if (x.length) {
          x.push(NaN);
          y.push(NaN);
        }
        for (let index = start; index < stop; index++) {
          x.push(this.epochs[index]);
          y.push(high[index]);
        }
        for (let index = stop - 1; index >= start; index--) {
          x.push(this.epochs[index]);
          y.push(low[index]);
        }
      }
      start = stop;
    }
    return { band: { x, y }, alone };
  }

  // Smallest value between two epochs, without intervals.
  least(from, to) {
    let least = Infinity;
    for (const values of [this.value, this.smoothed, this.groundTruth]) {
      values?.forEach((value, index) => {
        if (this.epochs[index] >= from && this.epochs[index] <= to && value < least) least = value;
      });
    }
    return least;
  }

  // Range of everything drawn between two epochs; `wide` includes the simultaneous band.
  extent(from, to, wide = false) {
    let [low, high] = [Infinity, -Infinity];
    const ends = (wide && this.simultaneous) || this;
    for (const values of [this.value, ends.low, ends.high, this.smoothed, this.groundTruth]) {
      if (!values) continue;
      for (let index = 0; index < values.length; index++) {
        if (this.epochs[index] < from || this.epochs[index] > to) continue;
        if (values[index] < low) low = values[index];
        if (values[index] > high) high = values[index];
      }
    }
    return [low, high];
  }
}
