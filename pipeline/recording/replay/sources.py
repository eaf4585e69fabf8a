"""What a replay reads: the decided epochs of a deployment, their windows, and their partials."""

from __future__ import annotations

import typing
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.topics.manifests import Manifest
from dpstream.topics.words import Words


@dataclass(frozen=True, slots=True)
class Stored:
    """How much there is to be read of windows.

    Attributes:
        records: of a topic, or rows of files.
        bytes: of them.
    """

    records: int
    bytes: int


class ReplaySource(typing.Protocol):
    """A deployment that has run, or still runs.

    Attributes:
        job: as it was deployed.
        place: where it is read from, in words.
    """

    job: DeployedJob
    place: str

    def has_window(self, epoch: int) -> bool:
        """Whether the window of a released epoch is there whole."""
        ...

    def has_partial(self, epoch: int) -> bool:
        """Whether the partial of an epoch is there."""
        ...

    def manifests(self) -> Iterator[Manifest]:
        """The manifests that count, in the order of epochs, up to the first undecided epoch."""
        ...

    def stored(self, epochs: Sequence[int]) -> Stored:
        """How much is read for the windows of some epochs, in increasing order."""
        ...

    def check(self, first: int, windows_from: int, last: int) -> None:
        """See that partials from the first epoch on and windows of later ones are undamaged.

        Args:
            first: epoch whose partial is read, unless its window is.
            windows_from: the first epoch whose window is read, in place of its partial.
            last: epoch of which anything is read.

        Raises:
            RecordingError: a file is not; the message names it.
        """
        ...

    def window(self, epoch: int) -> Words:
        """The multiset of a window, in canonical order; fastest in the order of epochs.

        Raises:
            ReplayError: it is gone.
        """
        ...

    def payloads(self, first: int, last: int) -> Iterator[tuple[int, bytes]]:
        """Epoch and payload of the partials from `first` to `last`, in the order of epochs."""
        ...


def in_words(epochs: Iterable[int]) -> str:
    """Increasing epochs as runs; of many runs the first ones.

    >>> in_words([7]), in_words([1, 2, 3, 7])
    ('epoch 7', 'epochs 1 to 3, 7')
    """
    listed = list(epochs)
    runs = []
    for _, members in groupby(enumerate(listed), lambda pair: pair[1] - pair[0]):
        run = [epoch for _, epoch in members]
        runs.append(f"{run[0]:,} to {run[-1]:,}" if len(run) > 1 else f"{run[0]:,}")
    more = f" and {len(runs) - 8:,} more" if len(runs) > 8 else ""
    return f"epoch{'s' if len(listed) > 1 else ''} {', '.join(runs[:8])}{more}"
