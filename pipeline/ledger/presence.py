"""Who was in every released window, as far as manifests say: a pure function of them.

A manifest names the producers that are in, how many devices are enrolled with each of them, and how
many of all these devices were there. It does not say which: so of the devices of producers that
were in every window, as many may have been missing once as were missing from all windows together.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from dpstream.randomizers.accounting.whole_streams import there_throughout
from dpstream.topics.manifests import Manifest

_Each = TypeVar("_Each", bound=np.generic)
_TOGETHER = b"those who were always in"


class Presence:
    """Who was in every window of those that were taken in.

    Attributes:
        windows: how many were taken in.
    """

    def __init__(self) -> None:
        self.windows = 0
        self._ever: NDArray[np.bool_] = np.zeros(0, np.bool_)
        self._always: NDArray[np.bool_] = np.zeros(0, np.bool_)
        self._enrolled: NDArray[np.int64] = np.zeros(0, np.int64)
        self._missing: list[int] = []

    def take(self, manifest: Manifest) -> None:
        """Take in the manifest of another released window of the same horizon."""
        inside = np.array(manifest.producers, np.bool_)
        enrolled = np.zeros(len(inside), np.int64)
        enrolled[inside] = manifest.populations
        self._missing.append(sum(manifest.populations) - manifest.contributors)
        if not self.windows:
            self._ever, self._always, self._enrolled = inside, inside, enrolled
        else:
            # Whoever registers later is named after all others, and was in no window before.
            size = max(len(inside), len(self._ever))
            inside, enrolled = _longer(inside, size), _longer(enrolled, size)
            self._ever = _longer(self._ever, size) | inside
            self._always = _longer(self._always, size) & inside
            # Who enrols meanwhile was not there from the first window on.
            self._enrolled = np.minimum(_longer(self._enrolled, size), enrolled)
        self.windows += 1

    @property
    def producers(self) -> int:
        """How many producers were in every window."""
        return int(np.count_nonzero(self._always))

    @property
    def other_producers(self) -> int:
        """How many were in some windows and not in all."""
        return int(np.count_nonzero(self._ever)) - self.producers

    @property
    def devices(self) -> int:
        """How many devices were there at every window, at least."""
        enrolled = int(self._enrolled[self._always].sum())
        windows = [{_TOGETHER: max(0, enrolled - missing)} for missing in self._missing]
        return there_throughout({_TOGETHER: enrolled}, windows)


def _longer(each: NDArray[_Each], size: int) -> NDArray[_Each]:
    return np.pad(each, (0, size - len(each)))
