"""Privacy accounts of devices: the spending they record, compared with the messages they sent.

A guarantee over a whole stream relies on the state of a device: a decreasing squared-norm budget,
counted changes, recorded steps. Streams that change at every epoch, far beyond `max_changes`, are
recomputed from the definition, and compared with messages and state. Nothing here is random.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from dpstream.randomizers.counted_messages import written_out
from dpstream.randomizers.shuffled_counts import ShuffledCounts, ShuffledCountsParameters
from dpstream.randomizers.shuffled_counts.calibration import calibrate as calibrate_counts
from dpstream.randomizers.shuffled_counts.shuffled_value_stream import (
    STEPS,
    ZERO,
    ShuffledValueStream,
)
from dpstream.randomizers.shuffled_counts.shuffled_value_stream.calibration import (
    calibrate as calibrate_sums,
)
from dpstream.randomizers.value_stream import ValueStream, ValueStreamLaw, ValueStreamParameters
from dpstream.randomizers.value_stream.calibration import calibrate as calibrate_stream
from dpstream.randomizers.value_stream.lattice import STEP
from dpstream.randomizers.value_stream.lattice import ZERO as ZERO_SYMBOL
from experiments.protocols.ldp_sgd import LdpSgd, LdpSgdParameters
from experiments.protocols.ldp_sgd.calibration import calibrate as calibrate_sgd

EPOCHS, CHANGES = 12, 2
# Relative tolerance, because floating-point sums depend on their order.
_NEAR = 1e-9


def attack_device_accounts(randomness: np.random.Generator) -> dict[str, str]:
    """Return, for each account of a device, why it is wrong, or an empty text."""
    accounts = (
        ("symbols: budget and sum match what was sent", _symbols(randomness)),
        ("summed messages: budget and noise match", _sums(randomness)),
        ("messages for changes: at most those charged", _messages(randomness)),
        ("learning steps: at most those charged", _steps(randomness)),
    )
    return {what: next(filter(None, reasons), "") for what, reasons in accounts}


@dataclass
class Followed:
    """Reference device, computed from the definition; only the first changes are boosted."""

    boost: float
    decay: float
    changes: int
    before: int = 0
    made: int = 0
    left: float = 0.0

    def pull(self, value: int) -> float:
        """Return a value's contribution to the report minus 1/2, with pre-emphasis of changes."""
        self.left *= self.decay
        if value != self.before:
            if self.made < self.changes:
                self.left += self.boost if value else -self.boost
            self.made += 1
        self.before = value
        return value - 0.5 + self.left


def streams(randomness: np.random.Generator) -> NDArray[np.int8]:
    """Return values, shape (epochs, 24), that change at every epoch, never, or at random."""
    values = randomness.integers(0, 2, (EPOCHS, 24), dtype=np.int8)
    values[:, :8] = np.arange(EPOCHS)[:, None] % 2
    values[:, 8:12] = 1 - values[:, :4]
    values[:, 12:14] = (0, 1)
    return values


def _symbols(randomness: np.random.Generator) -> Iterator[str]:
    full = calibrate_stream(ValueStreamParameters(2.0, CHANGES), EPOCHS)
    # Includes a mechanism whose budget these streams exceed.
    for law in (full, _of_half_the_budget(full)):
        devices = ValueStream(law)
        values = streams(randomness)
        devices.enroll(values.shape[1], randomness)
        tilted = devices.state_arrays()["noise"] == 0
        rules = [Followed(law.boost, law.decay, law.max_changes) for _ in tilted]
        budgets, reported = np.full(len(tilted), law.squared_norm_budget), np.zeros(len(tilted))
        for epoch, now in enumerate(values, 1):
            symbols = devices.report(epoch, now, None, randomness)[:, 0].astype(int) - ZERO_SYMBOL
            most = np.minimum(np.sqrt(np.maximum(budgets - law.reserve, 0)), law.boost + 0.5)
            pulls = np.array(
                [rule.pull(int(value)) for rule, value in zip(rules, now, strict=True)]
            )
            pulls = np.clip(pulls, -most, most)
            budgets -= pulls**2
            reported += pulls * symbols * STEP
            kept = devices.state_arrays()
            yield _apart("the squared-norm budget", epoch, kept["left"][tilted], budgets[tilted])
            yield _apart("the sum of its symbols", epoch, kept["sum"][tilted], reported[tilted])


def _of_half_the_budget(law: ValueStreamLaw) -> ValueStreamLaw:
    """Halve the squared-norm budget, and halve theta so that the loss does not increase."""
    return replace(
        law,
        squared_norm_budget=max(law.squared_norm_budget / 2, 2 * law.reserve),
        theta=law.theta / 2,
    )


