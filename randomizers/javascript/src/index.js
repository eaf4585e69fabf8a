/** Devices of dpstream, with the same draws and reports as Python's. */

export { systemRandom } from './byte_generator.js';
export { PROTOCOLS, createDevice, restoreDevice } from './devices.js';
export { parseJson } from './json.js';
export { DeviceError } from './laws.js';
