"""How much noise measurements have, and what is lost with it.

The noise is the paper's, but what is stated is the least that is proven of it: the sum of the exact
losses of all measurements that differ, or what advanced composition makes of them. Theorem 2.5, by
which the paper chooses the noise, is that theorem with half of epsilon given away, and holds for
epsilon below 1; where it does not hold, a job is refused.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any, Literal, TypedDict

from dpstream.randomizers.accounting.calibration import optimal
from dpstream.randomizers.clamped_noise import MOST_BOUND, ClampedNoise
from dpstream.randomizers.composed import log_rounded_up
from dpstream.randomizers.measurements import Calibration
from dpstream.randomizers.public_matrices import PublicMatrix

_SCALES = 16
"""Noise is clamped at so many times its scale: beyond it is one report in ten million."""

_MOST_LOSS = 16.0
"""Of a measurement: with less noise than that, tables would be too coarse."""

_ROUNDING = 1 + 1e-10


class Spent(TypedDict):
    """The fields of a `MeasurementsLaw` that say what is drawn, and what is lost."""

    calibration: Calibration
    neighbours: Literal["removal", "replacement"]
    noise: ClampedNoise | None
    odds: Any
    epsilon: float
    delta: float
    stream_epsilon: float


def noise_of(loss: float) -> ClampedNoise:
    """Noise with which a measurement that moves by 1 loses at most so much.

    Raises:
        ValueError: the loss is too small for noise in whole numbers.

    >>> noise = noise_of(0.5)
    >>> noise.most, log_rounded_up(noise.odds(1)) <= 0.5
    (34, True)
    """
    loss = min(loss, _MOST_LOSS)
    most = math.ceil(_SCALES / loss) + 2
    if most > MOST_BOUND:
        raise ValueError(
            f"a measurement may lose {loss:g}: too little to draw noise for; raise epsilon, or "
            "take fewer measurements"
        )
    return ClampedNoise(math.exp(-loss) * _ROUNDING, most)


def published_loss(measurements: int, epsilon: float, delta: float) -> float:
    """What Theorem 2.5 lets each of so many measurements lose: epsilon / sqrt(8 m ln(1/delta))."""
    return epsilon / math.sqrt(8 * measurements * math.log(1 / delta))


def composed_loss(times: int, odds: Fraction, delta: float) -> tuple[float, float]:
    """The loss of so many mechanisms together, each with these odds; and the delta it needs.

    The sum of their losses with delta 0; or, if that is less, e sqrt(2 k ln(1/delta)) +
    k e (exp(e) - 1) (Dwork, Rothblum, Vadhan 2010, Theorem III.3).

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
    asked: float,
    delta: float,
    last_epoch: int,
    *,
    removal: bool,
) -> Spent:
    """What a law with noise spends.

    Args:
        matrix: what is measured.
        noise: of each measurement.
        calibration: how it was chosen.
        asked: epsilon of the job.
        delta: the same, 0 for none.
        last_epoch: number of epochs.
        removal: whether neighbours are an item and none, instead of any two.

    Raises:
        ValueError: it is more than was asked for.
    """
    moved = matrix.moved(removal=removal)

    def lost(epochs: int) -> tuple[float, float]:
        found = [composed_loss(epochs * count, noise.odds(step), delta) for count, step in moved]
        return max(loss for loss, _ in found), max(needed for _, needed in found)

    (epsilon, needed), (stream_epsilon, of_stream) = lost(1), lost(last_epoch)
    if epsilon > asked:
        raise ValueError(
            f"epsilon is {asked:g} with a delta of {delta:g}: the published noise loses "
            f"{epsilon:.4g}, since Theorem 2.5 holds for epsilon below 1 only; lower epsilon, or "
            "take calibration: sampled"
        )
    return Spent(
        calibration=calibration,
        neighbours="removal" if removal else "replacement",
        noise=noise,
        odds=None,
        epsilon=epsilon,
        delta=max(needed, of_stream),
        stream_epsilon=stream_epsilon,
    )


def published(
    matrix: PublicMatrix,
    calibration: Calibration,
    epsilon: float,
    delta: float,
    last_epoch: int,
    *,
    removal: bool,
) -> Spent:
    """What a law spends whose noise is by Theorem 2.5, or that samples.

    Args:
        matrix: what is measured.
        calibration: of the job.
        epsilon: of the job.
        delta: of the job.
        last_epoch: number of epochs.
        removal: whether the published noise is for neighbours by removal.

    Raises:
        ValueError: the published noise loses more.
    """
    if calibration == "sampled":
        return sampled(epsilon, last_epoch)
    removal = removal and calibration == "published"
    loss = published_loss(matrix.measurements, epsilon, delta)
    # A measurement that another one may take the place of moves by up to 2.
    noise = noise_of(loss if removal else loss / 2)
    return with_noise(matrix, noise, calibration, epsilon, delta, last_epoch, removal=removal)


def sampled(epsilon: float, last_epoch: int) -> Spent:
    """What a law spends where a device reports one measurement by randomized response."""
    odds = optimal(1, epsilon)
    return Spent(
        calibration="sampled",
        neighbours="replacement",
        noise=None,
        odds=odds,
        epsilon=odds.loss,
        delta=0.0,
        stream_epsilon=log_rounded_up(Fraction(*odds.weights), last_epoch),
    )
