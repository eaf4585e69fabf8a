/** Devices of dpstream: what is drawn and reported, the same in Python. */

export { systemRandom } from './byte_generator.js';
export { PROTOCOLS, createDevice, restoreDevice } from './devices.js';
export { parseJson } from './json.js';
export { DeviceError } from './laws.js';
