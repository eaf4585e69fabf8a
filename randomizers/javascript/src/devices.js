/** Devices by protocol name. */

import { check, shown } from './laws.js';
import { CountMin } from './protocols/count_min.js';
import { FutureRand } from './protocols/future_rand.js';
import { HadamardValues } from './protocols/hadamard_values.js';
import { Panels } from './protocols/panels.js';
import { RangeValues } from './protocols/range_values.js';
import { LeveledResponse, SampledResponse } from './protocols/sampled_response.js';
import { ShuffledCounts, ShuffledItemCounts } from './protocols/shuffled_counts.js';
import { ShuffledValueStream } from './protocols/shuffled_value_stream.js';
import { SingleMessage } from './protocols/single_message.js';
import { ValueStream } from './protocols/value_stream.js';

/** @typedef {new (law: any) => import('./device.js').Device} DeviceClass */
/** @type {Record<string, (law: any) => DeviceClass>} */
const CLASSES = {
  future_rand: () => FutureRand,
  value_stream: () => ValueStream,
  hadamard_values: () => HadamardValues,
  range_values: () => RangeValues,
  panels: () => Panels,
  sampled_panels: () => Panels,
  shuffled_panels: () => Panels,
  count_min: () => CountMin,
  single_message: () => SingleMessage,
  shuffled_counts: (law) =>
    'squared_norm_budget' in law ? ShuffledValueStream : 'noise' in law ? ShuffledCounts : ShuffledItemCounts,
  sampled_response: (law) => ('code' in law ? LeveledResponse : SampledResponse),
};

/** Protocols that a device can run. */
export const PROTOCOLS = Object.freeze(Object.keys(CLASSES));

/**
 * Return a device without any state; throw if the law is invalid.
 *
 * @param {string} protocol
 * @param {any} law - constants of the job, as parsed by `parseJson`
 */
export function createDevice(protocol, law) {
  check(
    PROTOCOLS.includes(protocol),
    `protocol ${shown(protocol)} does not support single devices; expected one of: ${PROTOCOLS.join(', ')}`,
  );
  check(law !== null && typeof law === 'object', `the law of ${protocol} is ${shown(law)}; expected an object`);
  return new (CLASSES[protocol](law))(law);
}

/**
 * Return a device with a stored state; throw if law or state is invalid.
 *
 * @param {string} protocol
 * @param {any} law
 * @param {any} state - result of `state()`, here or in Python
 */
export function restoreDevice(protocol, law, state) {
  const device = createDevice(protocol, law);
  device.restore(state);
  return device;
}
