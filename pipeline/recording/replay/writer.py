"""Write the topics of a replay, sans I/O: manifests, windows, and copied partials.

A manifest repeats the original under the replay's own deployment: no window is closed again. A
restarted replay checks its earlier output and writes the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from dpstream.pipeline.actions import Append, Flush, Steps
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.replays import ReplayError
from dpstream.pipeline.recording.replay.replay_plan import ReplayPlan
from dpstream.pipeline.recording.replay.sources import ReplaySource
from dpstream.pipeline.results.released_windows import WindowIndex
from dpstream.pipeline.stages.attempts import chunks_of_attempt
from dpstream.pipeline.stages.decision_log import Decision, DecisionLog
from dpstream.pipeline.stages.ordered_chunks import Chunks
from dpstream.pipeline.stages.partial_log import PartialLog
from dpstream.topics.manifests import Manifest, WindowStatus, encode_manifest
from dpstream.topics.messages import split_messages
from dpstream.topics.names import Role
from dpstream.topics.partials import encode_partial, split_partial


class ReplayWriter:
    def __init__(
        self,
        job: DeployedJob,
        source: ReplaySource,
        plan: ReplayPlan,
        *,
        identifiers: Callable[[], bytes],
    ) -> None:
        self._job = job
        self._source = source
        self._plan = plan
        self._identifiers = identifiers
        self._offsets: dict[int, int] = {}
        self._decisions = DecisionLog(job, self._remember)
        self._manifest_log = job.cursor(Role.MANIFESTS, self._decisions.apply)
        self._windows = WindowIndex(job)
        self._partials = PartialLog(job)

    def begin(self) -> Steps[None]:
        """Read the output of an earlier run; raise `ReplayError` if its first epoch differs."""
        yield from self._manifest_log.catch_up()
        began = self._decisions.first_epoch
        if began is not None and began != self._plan.first:
            raise ReplayError(
                f"job {self._job.name} is a replay that starts with epoch {began:,}; this one "
                f"would start with {self._plan.first:,}: choose another name with --new-name"
            )
        yield from self._job.cursor(Role.PARTIALS, self._partials.apply).catch_up()
        yield from self._windows.find_end()
        yield from self._windows.scan()

    def has(self, manifest: Manifest) -> bool:
        epoch = manifest.epoch
        if epoch not in self._decisions.decided:
            return False
        return (
            manifest.window_status is not WindowStatus.RELEASED
            or epoch in self._partials.complete
            or epoch in self._windows.places
        )

    def write(self, epochs: Sequence[tuple[Manifest, bytes | None]]) -> Steps[None]:
        todo = [(manifest, payload) for manifest, payload in epochs if not self.has(manifest)]
        if not todo:
            return
        for manifest, _ in todo:
            if manifest.epoch not in self._decisions.decided:
                value = encode_manifest(self._own(manifest))
                yield Append(Role.MANIFESTS, 0, value)
        yield from self._manifest_log.flush()
        for manifest, payload in todo:
            if manifest.window_status is not WindowStatus.RELEASED:
                continue
            if payload is None:
                yield from self._write_window(manifest.epoch)
            else:
                yield from self._copy_partial(manifest.epoch, payload)
        yield Flush()

    def _remember(self, decision: Decision) -> None:
        self._offsets[decision.manifest.epoch] = decision.offset

    def _own(self, manifest: Manifest) -> Manifest:
        return replace(
            manifest,
            deployment=self._job.deployment,
            first_epoch=self._plan.first,
            # Offsets of raw reports; a replay has no raw reports.
            first_offset=0,
            cut_offset=0,
        )

    def _write_window(self, epoch: int) -> Steps[None]:
        chunks = Chunks.of(split_messages(self._source.window(epoch)))
        offset, attempt = self._offsets[epoch], self._identifiers()
        yield from chunks_of_attempt(self._job, Role.SHUFFLED, epoch, offset, attempt, chunks)

    def _copy_partial(self, epoch: int, payload: bytes) -> Steps[None]:
        parts = split_partial(
            fingerprint=self._job.fingerprint,
            deployment=self._job.deployment,
            epoch=epoch,
            manifest_offset=self._offsets[epoch],
            attempt=self._identifiers(),
            payload=payload,
        )
        for part in parts:
            yield Append(Role.PARTIALS, 0, encode_partial(part))
