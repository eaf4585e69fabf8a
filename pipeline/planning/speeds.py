"""How long the devices of a job take: measured here and now, with the randomizer that runs."""

from __future__ import annotations

import time
from typing import Any, Final

import numpy as np

from dpstream.pipeline.protocols.protocol import Law, Protocol
from dpstream.randomizers.randomness import cryptographic_generator

DEVICES: Final = 2_000
"""That are measured, on one core."""
EPOCHS: Final = 16
"""That are measured, the first ones: at most so many."""


def cpu_seconds(protocol: Protocol, law: Law, parameters: Any, last_epoch: int) -> float:
    """CPU seconds of one core that a million devices take over a horizon, enrolment included.

    It differs from one machine, and from one moment, to another: by tens of percent.

    Args:
        protocol: any.
        law: its constants.
        parameters: of the job.
        last_epoch: of a horizon.
    """
    domain, measured = protocol.values(parameters), min(EPOCHS, last_epoch)
    rng = cryptographic_generator()
    values = rng.integers(0, min(domain.size, 2), (DEVICES, *domain.shape))
    devices = protocol.randomizer(law)
    begun = time.process_time()
    devices.enrol(DEVICES, rng)
    enrolled = time.process_time()
    for epoch in range(1, measured + 1):
        devices.report(epoch, values, None, rng)
    reported = time.process_time()
    whole = (enrolled - begun) + (reported - enrolled) * last_epoch / measured
    return float(np.float64(whole) * 1e6 / DEVICES)
