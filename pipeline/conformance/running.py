"""Checks of running devices and aggregators: restarts, absence, merging, estimates."""

from __future__ import annotations

import json
import math

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from dpstream.aggregators.estimate import Estimate, Participation, Published
from dpstream.aggregators.panel_estimates import PanelEstimates
from dpstream.pipeline.conformance.cases import FALSE_ALARM, Case, Values
from dpstream.pipeline.errors import DpstreamError
from dpstream.randomizers.counted_messages import written_out

DEVICES = 300
RUNS, ESTIMATED = 300, 600
# Allowed relative error of predicted variances, which do not depend on who changes.
TOLERANCE = 0.1


class DoesNotConformError(DpstreamError):
    """A violation; the message continues a sentence that starts with the protocol's name."""


def restored_devices_continue(case: Case) -> None:
    """Check that restored devices draw nothing again, which would spend their budget again."""
    undisturbed, restarted = (case.protocol.randomizer(case.law) for _ in range(2))
    for devices in (undisturbed, restarted):
        devices.enroll(DEVICES, case.generator(1))
    law = case.protocol.law(case.parameters).from_json(json.loads(json.dumps(case.law.to_json())))
    for epoch, values in enumerate(case.mixed_values(DEVICES), 1):
        kept = {name: array.copy() for name, array in restarted.state_arrays().items()}
        restarted = case.protocol.randomizer(law).restored(kept, epoch - 1)
        expected, found = (
            written_out(devices.report(epoch, values, None, case.generator(3, epoch)))
            for devices in (undisturbed, restarted)
        )
        if not np.array_equal(found, expected):
            raise DoesNotConformError(
                f"sends different reports at epoch {epoch} after devices are restored; "
                "expected all one-time draws to be saved in state_arrays and read from there"
            )


def absent_devices_send_nothing(case: Case) -> None:
    """Check that absent devices never send anything about their values."""
    one, other = (case.protocol.randomizer(case.law) for _ in range(2))
    for devices in (one, other):
        devices.enroll(DEVICES, case.generator(9))
    indices = np.arange(DEVICES) % len(case.values)
    for epoch in range(1, case.last_epoch + 1):
        present = case.generator(10, epoch).random(DEVICES) < 0.6
        otherwise = np.where(present, indices, (indices + 1) % len(case.values))
        expected, found = (
            written_out(
                devices.report(epoch, case.array_of(which), present, case.generator(11, epoch))
            )
            for devices, which in ((one, indices), (other, otherwise))
        )
        if not np.array_equal(found, expected):
            raise DoesNotConformError(
                f"sends reports at epoch {epoch} that depend on devices' values during an absence"
            )
    devices = case.protocol.randomizer(case.law)
    devices.enroll(DEVICES, case.generator(12))
    no_device = np.zeros(DEVICES, np.bool_)
    messages = written_out(
        devices.report(1, case.mixed_values(DEVICES)[0], no_device, case.generator(13))
    )
    if len(messages):
        raise DoesNotConformError(f"sends {len(messages):,} messages while all devices are absent")


def merging_equals_adding(case: Case) -> None:
    """Check that merged, serialized and single-pass aggregation have identical states."""
    rng = case.generator(14)
    whole, one, other = (case.aggregator() for _ in range(3))
    sent = case.released(case.send(case.mixed_values(DEVICES), rng), rng)
    for epoch, messages in enumerate(sent, 1):
        whole.add(epoch, messages, None)
        one.add(epoch, messages[::2], None)
        other.add(epoch, messages[1::2][::-1], None)
    other = case.restored(other.to_bytes())
    other.merge(one)
    if other.to_bytes() != whole.to_bytes():
        raise DoesNotConformError(
            "has a different state if reports are added in two parts, serialized and merged, than "
            "if they are added at once"
        )


def intervals_contain_the_ground_truth(case: Case) -> None:
    """Check that estimates are unbiased and errors match the published standard errors."""
    values = _followed_values(case)
    ground_truth = case.ground_truth(values)
    participation = Participation.constant(case.last_epoch, ESTIMATED)
    off = np.empty((RUNS, *ground_truth.shape))
    for run in range(RUNS):
        aggregator = case.aggregator()
        sent = case.send(values, case.generator(30, run))
        for epoch, messages in enumerate(case.released(sent, case.generator(32, run)), 1):
            aggregator.add(epoch, messages, None)
            estimate = aggregator.estimate(epoch, participation)
            if estimate is None:
                raise DoesNotConformError(f"has no estimate for epoch {epoch} of its horizon")
            errors = values_of(estimate) - ground_truth[epoch - 1]
            off[run, epoch - 1] = errors / _standard_errors(estimate)
    means = off.mean(axis=0)
    if (2 * stats.norm.sf(np.abs(means) * math.sqrt(RUNS)) < FALSE_ALARM).any():
        raise DoesNotConformError(
            f"has a bias of {np.abs(means).max():.2g} times the published standard error, averaged "
            f"over {RUNS} runs"
        )
    squares = np.square(off).sum(axis=0)
    too_small = stats.chi2.sf(squares / (1 + TOLERANCE), RUNS) < FALSE_ALARM
    too_large = stats.chi2.cdf(squares / (1 - TOLERANCE), RUNS) < FALSE_ALARM
    if (too_small | too_large).any():
        ratio = math.sqrt(float(squares[too_small | too_large].flat[0]) / RUNS)
        raise DoesNotConformError(
            f"publishes wrong standard errors: actual errors are {ratio:.2g} times as large"
        )


def values_of(estimate: Published) -> NDArray[np.float64]:
    """Return the estimated values of an epoch, shape (counts,)."""
    if isinstance(estimate, Estimate):
        return np.array([estimate.value], np.float64)
    values: NDArray[np.float64] = estimate.intervals[0]
    return values


def _standard_errors(estimate: Published) -> NDArray[np.float64] | float:
    if isinstance(estimate, PanelEstimates):
        return estimate.standard_errors
    assert estimate.standard_error is not None
    return estimate.standard_error


def _followed_values(case: Case) -> Values:
    """Return values, (epochs, devices); estimates are unbiased for a quarter of the devices."""
    streams = np.array([each for each in case.streams if case.exact.followed(each)], case.dtype)
    changing = ESTIMATED // 4
    values = case.array_of(np.full((case.last_epoch, ESTIMATED), case.domain.initial))
    values[:, :changing] = np.swapaxes(streams[np.arange(changing) % len(streams)], 0, 1)
    return values
