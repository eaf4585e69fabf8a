"""Draw all reports of many devices at once, device by device."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpstream.pipeline.audit.hockey_stick import Observation, Observations, Reports
from dpstream.pipeline.conformance.cases import Stream
from dpstream.randomizers.counted_messages import written_out
from dpstream.randomizers.devices import Devices


def draw_histories(
    devices: Devices[Any],
    stream: Stream,
    trials: int,
    randomness: np.random.Generator,
    *,
    one_each: bool,
) -> Observations | None:
    """Draw the reports, by epoch, of `trials` devices that have the same values.

    `devices` has no enrolled users. The stream has one value per epoch. With `one_each`, each
    device sends one report in a single epoch. Its identity is then irrelevant, because there are no
    other reports to link. Returns one trial per device, or None if reports do not identify their
    device.
    """
    devices.enroll(trials, randomness)
    tables: list[tuple[Reports, ...]] = []
    codes = np.zeros((trials, len(stream)), np.intp)
    for index, value in enumerate(stream):
        due = np.arange(trials) if one_each and len(stream) == 1 else devices.due(index + 1)
        messages = written_out(
            devices.report(index + 1, np.array([value] * trials), None, randomness)
        )
        if due is None or len(due) != len(messages):
            return None
        distinct, which = np.unique(messages, axis=0, return_inverse=True)
        # Code 0 means no report.
        codes[due, index] = 1 + which.reshape(-1)
        tables.append(((), *(((tuple(message), 1),) for message in distinct.tolist())))
    return Observations(tuple(tables), codes)


def draw_alone(
    devices: Devices[Any], stream: Stream, randomness: np.random.Generator
) -> Observation:
    """Draw the reports, by epoch, of one device with these values."""
    devices.enroll(1, randomness)
    return tuple(
        _reports(written_out(devices.report(epoch, np.array([value]), None, randomness)))
        for epoch, value in enumerate(stream, 1)
    )


def _reports(messages: NDArray[np.unsignedinteger]) -> Reports:
    rows, counts = np.unique(messages, axis=0, return_counts=True)
    return tuple(zip(map(tuple, rows.tolist()), counts.tolist(), strict=True))
