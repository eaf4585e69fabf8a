"""Latest window of each producer, and the number of its devices in that window."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dpstream.topics.manifests import Manifest

FEW = 256
"""Maximum number of producers for which manifests of the same members are evaluated together."""


class LatestWindows:
    """Latest decided window of every producer, in order of registration.

    Producers and device counts rarely change between windows. Of consecutive manifests with the
    same ones, only the manifest of the latest epoch is stored, and evaluated on demand.
    """

    def __init__(self) -> None:
        self._epochs = np.zeros(0, np.int64)
        self._populations = np.zeros(0, np.uint32)
        self._alike: Manifest | None = None

    def note(self, manifest: Manifest) -> None:
        """Add a decision; epochs can be in any order."""
        alike = self._alike
        if alike is not None and (
            manifest.producers is not alike.producers
            or manifest.populations is not alike.populations
        ):
            self._settle()
            alike = None
        if len(manifest.producers) > FEW:
            self._take_in(manifest)
        elif alike is None or manifest.epoch > alike.epoch:
            self._alike = manifest

    def epochs(self) -> NDArray[np.int64]:
        """Return the epoch of each producer's latest window, or 0 for a producer without one."""
        self._settle()
        return self._epochs

    def populations(self) -> NDArray[np.uint32]:
        """Return the number of devices of each producer in its latest window."""
        self._settle()
        return self._populations

    def _settle(self) -> None:
        if self._alike is not None:
            self._take_in(self._alike)
            self._alike = None

    def _take_in(self, manifest: Manifest) -> None:
        inside = np.asarray(manifest.producers, np.bool_)
        more = len(inside) - len(self._epochs)
        if more > 0:
            self._epochs = np.pad(self._epochs, (0, more))
            self._populations = np.pad(self._populations, (0, more))
        populations = np.asarray(manifest.populations, np.uint32)
        latest = inside & (self._epochs[: len(inside)] < manifest.epoch)
        # Epochs are decided nearly in order: a producer is rarely in a later window already.
        if np.count_nonzero(latest) < len(populations):
            populations = populations[latest[inside]]
        self._epochs[: len(inside)][latest] = manifest.epoch
        self._populations[: len(inside)][latest] = populations
