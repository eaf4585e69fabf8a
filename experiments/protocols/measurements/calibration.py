"""Calibrate the mechanism of a job over noisy measurements from its parameters.

The noise is that of the paper. The stated loss is the smaller of two proven ones: the sum of the
exact losses of all measurements that differ, and the bound of advanced composition. The paper
chooses the noise by Theorem 2.5, which is advanced composition with half of epsilon unused. The
theorem holds for epsilon below 1. A job for which it does not hold is rejected.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final, Literal, TypedDict

from dpstream.randomizers.accounting.calibration import optimal
from dpstream.randomizers.composed import log_rounded_up
from dpstream.randomizers.item_domains import domain_size
from experiments.protocols.measurements import (
    BucketLaw,
    BucketParameters,
    Calibration,
    JlHhLaw,
    JlHhParameters,
    LaplaceHistogramLaw,
    LaplaceHistogramParameters,
    MeasurementsLaw,
    MeasurementsParameters,
    SparseRecoveryLaw,
    SparseRecoveryParameters,
    hash_rows,
    projection_rows,
    tested_buckets,
)
from experiments.protocols.measurements.clamped_noise import MOST_BOUND, ClampedNoise
from experiments.protocols.measurements.public_matrices import OneHot, PublicMatrix, size_for

_SCALES = 16
"""Bound of clamped noise, in multiples of its scale: one report in ten million exceeds it."""

_MOST_LOSS = 16.0
"""Maximum privacy loss of a measurement: with even less noise, tables would be too coarse."""

_ROUNDING = 1 + 1e-10

MEASUREMENTS: Final = 256
"""Default number of measurements of `jl_hh`: collisions then matter less than noise."""


@dataclass(frozen=True, slots=True)
class Mechanism:
    """Properties that distinguish a mechanism from the others.

    Attributes:
        law: Class of its constants.
        sizes: Function that returns the fields of `law` for the size of its matrix, from
            parameters, the number of items and the minimum number of contributors.
        matrix: Function that returns the matrix, from the number of items and these fields.
        removal: True if the published noise is for neighbors by removal.
        pure: True if the measurements that differ between neighbors share epsilon equally, without
            a delta; otherwise Theorem 2.5 determines the loss of each.
    """

    law: type[MeasurementsLaw]
    sizes: Callable[[Any, int, int], Mapping[str, int]]
    matrix: Callable[..., PublicMatrix]
    removal: bool = True
    pure: bool = False


def calibrate(
    parameters: MeasurementsParameters, last_epoch: int, minimum: int = 1
) -> MeasurementsLaw:
    """Calibrate a job of any of the mechanisms.

    The minimum number of contributors, `minimum`, determines the sparsity in `sparse_recovery`.

    Raises `ValueError` if the published noise loses more than epsilon, the domain is too large, or
    epsilon is too small.

    >>> thousand = tuple(map(str, range(1000)))
    >>> law = calibrate(JlHhParameters(1.0, thousand, calibration="published"), 1, 1)
    >>> law.neighbors, law.measurements, round(law.epsilon, 3), round(law.noise.variance / 256, 1)
    ('removal', 256, 0.509, 221.0)
    >>> law = calibrate(BucketParameters(0.5, tuple(map(str, range(50_000)))), 1, 1)
    >>> law.hashes, law.trials, law.neighbors
    (20, 24, 'replacement')
    >>> labels = tuple(map(str, range(16_470)))
    >>> requested = SparseRecoveryParameters(0.9, labels, calibration="published")
    >>> law = calibrate(requested, last_epoch=1, minimum=88_162)
    >>> law.buckets, law.matrix.measurements
    (3, 48)
    >>> law = calibrate(LaplaceHistogramParameters(1.0, ("a", "b", "c"), "published"), 1, 1)
    >>> round(law.epsilon, 6), round(law.noise.variance, 3)  # 2 q / (1 - q)^2 with q = 1/e
    (1.0, 1.841)
    """
    mechanism, requested = MECHANISMS[type(parameters)], parameters
    items = domain_size(requested.domain)
    sizes = mechanism.sizes(requested, items, minimum)
    spent = _spent(mechanism, mechanism.matrix(items, **sizes), requested, last_epoch)
    return mechanism.law(items=items, last_epoch=last_epoch, **spent, **sizes)


def _spent(mechanism: Mechanism, matrix: PublicMatrix, requested: Any, last_epoch: int) -> Spent:
    if requested.calibration == "sampled":
        return sampled(requested.epsilon, last_epoch)
    removal = mechanism.removal and requested.calibration == "published"
    if mechanism.pure:
        ((cells, _),) = matrix.moved(removal=removal)
        loss, delta = requested.epsilon / cells, 0.0
    else:
        delta = requested.delta
        loss = published_loss(matrix.measurements, requested.epsilon, delta)
        # Replacing an item moves a measurement by up to 2.
        loss = loss if removal else loss / 2
    return with_noise(
        matrix,
        noise_of(loss),
        requested.calibration,
        requested.epsilon,
        delta,
        last_epoch,
        removal=removal,
    )


def _rows(requested: JlHhParameters, items: int, minimum: int) -> Mapping[str, int]:
    size = size_for(items)
    usual = size if requested.calibration == "sampled" else MEASUREMENTS
    return {"measurements": min(size, requested.measurements or usual)}


def _trials(requested: BucketParameters, items: int, minimum: int) -> Mapping[str, int]:
    # The bit length of 12 N - 1 is log2(12 N), rounded up.
    hashes = requested.hashes or (12 * items - 1).bit_length()
    return {
        "hashes": hashes,
        "trials": requested.trials or math.ceil(8 * math.log(1 / requested.beta)),
    }


def _buckets(requested: SparseRecoveryParameters, items: int, minimum: int) -> Mapping[str, int]:
    sparsity = requested.sparsity or published_sparsity(requested, items, minimum)
    tests = tested_buckets(items, 1).filled
    return {"buckets": max(1, math.ceil(published_rows(sparsity, items) / tests))}


def published_sparsity(requested: SparseRecoveryParameters, items: int, users: int) -> int:
    """Return ((epsilon / ln(1/beta)) sqrt(n / (ln N ln(1/delta))))^(2/3), rounded up (Theorem 4.2).

    >>> published_sparsity(SparseRecoveryParameters(1.0, ("a",)), items=16_470, users=88_162)
    5
    """
    logs = math.log(max(2, items)) * math.log(1 / requested.delta)
    share = requested.epsilon / math.log(1 / requested.beta)
    return math.ceil(float((share * math.sqrt(users / logs)) ** (2 / 3)))


def published_rows(sparsity: int, items: int) -> int:
    """Return m = s ln(N / s), rounded down; at least 1.

    >>> published_rows(5, 16_470)
    40
    """
    return max(1, math.floor(sparsity * math.log(max(1.0, items / sparsity))))


MECHANISMS: Final[Mapping[type[MeasurementsParameters], Mechanism]] = {
    JlHhParameters: Mechanism(JlHhLaw, _rows, projection_rows),
    BucketParameters: Mechanism(BucketLaw, _trials, hash_rows, removal=False),
    SparseRecoveryParameters: Mechanism(SparseRecoveryLaw, _buckets, tested_buckets),
    LaplaceHistogramParameters: Mechanism(
        LaplaceHistogramLaw, lambda requested, items, minimum: {}, OneHot, pure=True
    ),
}
"""Mechanism for each class of parameters."""


class Spent(TypedDict):
    """Fields of a `MeasurementsLaw` for the noise or odds, and the loss."""

    calibration: Calibration
    neighbors: Literal["removal", "replacement"]
    noise: ClampedNoise | None
    odds: Any
    epsilon: float
    delta: float
    stream_epsilon: float


def noise_of(loss: float) -> ClampedNoise:
    """Return noise with which a measurement that differs by 1 loses at most `loss`.

    Raises `ValueError` if the loss is too small for integer noise.

    >>> noise = noise_of(0.5)
    >>> noise.most, log_rounded_up(noise.odds(1)) <= 0.5
    (34, True)
    """
    loss = min(loss, _MOST_LOSS)
    most = math.ceil(_SCALES / loss) + 2
    if most > MOST_BOUND:
        raise ValueError(
            f"the loss per measurement is {loss:g}; expected at least {_SCALES / MOST_BOUND:.2g}. "
            "Raise epsilon, or use fewer measurements"
        )
    return ClampedNoise(math.exp(-loss) * _ROUNDING, most)


def published_loss(measurements: int, epsilon: float, delta: float) -> float:
    """Return the loss of each of m measurements by Theorem 2.5: epsilon / sqrt(8 m ln(1/delta))."""
    return epsilon / math.sqrt(8 * measurements * math.log(1 / delta))


def composed_loss(times: int, odds: Fraction, delta: float) -> tuple[float, float]:
    """Return the joint loss of `times` mechanisms, each with these odds, and its delta.

    Let each of k mechanisms have the loss e. The joint loss is k e, with delta 0; or e sqrt(2 k
    ln(1/delta)) + k e (exp(e) - 1), with `delta`, if that is smaller (Dwork, Rothblum, Vadhan 2010,
    Theorem III.3).

    >>> composed_loss(256, Fraction(1001, 1000), 1e-6)[0] < 256 * 1e-3
    True
    """
    single, total = log_rounded_up(odds), log_rounded_up(odds, times)
    if delta == 0:
        return total, 0.0
    advanced = single * math.sqrt(2 * times * math.log(1 / delta))
    advanced = _ROUNDING * (advanced + times * single * math.expm1(single))
    return (advanced, delta) if advanced < total else (total, 0.0)


def with_noise(
    matrix: PublicMatrix,
    noise: ClampedNoise,
    calibration: Calibration,
    requested: float,
    delta: float,
    last_epoch: int,
    *,
    removal: bool,
) -> Spent:
    """Return the loss of a mechanism with noise; raise `ValueError` if it exceeds `requested`.

    `delta` can be 0. With `removal`, neighbors are an item and no item, instead of any two items.
    """
    moved = matrix.moved(removal=removal)

    def lost(epochs: int) -> tuple[float, float]:
        found = [composed_loss(epochs * count, noise.odds(step), delta) for count, step in moved]
        return max(loss for loss, _ in found), max(needed for _, needed in found)

    (epsilon, needed), (stream_epsilon, of_stream) = lost(1), lost(last_epoch)
    if epsilon > requested:
        raise ValueError(
            f"the paper's noise for epsilon {requested:g} and delta {delta:g} has epsilon "
            f"{epsilon:.4g}, because its Theorem 2.5 holds only for epsilon below 1. Lower "
            "epsilon, or use 'calibration: sampled'"
        )
    return Spent(
        calibration=calibration,
        neighbors="removal" if removal else "replacement",
        noise=noise,
        odds=None,
        epsilon=epsilon,
        delta=max(needed, of_stream),
        stream_epsilon=stream_epsilon,
    )


def sampled(epsilon: float, last_epoch: int) -> Spent:
    odds = optimal(1, epsilon)
    return Spent(
        calibration="sampled",
        neighbors="replacement",
        noise=None,
        odds=odds,
        epsilon=odds.loss,
        delta=0.0,
        stream_epsilon=log_rounded_up(Fraction(*odds.weights), last_epoch),
    )
