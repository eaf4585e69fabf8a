"""Components of ldp_sgd, for the suite and `experiments.learn_mnist`: it is not registered.

A job cannot train a model, because its devices would need the model of the previous epoch.
"""

from __future__ import annotations

from dpstream.pipeline.protocols.protocol import (
    Aggregation,
    Example,
    Protocol,
    Shuffling,
)
from experiments.protocols.ldp_sgd import LdpSgd, LdpSgdLaw, LdpSgdParameters
from experiments.protocols.ldp_sgd.aggregator import LdpSgdAggregator
from experiments.protocols.ldp_sgd.calibration import calibrate, epsilon_with

PROTOCOL = Protocol(
    name="ldp_sgd",
    parameters=LdpSgdParameters,
    law=lambda requested: LdpSgdLaw,
    calibrate=calibrate,
    randomizer=LdpSgd,
    aggregation=Aggregation.of(LdpSgdAggregator),
    shuffling=Shuffling(epsilon_with, without_shuffling=lambda law: LdpSgd(law).without_shuffling),
    examples=(
        Example(LdpSgdParameters(2.0, 0.05, 2, 2, clip=0.02, seed_bits=3), 1, minimum=2),
        Example(LdpSgdParameters(3.0, 0.05, 1, 2, clip=0.01, seed_bits=3), 2),
        Example(LdpSgdParameters(1.2, 0.3, 1, 2, clip=0.01, reports=2, seed_bits=2), 1, minimum=2),
    ),
)
