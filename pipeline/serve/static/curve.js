// The numbers of one curve as the page holds them, and the shapes that are drawn of them.

const number = (value) => (value === null || value === undefined ? NaN : value);
const numbers = (values) => Array.from(values ?? [], number);

export class Curve {
  // `body` as of /api/jobs/J/curve; null is a gap, and would be drawn as 0 if it were left.
  // `widening` as of /api/jobs/J, for epochs that are appended.
  constructor(body, job, widening = 1) {
    this.widening = widening;
    this.id = body.id;
    this.label = body.label;
    this.job = job;
    this.epochs = Array.from(body.epochs);
    // When they begin; null where no calendar says so.
    this.begins = body.begins ? Array.from(body.begins) : null;
    // All there are at each epoch; null where no people are counted.
    this.population = body.population ? Array.from(body.population) : null;
    // What is drawn is cut to what can be; what is said of a point is made of what was published.
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

  // Whether there is such a line, "smoothed", "groundTruth" or "simultaneous", anywhere.
  has(name) {
    const values = this[name]?.low ?? this[name];
    return Boolean(values?.some((value) => !Number.isNaN(value)));
  }

  get lastEpoch() {
    return this.epochs.at(-1) ?? 0;
  }

  // An epoch that just closed: [value, low, high], or null for a gap.
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
    // The server smooths occasionally, from the latest epoch.
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

  // A band, its own or `simultaneous`: forth along the upper ends and back along the lower ones, for every unbroken run.
  // A run of one epoch spans no area, and is a line from end to end instead.
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

  // Smallest of the numbers themselves between two epochs, whatever their intervals are.
  least(from, to) {
    let least = Infinity;
    for (const values of [this.value, this.smoothed, this.groundTruth]) {
      values?.forEach((value, index) => {
        if (this.epochs[index] >= from && this.epochs[index] <= to && value < least) least = value;
      });
    }
    return least;
  }

  // Smallest and largest of what is drawn between two epochs, `simultaneous` if that is drawn, too.
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
