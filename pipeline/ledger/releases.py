"""What was released of every deployment, from manifests, and what each release promised."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from dpstream.pipeline.actions import LogRecord
from dpstream.pipeline.jobs.epochs import horizons_between
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.ledger.spending import Presence
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.randomizers.guarantee import Guarantee
from dpstream.topics.frames import CodecError, RecordType, kind_of
from dpstream.topics.manifests import Fate, Manifest, read_head
from dpstream.topics.names import Role, topic_name
from dpstream.topics.short_manifests import ManifestReader


@dataclass(frozen=True, slots=True)
class Unbacked:
    """An estimate that no manifest stands behind.

    Attributes:
        epoch: that it is of.
        offset: of its record in the topic of estimates.
        written: when the broker took it, milliseconds since 1970.
        manifest: what the epoch's manifest says of the window; None where there is none.
    """

    epoch: int
    offset: int
    written: int
    manifest: Fate | None


@dataclass(slots=True)
class Releases:
    """What became of the windows of a deployment.

    Attributes:
        job: its name.
        deployment: 32 hexadecimal digits.
        fates: how many windows were decided so.
        contributors: the fewest and the most of a released window; None before there is one.
        estimates: how many epochs were published.
        guarantees: what the estimates promised, in words and each once.
        unbacked: estimates of windows that no manifest releases.
        since: when the broker took the first record of it, milliseconds since 1970.
        present: by horizon, from 1 on, who was in all of its released windows; of deployments
            whose horizons were given.
    """

    job: str
    deployment: str
    fates: dict[Fate, int] = field(default_factory=dict)
    contributors: tuple[int, int] | None = None
    estimates: int = 0
    guarantees: list[str] = field(default_factory=list)
    unbacked: list[Unbacked] = field(default_factory=list)
    since: int | None = None
    present: dict[int, Presence] = field(default_factory=dict)

    def note(self, written: int) -> None:
        """Take in when a record of it was written."""
        self.since = written if self.since is None else min(self.since, written)


def releases_on(
    cluster: Cluster, jobs: Iterable[str], horizons: Mapping[str, int] | None = None
) -> dict[str, Releases]:
    """What was released by jobs of these names, by deployment in hexadecimal.

    Also of deployments that have ended, whose topics are still there.

    Args:
        cluster: where.
        jobs: their names.
        horizons: of deployments in hexadecimal, how many epochs one has: of these it is told who
            was there throughout.
    """
    there = cluster.topics()
    found: dict[str, Releases] = {}
    for job in sorted(set(jobs)):
        topics = [topic_name(job, role) for role in (Role.MANIFESTS, Role.ESTIMATES)]
        manifests, estimates = (
            list(cluster.read(topic)) if topic in there else [] for topic in topics
        )
        found.update(releases_in(job, manifests, estimates, horizons))
    return found


def releases_in(
    job: str,
    manifests: Iterable[LogRecord],
    estimates: Iterable[LogRecord],
    horizons: Mapping[str, int] | None = None,
) -> dict[str, Releases]:
    """The same, from the records of the two topics of a job."""
    found: dict[str, Releases] = {}
    decided: dict[tuple[bytes, int], Fate] = {}
    for record, manifest in _manifests(manifests):
        key = manifest.deployment, manifest.epoch
        if key in decided:
            continue
        decided[key] = manifest.fate
        name = manifest.deployment.hex()
        releases = found.setdefault(name, Releases(job, name))
        releases.note(record.timestamp)
        releases.fates[manifest.fate] = releases.fates.get(manifest.fate, 0) + 1
        if manifest.fate is Fate.RELEASED:
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
        releases = found.setdefault(name, Releases(job, name))
        releases.note(record.timestamp)
        releases.estimates += 1
        said = _said(estimate)
        if said not in releases.guarantees:
            releases.guarantees.append(said)
        fate = decided.get(key)
        released = estimate.fate in (Fate.RELEASED, Fate.SPOILED)
        if fate is None or (released and fate is not Fate.RELEASED):
            releases.unbacked.append(
                Unbacked(estimate.epoch, record.offset, record.timestamp, fate)
            )
    return found


def in_words(guarantee: Guarantee) -> str:
    """A guarantee in a line."""
    delta = f", delta {guarantee.delta:.3g}" if guarantee.delta else ""
    return (
        f"epsilon {guarantee.epsilon:.6g}{delta} for a user's {guarantee.spent_on} "
        f"({guarantee.basis})"
    )


def _said(estimate: EstimateRecord) -> str:
    try:
        return in_words(Guarantee(**estimate.guarantee))
    except (TypeError, ValueError, KeyError):
        return "in words that this version does not know"


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
