"""Puts what gateways send into bundles: what waits for one place goes in one record.

What one request has for one place is never divided between two bundles; only Kafka's word on all of
them is an answer to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pipeline.jobs.deployed_job import DeployedJob
from pipeline.relay.intake import Place
from topics.bundles import Bundle, bundled_bytes, encode_bundle
from topics.frames import PAYLOAD_TARGET


@dataclass(eq=False, slots=True)
class Sending:
    """A request whose records are on their way.

    Attributes:
        left: parts of it that Kafka has not acknowledged.
        failed: whether it will not acknowledge one of them, as far as anybody knows.
    """

    left: int
    failed: bool = False


@dataclass(slots=True)
class Ready:
    """A record to be written.

    Attributes:
        place: where to.
        value: the record: a bundle, or what came alone.
        sendings: whose records are in it.
        records: how many.
    """

    place: Place
    value: bytes
    sendings: list[Sending]
    records: int


@dataclass(slots=True)
class _Gathered:
    records: list[bytes] = field(default_factory=list)
    sendings: list[Sending] = field(default_factory=list)
    size: int = 0


class Bundler:
    """What has come of one job and is not written yet.

    Args:
        job: that takes bundles.

    Attributes:
        held_bytes: of the records that wait.
    """

    def __init__(self, job: DeployedJob) -> None:
        self._job = job
        self._gathered: dict[Place, _Gathered] = {}
        self.held_bytes = 0

    def add(self, sent: Mapping[Place, Sequence[bytes]]) -> tuple[Sending, list[Ready]]:
        """Take in what a request has sent; returns it, and the bundles that are full now."""
        sending, ready = Sending(len(sent)), []
        for place, records in sent.items():
            size = sum(map(bundled_bytes, records))
            gathered = self._gathered.get(place)
            if gathered is not None and gathered.size + size > PAYLOAD_TARGET:
                ready.append(self._close(place))
                gathered = None
            if gathered is None:
                gathered = self._gathered[place] = _Gathered()
            gathered.records += records
            gathered.sendings.append(sending)
            gathered.size += size
            self.held_bytes += size
            if gathered.size >= PAYLOAD_TARGET:
                ready.append(self._close(place))
        return sending, ready

    def due(self) -> list[Ready]:
        """All that waits."""
        return [self._close(place) for place in list(self._gathered)]

    def _close(self, place: Place) -> Ready:
        gathered = self._gathered.pop(place)
        self.held_bytes -= gathered.size
        records = tuple(gathered.records)
        value = records[0]
        if len(records) > 1:
            value = encode_bundle(Bundle(self._job.fingerprint, self._job.deployment, records))
        return Ready(place, value, gathered.sendings, len(records))
