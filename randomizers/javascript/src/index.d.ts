/** Source of a requested number of random bytes. */
export type ReadBytes = (count: number) => Uint8Array;

/** Words as sent, ascending; messages of several words one after another. */
export type Words = Uint8Array | Uint16Array | Uint32Array | BigUint64Array;

/** 0 or 1; an item from 1, 0 for none; a set of items, for protocols that take sets. */
export type Value = boolean | number | readonly (number | bigint)[];

/** Complete state of a device: JSON values, the same in Python. Keep it secret. */
export interface DeviceState {
  /** Last epoch reported, or 0. */
  epoch: number;
  /** Arrays by name: numpy's dtype, the shape, and the bytes in base64. */
  arrays: Record<string, { dtype: string; shape: number[]; data: string }>;
}

/** A device of one horizon. */
export interface Device {
  /** Last epoch reported, or 0. */
  readonly epoch: number;
  /** Last epoch of the horizon. */
  readonly lastEpoch: number;
  /** True after `enroll` or a restored state. */
  readonly enrolled: boolean;
  /** Number of words of a message. */
  readonly width: number;
  /** Number of bytes of a word. */
  readonly wordBytes: number;
  /** Privacy loss of its reports, by its mechanism, for a stream or for each epoch. */
  readonly loss: { epsilon: number; delta: number; unit: 'stream' | 'epoch' };
  /** Draw the initial state, once. */
  enroll(read?: ReadBytes): void;
  /**
   * Return the words due at an epoch after the last one reported; a device is absent at epochs left
   * out. Store the state and the words before sending them: never report an epoch twice.
   */
  report(epoch: number, value: Value, read?: ReadBytes): Words;
  /** Return the state for `restoreDevice`, and for Python's `OneDevice.restore`. */
  state(): DeviceState;
}

/** Error for an invalid law, state or value; the message is a sentence. */
export class DeviceError extends Error {}

/** Names of the protocols that a device can run. */
export const PROTOCOLS: readonly string[];

/**
 * Return a device that has not drawn yet.
 *
 * @param law constants of the job, as parsed by `parseJson`
 * @throws DeviceError if there is no such protocol, or the law is invalid for it
 */
export function createDevice(protocol: string, law: unknown): Device;

/**
 * Return a device with a stored state: drawing again would spend the privacy loss again.
 *
 * @throws DeviceError as above, or if the state is invalid for such a device
 */
export function restoreDevice(protocol: string, law: unknown, state: unknown): Device;

/** Parse JSON as `JSON.parse`, but whole numbers beyond 2^53 are BigInts, as laws require. */
export function parseJson(text: string): any;

/** Return random bytes of WebCrypto, the default source of devices. */
export function systemRandom(count: number): Uint8Array;
