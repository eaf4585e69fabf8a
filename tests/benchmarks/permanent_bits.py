"""How many devices of a permanent backstop a gateway draws: ``python -m`` this module."""

from __future__ import annotations

import time

import numpy as np

from dpstream.randomizers.fragments import Fragments, FragmentsParameters
from dpstream.randomizers.fragments.calibration import calibrate
from dpstream.randomizers.randomness import cryptographic_generator

DEVICES, CELLS, EPOCHS = 100_000, 1_000, 5


def main() -> None:
    """Print the devices a second, of reports about all cells."""
    domain = tuple(f"item {number}" for number in range(CELLS))
    asked = FragmentsParameters(1.0, 1e-6, domain, reports=4, permanent=True)
    rng = cryptographic_generator()
    devices = Fragments(calibrate(asked, EPOCHS, DEVICES))
    devices.enrol(DEVICES, rng)
    values = np.arange(DEVICES)[:, None] % (CELLS + 1)
    begun = time.perf_counter()
    for epoch in range(1, EPOCHS + 1):
        devices.report(epoch, values, None, rng)
    seconds = (time.perf_counter() - begun) / EPOCHS
    print(
        f"{DEVICES:,} devices with {CELLS:,} cells: {seconds:.2f} s, {DEVICES / seconds:,.0f} a s"
    )


if __name__ == "__main__":
    main()
