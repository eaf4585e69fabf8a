/** Function that returns the requested number of random bytes. */
export type ReadBytes = (count: number) => Uint8Array;

/** Messages as sent, in ascending order, each of `width` integers. */
export type Words = Uint8Array | Uint16Array | Uint32Array | BigUint64Array;

/** 0 or 1; an item from 1 on, or 0 for none; or an array of items, for protocols with sets. */
export type Value = boolean | number | readonly (number | bigint)[];

/** Complete state of a device as JSON values, the same as in Python. Keep it secret. */
export interface DeviceState {
  /** Last reported epoch, or 0. */
  epoch: number;
  /** Arrays by name, each with numpy's dtype, its shape and its bytes in base64. */
  arrays: Record<string, { dtype: string; shape: number[]; data: string }>;
}

/** A device of one horizon. */
export interface Device {
  /** Last reported epoch, or 0. */
  readonly epoch: number;
  /** Last epoch of the horizon. */
  readonly lastEpoch: number;
  /** True after `enroll`, or if the state was restored. */
  readonly enrolled: boolean;
  /** Number of integers that encode a message. */
  readonly width: number;
  /** Number of bytes of each of these integers. */
  readonly wordBytes: number;
  /** Privacy loss of the reports, computed from the mechanism, for a stream or for each epoch. */
  readonly loss: { epsilon: number; delta: number; unit: 'stream' | 'epoch' };
  /** Draw the initial state, once. `group` is the number of the device's public group, from 0, in jobs with groups. */
  enroll(read?: ReadBytes, given?: { group?: number }): void;
  /** Draw the state of another horizon of a recurring job instead, after that of an earlier one. */
  renew(state: DeviceState, read?: ReadBytes, given?: { group?: number }): void;
  /**
   * Return the messages due at an epoch after the last reported one; a device is absent at epochs that
   * are skipped. Store state and messages before sending: never report an epoch twice.
   */
  report(epoch: number, value: Value, read?: ReadBytes): Words;
  /** Return the state for `restoreDevice`, and for Python's `OneDevice.restore`. */
  state(): DeviceState;
}

/** Error for an invalid law, state or value. */
export class DeviceError extends Error {}

/** Names of the protocols that a device can run. */
export const PROTOCOLS: readonly string[];

/**
 * Return a device without any state; call `enroll` next.
 *
 * @param law constants of the job, as parsed by `parseJson`
 * @throws DeviceError if there is no such protocol, or its law is invalid
 */
export function createDevice(protocol: string, law: unknown): Device;

/**
 * Return a device with a stored state instead of drawing, which would cost privacy again.
 *
 * @throws DeviceError if the protocol, law or state is invalid
 */
export function restoreDevice(protocol: string, law: unknown, state: unknown): Device;

/** Parse JSON like `JSON.parse`, but return integers above 2^53 as BigInts, as laws require. */
export function parseJson(text: string): any;

/** Return random bytes from WebCrypto, the default source of devices. */
export function systemRandom(count: number): Uint8Array;
