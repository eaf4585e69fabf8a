// The numbers of one curve as the page holds them, and the shapes that are drawn of them.

const number = (value) => (value === null || value === undefined ? NaN : value);
const numbers = (values) => Array.from(values ?? [], number);

export class Curve {
  // `body` as of /api/jobs/J/curve; null is a gap, and would be drawn as 0 if it were left.
  constructor(body, job) {
    this.id = body.id;
    this.label = body.label;
    this.job = job;
    this.epochs = Array.from(body.epochs);
    for (const name of ["value", "low", "high"]) this[name] = numbers(body[name]);
    for (const name of ["smoothed", "truth"]) this[name] = body[name] ? numbers(body[name]) : null;
  }

  get lastEpoch() {
    return this.epochs.at(-1) ?? 0;
  }

  // An epoch that just closed: [value, low, high], or null for a gap.
  append(epoch, estimate, truth) {
    if (epoch <= this.lastEpoch) return false;
    const [value, low, high] = estimate ?? [];
    this.epochs.push(epoch);
    this.value.push(number(value));
    this.low.push(number(low));
    this.high.push(number(high));
    // It is made now and then, looking back from the latest epoch.
    this.smoothed?.push(NaN);
    this.truth?.push(number(truth));
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

  // Index of the last point with an estimate up to an epoch; -1 if there is none.
  lastKnown(epoch) {
    return this.value.findLastIndex((value, index) => this.epochs[index] <= epoch && !Number.isNaN(value));
  }

  // The band: forth along the upper ends and back along the lower ones, for every unbroken run.
  // A run of one epoch spans no area, and is a line from end to end instead.
  band() {
    const [x, y] = [[], []];
    const alone = { x: [], low: [], high: [] };
    const ends = this.low.map((low, index) => !Number.isNaN(low) && !Number.isNaN(this.high[index]));
    for (let start = 0; start < ends.length; start++) {
      if (!ends[start]) continue;
      let stop = start;
      while (stop < ends.length && ends[stop]) stop++;
      if (stop - start === 1) {
        alone.x.push(this.epochs[start]);
        alone.low.push(this.low[start]);
        alone.high.push(this.high[start]);
      } else {
        if (x.length) {
          x.push(NaN);
          y.push(NaN);
        }
        for (let index = start; index < stop; index++) {
          x.push(this.epochs[index]);
          y.push(this.high[index]);
        }
        for (let index = stop - 1; index >= start; index--) {
          x.push(this.epochs[index]);
          y.push(this.low[index]);
        }
      }
      start = stop;
    }
    return { band: { x, y }, alone };
  }

  // Smallest and largest of what is drawn between two epochs.
  extent(from, to) {
    let [low, high] = [Infinity, -Infinity];
    for (const values of [this.value, this.low, this.high, this.smoothed, this.truth]) {
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
