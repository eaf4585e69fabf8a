"""The state of devices as arrays: what is handed out, and what is taken back."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray


def read_only(arrays: Mapping[str, NDArray[np.generic]]) -> dict[str, NDArray[np.generic]]:
    """Views that cannot be written to."""
    views = {name: array.view() for name, array in arrays.items()}
    for view in views.values():
        view.flags.writeable = False
    return views


def check_state(
    protocol: str,
    arrays: Mapping[str, NDArray[np.generic]],
    empty: Mapping[str, NDArray[np.generic]],
) -> None:
    """See that arrays can be the state of some devices.

    Args:
        protocol: named in errors.
        arrays: for each name, what is kept of every device.
        empty: the same of no device.

    Raises:
        ValueError: a name, a dtype or a shape is another one.
    """
    if arrays.keys() != empty.keys():
        raise ValueError(f"state arrays {sorted(arrays)}, {protocol} keeps {sorted(empty)}")
    population = len(arrays[next(iter(empty))])
    for name, of_nobody in empty.items():
        shape = (population, *of_nobody.shape[1:])
        if arrays[name].dtype != of_nobody.dtype or arrays[name].shape != shape:
            raise ValueError(
                f"state array {name} is {arrays[name].dtype} of shape {arrays[name].shape}, "
                f"must be {of_nobody.dtype} of shape {shape}"
            )
