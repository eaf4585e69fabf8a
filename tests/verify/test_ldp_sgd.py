"""Accuracy by epsilon of a model of MNIST's digits.

``DPSTREAM_MNIST=FOLDER pytest -m verify -s tests/verify/test_ldp_sgd.py`` runs the tests; FOLDER
contains the four IDX files as .gz.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import pytest

from dpstream.randomizers.randomness import cryptographic_generator
from experiments.learn_mnist import CLASSES, Setting, examples_of, learn
from experiments.prepare_mnist import FEATURES
from experiments.protocols.ldp_sgd import LdpSgd, LdpSgdParameters
from experiments.protocols.ldp_sgd.aggregator import accuracy
from experiments.protocols.ldp_sgd.calibration import calibrate

pytestmark = pytest.mark.verify

MNIST = os.environ.get("DPSTREAM_MNIST")
with_mnist = pytest.mark.skipif(MNIST is None, reason="DPSTREAM_MNIST is not set to a folder")


@with_mnist
@pytest.mark.parametrize(
    ("setting", "epsilon", "least"),
    [(Setting(30, 1, 300), 1.02, 0.805), (Setting(30, 1, 900), 1.87, 0.84)],
    ids=["300 steps", "900 steps"],
)
def test_model_reaches_the_accuracy_of_the_baseline(
    setting: Setting, epsilon: float, least: float
) -> None:
    assert MNIST is not None
    learned_from, tested = examples_of(Path(MNIST))
    for seed in range(2):
        guarantee, model = learn(learned_from, setting, seed)
        assert guarantee.stream_epsilon is not None
        assert guarantee.stream_epsilon < epsilon
        found = accuracy(model, tested, CLASSES)
        print(f"{setting.steps} steps, epsilon {guarantee.stream_epsilon:.3f}: {found:.2%}")
        assert found >= least


def test_device_randomizes_at_least_2500_gradients_per_second() -> None:
    """Typical on two cores is 50,000 gradients per second; the rate is printed."""
    requested = LdpSgdParameters(1.9, 1e-5, FEATURES, CLASSES)
    devices, rng = LdpSgd(calibrate(requested, 3, minimum=20_000)), cryptographic_generator()
    devices.enroll(20_000, rng)
    examples = np.random.default_rng(1).integers(-500, 500, (20_000, 1 + FEATURES))
    examples[:, 0] = 1
    taken = []
    for epoch in (1, 2, 3):
        started = time.perf_counter()
        devices.report(epoch, examples, None, rng)
        taken.append(time.perf_counter() - started)
    print(
        f"{20_000 / min(taken):,.0f} reports of {requested.features * requested.classes} numbers a "
        "second"
    )
    assert 20_000 / min(taken) > 2_500
