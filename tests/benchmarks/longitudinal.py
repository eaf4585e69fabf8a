"""A whole horizon in memory, and the time of an estimate: a process of its own, for its memory.

Prints one JSON object a line: ``{"what", "seconds" or "milliseconds", ...}``, processor time.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.attendance import Attendance
from dpstream.aggregators.future_rand import FutureRandAggregator
from dpstream.aggregators.hadamard_values import HadamardValuesAggregator
from dpstream.aggregators.value_stream import ValueStreamAggregator
from dpstream.pipeline.jobs.key_files import NoiseKey
from dpstream.pipeline.protocols.protocol import Aggregator
from dpstream.randomizers.devices import Devices
from dpstream.randomizers.dyadic import orders_due
from dpstream.randomizers.future_rand import FutureRand, FutureRandParameters
from dpstream.randomizers.future_rand.calibration import calibrate
from dpstream.randomizers.hadamard_values import LETTER_BITS, HadamardValuesParameters
from dpstream.randomizers.hadamard_values.calibration import calibrate as calibrate_hadamard
from dpstream.randomizers.randomness import cryptographic_generator
from dpstream.randomizers.shuffled_counts import ShuffledCountsParameters
from dpstream.randomizers.shuffled_value_stream import ShuffledValueStream
from dpstream.randomizers.shuffled_value_stream.calibration import calibrate as calibrate_twin
from dpstream.randomizers.value_stream import ValueStream, ValueStreamParameters
from dpstream.randomizers.value_stream.calibration import calibrate as calibrate_values
from dpstream.randomizers.value_stream.lattice import FIRST, LAST
from dpstream.topics.words import Words
from tests.benchmarks.measuring import peak_megabytes

USERS, EPOCHS = 1_000_000, 1_024
TWIN_EPOCHS = 64
CHANGES = 4
LONG_HORIZON = 4_096
ITEMS = 4_096
REPORTS = 10_000


def whole_horizon() -> None:
    """FutureRand: a few reports of each device."""
    before = time.process_time()
    law = calibrate(FutureRandParameters(1.0, CHANGES), EPOCHS)
    run_horizon("future_rand", FutureRand(law), FutureRandAggregator(law), before)


def whole_horizon_of_letters() -> None:
    """value_stream: a byte of every device at every epoch."""
    before = time.process_time()
    law = calibrate_values(ValueStreamParameters(1.0, CHANGES), EPOCHS)
    run_horizon("value_stream", ValueStream(law), ValueStreamAggregator(law), before)


def run_horizon(name: str, devices: Devices[Any], aggregator: Aggregator, before: float) -> None:
    """Enrol, randomize and aggregate a million users whose values change now and then.

    Args:
        name: of the protocol.
        devices: none enrolled yet.
        aggregator: an empty one.
        before: processor time when the work began.
    """
    generator, rng = cryptographic_generator(), np.random.default_rng(1)
    devices.enrol(USERS, generator)
    enrolment = time.process_time() - before
    values = np.zeros(USERS, np.int8)
    reports, spent = 0, 0.0
    for epoch in range(1, EPOCHS + 1):
        # Every user changes about four times.
        values[rng.integers(0, USERS, USERS * CHANGES // EPOCHS)] ^= 1
        before = time.process_time()
        words = devices.report(epoch, values, None, generator)
        assert isinstance(words, np.ndarray)
        aggregator.add(epoch, words, None)
        spent += time.process_time() - before
        reports += len(words)
    say(
        what=f"{name}: {USERS:,} users, {EPOCHS:,} epochs",
        seconds=round(enrolment + spent, 2),
        enrolment_seconds=round(enrolment, 2),
        million_reports=round(reports / 1e6, 1),
        peak_megabytes=round(peak_megabytes(os.getpid())),
    )


def online_estimates() -> None:
    """An estimate with its interval at every epoch of a long horizon."""
    rng = np.random.default_rng(2)
    law = calibrate(FutureRandParameters(1.0, CHANGES), LONG_HORIZON)
    aggregator = FutureRandAggregator(law)
    attendance = Attendance.constant(LONG_HORIZON, USERS)
    milliseconds = []
    for epoch in range(1, LONG_HORIZON + 1):
        words = rng.integers(0, 2 * orders_due(epoch), (REPORTS, 1), np.uint8)
        aggregator.add(epoch, words, None)
        milliseconds.append(timed(lambda: aggregator.estimate(epoch, attendance)))  # noqa: B023
    say_milliseconds(f"estimate with interval, {LONG_HORIZON:,} epochs", milliseconds)


def online_estimates_of_letters() -> None:
    """The same for value_stream."""
    rng = np.random.default_rng(2)
    law = calibrate_values(ValueStreamParameters(1.0, CHANGES), LONG_HORIZON)
    aggregator = ValueStreamAggregator(law)
    attendance = Attendance.constant(LONG_HORIZON, USERS)
    milliseconds = []
    for epoch in range(1, LONG_HORIZON + 1):
        aggregator.add(epoch, rng.integers(8, 153, (REPORTS, 1), np.uint8), None)
        milliseconds.append(timed(lambda: aggregator.estimate(epoch, attendance)))  # noqa: B023
    say_milliseconds(f"value_stream: estimate with interval, {LONG_HORIZON:,} epochs", milliseconds)


def shuffled_twin() -> None:
    """Words of a million users, and the one noisy sum that is released of them."""
    rng, generator = np.random.default_rng(4), cryptographic_generator()
    asked = ShuffledCountsParameters(1.0, 1e-6, changes=CHANGES, dummies="shuffle")
    law = calibrate_twin(asked, EPOCHS, minimum=1_000)
    devices, key, deployment = ShuffledValueStream(law), NoiseKey.random(), bytes(16)
    devices.enrol(USERS, generator)
    values = np.zeros(USERS, np.int8)
    words: list[NDArray[np.uint16]] = []
    randomizing, adding, noise = [], [], []
    for epoch in range(1, TWIN_EPOCHS + 1):
        values[rng.integers(0, USERS, USERS * CHANGES // EPOCHS)] ^= 1
        report = partial(devices.report, epoch, values, None, generator)
        randomizing.append(timed(lambda: words.append(report())))  # noqa: B023
        window = Words.canonical(words.pop())

        def release(window: Words = window, epoch: int = epoch) -> None:
            law.noisy_sum(window.values, window.counts, key.generator(deployment, epoch))

        adding.append(timed(release))
        noise.append(timed(lambda: law.noise.draw(key.generator(deployment, epoch))))  # noqa: B023
    twin = f"shuffled twin, {USERS:,} users"
    say(
        what=f"{twin}: randomize", microseconds_a_report=round(1e3 * median(randomizing) / USERS, 4)
    )
    say_milliseconds(f"{twin}: the noisy sum of a window", adding)
    say_milliseconds(f"{twin}: of it, the noise", noise)


def item_estimates() -> None:
    """Estimates of all items at every epoch."""
    rng = np.random.default_rng(3)
    domain = tuple(f"item {number}" for number in range(ITEMS))
    law = calibrate_hadamard(HadamardValuesParameters(1.0, CHANGES, domain), EPOCHS)
    aggregator = HadamardValuesAggregator(law)
    attendance = Attendance.constant(EPOCHS, USERS)
    milliseconds = []
    for epoch in range(1, EPOCHS + 1):
        rows = rng.integers(0, law.rows, REPORTS, dtype=np.uint32)
        letters = rng.integers(FIRST, LAST, REPORTS, dtype=np.uint32, endpoint=True)
        words = (rows << LETTER_BITS | letters).astype(np.uint32)
        aggregator.add(epoch, words[:, None], None)
        milliseconds.append(timed(lambda: aggregator.estimate(epoch, attendance)))  # noqa: B023
    say_milliseconds(f"estimates of {ITEMS:,} items, {EPOCHS:,} epochs", milliseconds)
    say(what="the same, memory", peak_megabytes=round(peak_megabytes(os.getpid())))


def timed(work: Callable[[], object]) -> float:
    """Milliseconds of processor time."""
    before = time.process_time_ns()
    work()
    return (time.process_time_ns() - before) / 1e6


def say_milliseconds(what: str, milliseconds: list[float]) -> None:
    """Median, 99 in a hundred, and the last epoch, which combines every order."""
    say(
        what=what,
        median_milliseconds=round(median(milliseconds), 3),
        percentile_99_milliseconds=round(float(np.quantile(milliseconds, 0.99)), 3),
        last_milliseconds=round(milliseconds[-1], 3),
    )


def say(**figures: object) -> None:
    """A line."""
    print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    whole_horizon()
    online_estimates()
    whole_horizon_of_letters()
    online_estimates_of_letters()
    shuffled_twin()
    item_estimates()
