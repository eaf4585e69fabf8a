"""Counterexamples to statements of "Distributed Private Heavy Hitters".

Also counterexamples to "Encode, Shuffle, Analyze Privacy Revisited", on the accuracy of counts and
on what an attack shows. The implementation follows the corrected statements.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from experiments.protocols.measurements import BucketLaw, BucketParameters, JlHhParameters
from experiments.protocols.measurements.calibration import calibrate, published_loss

LABELS = tuple(map(str, range(1000)))


def exact_delta(moved: int, step: int, decay: float, epsilon: float) -> float:
    """Return delta of measurements with discrete Laplace noise, each moved by a step of 1 or 2.

    Each measurement loses step ln(1/q), minus that, or 0. So the total loss is a sum of draws from
    three values.
    """
    q, unit = decay, -math.log(decay)
    if step == 1:
        likely = np.array([q, 1.0]) / (1 + q)
    else:
        likely = np.array([q * q, q * (1 - q), 1.0]) / (1 + q)
    total = np.ones(1)
    for _ in range(moved):
        total = np.convolve(total, likely)
    # Total losses, in steps of 2 ln(1/q), symmetric around 0.
    losses = unit * (2 * np.arange(len(total)) - (len(total) - 1))
    return float((total * np.maximum(0.0, -np.expm1(epsilon - losses))).sum())


def noise_of_theorem(measurements: int, epsilon: float, delta: float) -> float:
    return math.exp(-published_loss(measurements, epsilon, delta))


def test_noise_of_jl_hh_and_glps_hh_suffices_only_for_removal() -> None:
    """Replacing an item moves entries of +-1 by 2, so that delta is exceeded with the same noise.

    Theorem 2.5 is so loose that delta is exceeded only if epsilon is large. Below 1, the proof
    fails: each measurement loses twice its allowance.
    """
    epsilon, delta, measurements = 7.0, math.exp(-2), 400
    q = noise_of_theorem(measurements, epsilon, delta)
    assert exact_delta(measurements, 1, q, epsilon) < delta
    assert exact_delta(measurements, 2, q, epsilon) > delta
    assert exact_delta(measurements, 2, math.sqrt(q), epsilon) < delta
    # So mechanisms state their neighboring relation, and replacement has twice the noise.
    laws = [
        calibrate(JlHhParameters(0.9, LABELS, 1e-6, 256, calibration), 1)
        for calibration in ("published", "replacement")
    ]
    assert [law.neighbors for law in laws] == ["removal", "replacement"]
    decays = [law.noise.decay for law in laws if law.noise is not None]
    assert decays[0] == pytest.approx(decays[1] ** 2, rel=1e-6)


def test_noise_of_the_bucket_protocol_suffices_for_replacing_a_users_items() -> None:
    """In the paper a bucket is 0 or 1 and moves by 1; here it is -1 or 1 and moves by 2."""
    law = calibrate(BucketParameters(0.9, LABELS, 1e-6), 1)
    assert isinstance(law, BucketLaw)
    assert law.noise is not None
    hashes = law.hashes * law.trials
    assert law.neighbors == "replacement"
    assert law.noise.decay**2 == pytest.approx(noise_of_theorem(hashes, 0.9, 1e-6), rel=1e-6)
    assert exact_delta(hashes, 2, law.noise.decay, 0.9) < 1e-6


def test_theorem_2_5_of_the_paper_fails_for_a_large_epsilon() -> None:
    """Without the condition that epsilon is below 1, the theorem states a false bound."""
    measurements, delta = 400, math.exp(-1)
    assert exact_delta(measurements, 1, noise_of_theorem(measurements, 0.9, delta), 0.9) < delta
    assert exact_delta(measurements, 1, noise_of_theorem(measurements, 16.0, delta), 16.0) > delta
    with pytest.raises(ValueError, match=r"Theorem 2\.5"):
        calibrate(JlHhParameters(16.0, LABELS, delta, 400, "published"), 1)
