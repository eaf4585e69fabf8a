"""How often the users of an input change."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dpstream.pipeline.devices.change_log import ChangeLog


def changes_per_user(log: ChangeLog) -> NDArray[np.int64]:
    """How many users change how often: int64, entry c counts the users with c changes."""
    each = np.bincount(log.user_indices, minlength=len(log.users))
    return np.bincount(each).astype(np.int64)
