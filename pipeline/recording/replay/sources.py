"""Input to a replay: finalized epochs of a deployment, with their windows and partials."""

from __future__ import annotations

import typing
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.topics.manifests import Manifest
from dpstream.topics.messages import Messages


@dataclass(frozen=True, slots=True)
class Stored:
    records: int
    bytes: int


class ReplaySource(typing.Protocol):
    """A running or ended deployment; `place` describes where the deployment's data is read from."""

    job: DeployedJob
    place: str

    def has_window(self, epoch: int) -> bool: ...

    def has_partial(self, epoch: int) -> bool: ...

    def manifests(self) -> Iterator[Manifest]:
        """Yield the first manifest of each epoch, up to the first epoch that is not finalized."""

    def stored(self, epochs: Sequence[int]) -> Stored:
        """Return the amount of data to read for the windows of `epochs`, which must increase."""

    def check(self, first: int, windows_from: int, last: int) -> None:
        """Check partials from `first` and windows from `windows_from` up to `last` for damage.

        Raises `RecordingError` with the name of a damaged file.
        """

    def window(self, epoch: int) -> Messages:
        """Return a window's messages in canonical order; raise `ReplayError` if it was deleted."""

    def payloads(self, first: int, last: int) -> Iterator[tuple[int, bytes]]: ...


def in_words(epochs: Iterable[int]) -> str:
    """Format increasing epochs as runs; if there are many runs, only the first few are shown.

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
