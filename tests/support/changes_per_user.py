"""Distribution of changes per user in an input."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dpstream.pipeline.devices.change_log import ChangeLog


def changes_per_user(log: ChangeLog) -> NDArray[np.int64]:
    """Return the number of users by number of changes."""
    each = np.bincount(log.user_indices, minlength=len(log.users))
    return np.bincount(each).astype(np.int64)
