"""Audit that every report is counted once, by recomputing all published values from the draws.

The reports of the producers in the first manifest of an epoch are recomputed from seeds and
compared with the first complete partial, integer by integer. The estimates from these counts are
compared with the published ones, bit for bit. Every other drawn report must be rejected, or late,
so that its producer is in no manifest of the epoch.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from dpstream.pipeline.actions import LogRecord
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.key_files import NoiseKey
from dpstream.pipeline.jobs.producer_registry import EnrolledProducer, ProducerRegistry
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.protocols.protocol import Aggregator
from dpstream.pipeline.stages.admission import decode_raw
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.pipeline.stages.estimation import Estimation
from dpstream.pipeline.stages.stage_noise import StageNoise
from dpstream.topics.frames import CodecError
from dpstream.topics.manifests import Manifest, WindowStatus, decode_manifest
from dpstream.topics.messages import Messages
from dpstream.topics.names import Role
from dpstream.topics.partials import PartialPart, decode_partial, join_parts
from dpstream.topics.records import DeadLetter
from dpstream.topics.sealed_batches import SealedBatch
from tests.support.seeded_devices import Reports, SeededDevices

_SHOWN = 20
_READ = (Role.PRODUCERS, Role.MANIFESTS, Role.PARTIALS, Role.ESTIMATES, Role.DEAD_LETTERS)

Logs = Mapping[Role, Sequence[LogRecord]]
"""Audited topics, each with one partition."""


class AuditError(AssertionError):
    """A report was lost, counted twice or altered. The message states what and where."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """Draws of a producer over all restarts.

    `epochs` are the closed epochs, ascending. All windows must include a `punctual` producer.
    """

    devices: SeededDevices
    enrollment: bytes
    epochs: tuple[int, ...]
    punctual: bool = True


@dataclass(frozen=True, slots=True)
class Account:
    """Counts of a passed audit.

    Attributes:
        windows_by_status: Number of epochs per window status.
        counted: Number of reports in partials.
        late: Number of reports whose producer was too late for the window.
        rejected: Number of reports in dead letters.
        repeated: Number of partials and estimates written again, with identical contents.
    """

    epochs: int
    windows_by_status: Mapping[WindowStatus, int]
    counted: int
    late: int
    rejected: int
    repeated: int


def read_logs(cluster: Cluster, job: DeployedJob) -> Logs:
    return {
        role: tuple(cluster.read(job.topic(role), start=job.start_offset(role))) for role in _READ
    }


def audit(
    job: DeployedJob,
    logs: Logs,
    drawn: Sequence[Drawn],
    last_epoch: int,
    noise_key: NoiseKey | None = None,
) -> Account:
    auditor = _Auditor(job, logs, drawn, last_epoch, StageNoise(job, noise_key))
    account = auditor.run()
    if auditor.problems:
        shown = "\n".join(auditor.problems[:_SHOWN])
        raise AuditError(f"{len(auditor.problems)} problems; the first ones:\n{shown}")
    return account


@dataclass(slots=True)
class _Window:
    manifest: Manifest
    inside: list[EnrolledProducer]


@dataclass
class _Auditor:
    job: DeployedJob
    logs: Logs
    drawn: Sequence[Drawn]
    last_epoch: int
    noise: StageNoise
    problems: list[str] = field(default_factory=list)
    repeated: int = 0

    def run(self) -> Account:
        windows = self._windows()
        reports = {
            each.enrollment: {
                made.epoch: made for made in each.devices.reports(self.job, each.epochs)
            }
            for each in self.drawn
        }
        partials = self._partials()
        estimates = self._estimates()
        self._check_epochs("manifest", windows)
        self._check_epochs("estimate", estimates)
        estimation = Estimation(self.job)
        for epoch in sorted(windows):
            window = windows[epoch]
            inside = self._inside(window, reports)
            self._check_heads(window.manifest, inside)
            payload = None
            if window.manifest.window_status is WindowStatus.RELEASED:
                payload = self._payload(epoch, inside.values())
                self._check_partial(epoch, inside, payload, partials.get(epoch, []))
            elif epoch in partials:
                self._problem(epoch, f"{window.manifest.window_status}, but has a partial")
            estimation.take_in(window.manifest, payload)
            if epoch in estimates:
                self._check_estimate(window.manifest, estimation, estimates[epoch])
        return self._account(windows, reports)

    @cached_property
    def _registry(self) -> ProducerRegistry:
        registry = ProducerRegistry(self.job)
        for record in self.logs[Role.PRODUCERS]:
            registry.apply(record)
        return registry

    @cached_property
    def _names(self) -> Mapping[bytes, str]:
        return {each.enrollment: each.devices.name for each in self.drawn}

    def _problem(self, epoch: int, what: str) -> None:
        self.problems.append(f"epoch {epoch}: {what}")

    def _windows(self) -> dict[int, _Window]:
        first: dict[int, Manifest] = {}
        begins = 1
        for record in self.logs[Role.MANIFESTS]:
            manifest = decode_manifest(record.value)
            if not first:
                begins = manifest.first_epoch
            if manifest.epoch >= begins:
                first.setdefault(manifest.epoch, manifest)
        registry = list(self._registry)
        return {
            epoch: _Window(
                manifest,
                [who for who, inside in zip(registry, manifest.producers, strict=False) if inside],
            )
            for epoch, manifest in first.items()
        }

    def _check_epochs(self, what: str, found: Collection[int]) -> None:
        first = self._registry.first_epoch
        wanted = set(range(first, self.last_epoch + 1))
        for epoch in sorted(wanted - set(found))[:_SHOWN]:
            self._problem(epoch, f"no {what}")
        for epoch in sorted(set(found) - wanted)[:_SHOWN]:
            self._problem(epoch, f"{what} of an epoch that no producer has closed")

    def _inside(
        self, window: _Window, reports: Mapping[bytes, Mapping[int, Reports]]
    ) -> dict[str, Reports]:
        """Return the reports of the producers in a window, by producer name."""
        epoch = window.manifest.epoch
        inside = {}
        for producer in window.inside:
            made = reports.get(producer.enrollment, {}).get(epoch)
            if made is None:
                self._problem(epoch, f"the window includes {producer.name}, which drew no reports")
            else:
                inside[producer.name] = made
        return inside

    def _check_heads(self, manifest: Manifest, inside: Mapping[str, Reports]) -> None:
        contributors = sum(made.contributors for made in inside.values())
        if manifest.contributors != contributors:
            self._problem(
                manifest.epoch, f"got {manifest.contributors} contributors; expected {contributors}"
            )
        enrolled = {each.devices.name: each.devices.count for each in self.drawn}
        populations = tuple(enrolled[name] for name in inside)
        if manifest.populations != populations:
            self._problem(
                manifest.epoch, f"got populations {manifest.populations}; expected {populations}"
            )
        everybody = sum({each.enrollment: each.devices.count for each in self.drawn}.values())
        if not sum(populations) <= manifest.population <= everybody:
            self._problem(
                manifest.epoch, f"population {manifest.population}; expected at most {everybody}"
            )
        if contributors == 0:
            window_status = WindowStatus.EMPTY
        elif contributors < self.job.shuffle.minimum:
            window_status = WindowStatus.SUPPRESSED
        else:
            window_status = WindowStatus.RELEASED
        if manifest.window_status is not window_status:
            self._problem(
                manifest.epoch,
                f"got status {manifest.window_status} with {contributors} contributors; expected "
                f"{window_status}",
            )

    def _payload(self, epoch: int, inside: Iterable[Reports]) -> bytes:
        """Return the counts of these reports and the shuffler's dummies, or their noisy sum."""
        aggregator: Aggregator = self.job.aggregator()
        local = self.job.epochs.local(epoch)
        if self.job.stage_sum is not None:
            words = np.concatenate([made.values for made in inside])
            aggregator.add(local, self.noise.sum(epoch, Messages(words)).values, None)
            return aggregator.to_bytes()
        for made in inside:
            aggregator.add(local, made.values, made.counts)
        dummies = self.noise.dummies(epoch)
        if dummies is not None:
            aggregator.add(local, dummies.values, dummies.counts)
        return aggregator.to_bytes()

    def _partials(self) -> dict[int, list[bytes]]:
        complete: defaultdict[int, list[bytes]] = defaultdict(list)
        attempts: defaultdict[tuple[int, bytes], dict[int, PartialPart]] = defaultdict(dict)
        for record in self.logs[Role.PARTIALS]:
            part = decode_partial(record.value)
            parts = attempts[part.epoch, part.attempt]
            if part.index not in parts:
                parts[part.index] = part
                if len(parts) == part.total:
                    complete[part.epoch].append(join_parts(parts.values()))
            elif parts[part.index].payload != part.payload:
                self._problem(part.epoch, f"part {part.index} of a partial has two contents")
        return dict(complete)

    def _check_partial(
        self, epoch: int, inside: Mapping[str, Reports], payload: bytes, found: Sequence[bytes]
    ) -> None:
        if not found:
            self._problem(epoch, "the released window has no partial")
        self.repeated += max(0, len(found) - 1)
        for number, each in enumerate(found):
            if each != payload:
                which = "the partial" if number == 0 else f"partial {number + 1}"
                self._problem(epoch, f"{which} is wrong: {self._explain(epoch, inside, each)}")

    def _explain(self, epoch: int, inside: Mapping[str, Reports], found: bytes) -> str:
        for name in inside:
            others = [made for who, made in inside.items() if who != name]
            if found == self._payload(epoch, others):
                return f"all reports of {name} are lost"
            if found == self._payload(epoch, [*inside.values(), inside[name]]):
                return f"all reports of {name} are counted twice"
        return f"it differs from the reports of {', '.join(inside)}"

    def _estimates(self) -> dict[int, list[EstimateRecord]]:
        found: defaultdict[int, list[EstimateRecord]] = defaultdict(list)
        for record in self.logs[Role.ESTIMATES]:
            estimate = EstimateRecord.from_bytes(record.value)
            found[estimate.epoch].append(estimate)
        return dict(found)

    def _check_estimate(
        self, manifest: Manifest, estimation: Estimation, found: Sequence[EstimateRecord]
    ) -> None:
        right = EstimateRecord(
            deployment=self.job.deployment,
            epoch=manifest.epoch,
            window_status=manifest.window_status,
            closed_at=manifest.timestamp,
            contributors=manifest.contributors,
            population=manifest.population,
            estimate=estimation.estimate(),
            guarantee=self.job.guarantee_at(manifest.epoch, manifest.first_epoch).to_json(),
            assumes_changes=self.job.assumes_changes,
        )
        self.repeated += len(found) - 1
        for each in found:
            if each.to_bytes() != right.to_bytes():
                self._problem(
                    manifest.epoch, f"published {each.to_json()}; expected {right.to_json()}"
                )

    def _rejected(self) -> set[tuple[bytes, int]]:
        rejected = set()
        for record in self.logs[Role.DEAD_LETTERS]:
            try:
                letter = DeadLetter.from_record(record.value, record.headers)
                raw = decode_raw(letter.value)
            except CodecError as error:
                self.problems.append(
                    f"dead letter {record.offset} is not a readable report: {error}"
                )
                continue
            if isinstance(raw, SealedBatch):
                self._problem(raw.epoch, "rejected a sealed report, which the job does not have")
                continue
            rejected.add((raw.enrollment, raw.epoch))
            if raw.enrollment not in self._names:
                self._problem(
                    raw.epoch,
                    f"rejected a report of an unknown producer ({letter.reason}): {letter.detail}",
                )
        return rejected

    def _account(
        self,
        windows: Mapping[int, _Window],
        reports: Mapping[bytes, Mapping[int, Reports]],
    ) -> Account:
        rejected, where = self._rejected(), Counter[str]()
        for each in self.drawn:
            for epoch, made in reports[each.enrollment].items():
                window = windows.get(epoch)
                if window is not None and any(
                    producer.enrollment == each.enrollment for producer in window.inside
                ):
                    window_status = "counted"
                else:
                    window_status = "rejected" if (each.enrollment, epoch) in rejected else "late"
                where[window_status] += made.messages
                if each.punctual and window_status != "counted":
                    self._problem(
                        epoch, f"reports of punctual {each.devices.name} were {window_status}"
                    )
                if each.punctual and (each.enrollment, epoch) in rejected:
                    self._problem(epoch, f"rejected a report of punctual {each.devices.name}")
        return Account(
            epochs=len(windows),
            windows_by_status=Counter(window.manifest.window_status for window in windows.values()),
            counted=where["counted"],
            late=where["late"],
            rejected=where["rejected"],
            repeated=self.repeated,
        )
