"""The form of reports, before anybody asks what they mean."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def check_form(
    epoch: int,
    last_epoch: int,
    words: NDArray[np.unsignedinteger],
    dtype: type[np.unsignedinteger] | np.dtype[np.unsignedinteger],
    width: int = 1,
) -> None:
    """See that words have the form of reports of an epoch.

    Raises:
        ValueError: the epoch lies outside the horizon, or the array has not this dtype and the
            shape (reports, width).
    """
    if not 1 <= epoch <= last_epoch:
        raise ValueError(f"epoch {epoch}, the horizon has {last_epoch} epochs")
    if words.dtype != dtype or words.ndim != 2 or words.shape[1] != width:
        raise ValueError(
            f"words of epoch {epoch} are {words.dtype} of shape {words.shape}, "
            f"must be {np.dtype(dtype)} of shape (reports, {width})"
        )