def _apart(what: str, epoch: int, kept: NDArray[np.generic], exact: NDArray[np.float64]) -> str:
    off = np.abs(np.asarray(kept, np.float64) - exact)
    worst = int(np.argmax(off))
    if off[worst] <= _NEAR * (1 + abs(exact[worst])):
        return ""
    return (
        f"stores {float(kept[worst])!r} as {what} of a device at epoch {epoch}; expected "
        f"{float(exact[worst])!r} from the reports sent"
    )


def _sums(randomness: np.random.Generator) -> Iterator[str]:
    requested = ShuffledCountsParameters(1.0, 1e-6, max_changes=CHANGES, dummies="shuffle")
    full = calibrate_sums(requested, EPOCHS, 2)
    yield _too_little_noise(full.squared_norm_budget, full.deviation, full.epsilon, full.delta)
    for law in (full, replace(full, squared_norm_budget=full.squared_norm_budget // 4)):
        devices = ShuffledValueStream(law)
        values = streams(randomness)
        devices.enroll(values.shape[1], randomness)
        rules = [Followed(law.boost, law.decay, law.max_changes) for _ in values[0]]
        spent = np.zeros(values.shape[1], np.int64)
        for epoch, now in enumerate(values, 1):
            sent = devices.report(epoch, now, None, randomness)[:, 0].astype(np.int64) - ZERO
            pulls = [STEPS * rule.pull(int(value)) for rule, value in zip(rules, now, strict=True)]
            for device, (word, pull) in enumerate(zip(sent.tolist(), pulls, strict=True)):
                most = min(math.isqrt(law.squared_norm_budget - int(spent[device])), law.most)
                clipped = min(max(pull, -most), most)
                if not math.floor(clipped - 1e-6) <= word <= math.ceil(clipped + 1e-6):
                    yield f"sends {word} at epoch {epoch}; its mechanism requires {clipped:.6g}"
            spent += sent**2
            if (spent > law.squared_norm_budget).any():
                yield (
                    f"sends messages with squared norm {spent.max():,} by epoch {epoch}, but the "
                    f"noise is calibrated to {law.squared_norm_budget:,}"
                )


def _too_little_noise(
    squared_norm_budget: int, deviation: int, epsilon: float, delta: float
) -> str:
    """Check the noise for streams that differ by twice the square root of the budget."""
    apart = 2 * math.sqrt(squared_norm_budget) / deviation
    likely = stats.norm.sf(epsilon / apart - apart / 2)
    least = likely - math.exp(epsilon) * stats.norm.sf(epsilon / apart + apart / 2)
    if least <= delta * (1 + 1e-6):
        return ""
    return f"declares delta {delta:g} for sums with noise; delta is at least {least:.4g}"


def _messages(randomness: np.random.Generator) -> Iterator[str]:
    """Check devices one at a time; the stage adds the dummies, so all their messages are real."""
    requested = ShuffledCountsParameters(2.0, 0.01, max_changes=CHANGES, boost=3, dummies="shuffle")
    law = calibrate_counts(requested, EPOCHS, 2)
    for stream in streams(randomness).T:
        devices = ShuffledCounts(law)
        devices.enroll(1, randomness)
        before = made = 0
        for epoch, value in enumerate(stream.tolist(), 1):
            sent = len(
                written_out(devices.report(epoch, np.array([value], np.int8), None, randomness))
            )
            boosted = value != before and made < CHANGES
            charged = law.boost + value + boosted * (law.boost if value else -law.boost)
            made += value != before
            before = value
            if sent != charged:
                yield (
                    f"sends {sent} messages at epoch {epoch} after {made} changes, but {charged} "
                    "are charged"
                )


def _steps(randomness: np.random.Generator) -> Iterator[str]:
    """Check that a device queried at every epoch contributes to at most the steps charged."""
    requested = LdpSgdParameters(3.0, 0.05, 1, 2, clip=0.01, seed_bits=3, groups=3)
    law = calibrate_sgd(requested, EPOCHS, 2)
    charged = math.ceil(Fraction(EPOCHS, 3))
    devices = LdpSgd(law)
    devices.enroll(1, randomness)
    answered = 0
    for epoch in range(1, EPOCHS + 1):
        try:
            devices.report(epoch, np.array([[1, 100]]), None, randomness)
        except ValueError:
            break
        answered += 1
    if answered > charged:
        yield f"contributes to {answered} steps, but {charged} are charged"
