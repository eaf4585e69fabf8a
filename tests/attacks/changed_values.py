"""Values of neighboring inputs, in which some devices always differ."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dpstream.pipeline.conformance.cases import Case


def other_values(
    case: Case, epochs: int, devices: int, changed: NDArray[np.intp]
) -> tuple[NDArray[np.int8], NDArray[np.int8]]:
    """Return values of two neighbors, shape (epochs, devices) or more.

    The values of the devices in `changed` differ at every epoch.
    """
    size = len(case.values)
    indices = (np.arange(epochs)[:, None] * 7 + np.arange(devices) * 3) % size
    others = indices.copy()
    others[:, changed] += 1 + np.arange(epochs)[:, None] % (size - 1)
    return case.array_of(indices), case.array_of(others % size)
