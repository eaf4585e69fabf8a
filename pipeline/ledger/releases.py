"""Releases by each deployment, with guarantees, read from its manifests and estimates."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from dpstream.pipeline.actions import LogRecord
from dpstream.pipeline.jobs.epochs import horizons_between
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.ledger.spending import Presence
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.randomizers.guarantee import Guarantee, format_loss
from dpstream.topics.frames import CodecError, RecordType, kind_of
from dpstream.topics.manifests import Manifest, WindowStatus, read_head
from dpstream.topics.names import Role, topic_name
from dpstream.topics.short_manifests import ManifestReader


@dataclass(frozen=True, slots=True)
class Unbacked:
    """An estimate for a window that no manifest releases; `written` is the broker's time (ms)."""

    epoch: int
    offset: int
    written: int
    manifest: WindowStatus | None


@dataclass(slots=True)
class Releases:
    """Windows and estimates that a deployment has released.

    `contributors` are the minimum and maximum per released window. `guarantees` are those that the
    estimates state, in words. `since` is the broker timestamp of the deployment's first record
    (ms). `present` has the participation in all released windows, by horizon from 1, if these are
    known.
    """

    job: str
    deployment: str
    windows_by_status: dict[WindowStatus, int] = field(default_factory=dict)
    contributors: tuple[int, int] | None = None
    estimates: int = 0
    guarantees: list[str] = field(default_factory=list)
    unbacked: list[Unbacked] = field(default_factory=list)
    since: int | None = None
    present: dict[int, Presence] = field(default_factory=dict)

    def note(self, written: int) -> None:
        self.since = written if self.since is None else min(self.since, written)


def releases_on(
    cluster: Cluster, jobs: Iterable[str], horizons: Mapping[str, int] | None = None
) -> dict[str, Releases]:
    """Return the releases of the named jobs, by deployment in hexadecimal.

    Ended deployments are included as long as their topics exist. Participation is computed only for
    the deployments in `horizons`, which has their epochs per horizon.
    """
    there = cluster.topics()
    by_deployment: dict[str, Releases] = {}
    for job in sorted(set(jobs)):
        topics = [topic_name(job, role) for role in (Role.MANIFESTS, Role.ESTIMATES)]
        manifests, estimates = (
            list(cluster.read(topic)) if topic in there else [] for topic in topics
        )
        by_deployment.update(releases_in(job, manifests, estimates, horizons))
    return by_deployment


def releases_in(
    job: str,
    manifests: Iterable[LogRecord],
    estimates: Iterable[LogRecord],
    horizons: Mapping[str, int] | None = None,
) -> dict[str, Releases]:
    by_deployment: dict[str, Releases] = {}
    decided: dict[tuple[bytes, int], WindowStatus] = {}
    for record, manifest in _manifests(manifests):
        key = manifest.deployment, manifest.epoch
        if key in decided:
            continue
        decided[key] = manifest.window_status
        name = manifest.deployment.hex()
        releases = by_deployment.setdefault(name, Releases(job, name))
        releases.note(record.timestamp)
        releases.windows_by_status[manifest.window_status] = (
            releases.windows_by_status.get(manifest.window_status, 0) + 1
        )
        if manifest.window_status is WindowStatus.RELEASED:
            low, high = releases.contributors or (manifest.contributors, manifest.contributors)
            count = manifest.contributors
            releases.contributors = min(low, count), max(high, count)
            epochs = (horizons or {}).get(name)
            if epochs is not None:
                horizon = horizons_between(manifest.first_epoch, manifest.epoch, epochs)
                releases.present.setdefault(horizon, Presence()).take(manifest)
    seen: set[tuple[bytes, int]] = set()
    for record, estimate in _estimates(estimates):
        key = estimate.deployment, estimate.epoch
        if key in seen:
            continue
        seen.add(key)
        name = estimate.deployment.hex()
        releases = by_deployment.setdefault(name, Releases(job, name))
        releases.note(record.timestamp)
        releases.estimates += 1
        guarantee = _guarantee_text(estimate)
        if guarantee not in releases.guarantees:
            releases.guarantees.append(guarantee)
        window_status = decided.get(key)
        released = estimate.window_status in (WindowStatus.RELEASED, WindowStatus.CORRUPT)
        if window_status is None or (released and window_status is not WindowStatus.RELEASED):
            releases.unbacked.append(
                Unbacked(estimate.epoch, record.offset, record.timestamp, window_status)
            )
    return by_deployment


def in_words(guarantee: Guarantee) -> str:
    loss = format_loss(guarantee.epsilon, guarantee.delta)
    return f"{loss} for a user's {guarantee.spent_on} ({guarantee.basis})"


def _guarantee_text(estimate: EstimateRecord) -> str:
    try:
        return in_words(Guarantee.from_json(estimate.guarantee))
    except (TypeError, ValueError, KeyError):
        return "in terms unknown to this version"


def _manifests(records: Iterable[LogRecord]) -> Iterator[tuple[LogRecord, Manifest]]:
    readers: dict[tuple[bytes, bytes], ManifestReader] = {}
    for record in records:
        with suppress(CodecError):
            if kind_of(record.value) is RecordType.MANIFEST:
                head = read_head(record.value)
                identity = head.fingerprint, head.deployment
                reader = readers.setdefault(identity, ManifestReader(*identity))
                manifest = reader.decode(record.offset, record.value)
                if manifest.instance == 1:
                    yield record, manifest


def _estimates(records: Iterable[LogRecord]) -> Iterator[tuple[LogRecord, EstimateRecord]]:
    for record in records:
        with suppress(CodecError):
            yield record, EstimateRecord.from_bytes(record.value)
