"""Combine the partials from the two aggregators into one partial per window."""

from __future__ import annotations

import hashlib
from functools import partial

from dpstream.pipeline.actions import Steps, catch_up
from dpstream.pipeline.jobs.deployed_job import IDENTIFIER_BYTES, DeployedJob
from dpstream.pipeline.stages.added_shares import window_payload
from dpstream.pipeline.stages.decision_log import Decision, DecisionLog, manifest_at
from dpstream.pipeline.stages.environment import FinishedWindow, WindowListener, ignore_window
from dpstream.pipeline.stages.partial_log import PartialLog, append_partial
from dpstream.pipeline.stages.single_writer import SingleWriter
from dpstream.topics.manifests import Manifest, WindowStatus
from dpstream.topics.names import SUMS, Role
from dpstream.topics.partials import corruption_reason


class SumStage(SingleWriter):
    role = SUMS[0]

    def __init__(self, job: DeployedJob, *, listener: WindowListener = ignore_window) -> None:
        super().__init__(job, listener)

    def _begin(self) -> None:
        job = self._job
        self._sums: tuple[dict[int, bytes], dict[int, bytes]] = ({}, {})
        self._decisions: dict[int, int] = {}
        self._written = PartialLog(job)
        self._written_log = job.cursor(Role.PARTIALS, self._written.apply)
        decided = DecisionLog(job, self._note_decision)
        self._manifest_log = job.cursor(Role.MANIFESTS, decided.apply)
        logs = [
            PartialLog(job, partial(self._note_sum, payloads), role)
            for role, payloads in zip(SUMS, self._sums, strict=True)
        ]
        self._sum_logs = [job.cursor(role, log.apply) for role, log in zip(SUMS, logs, strict=True)]

    def unfinished(self, partition: int) -> str:
        complete = self._written.complete
        return f"epoch {complete.first_missing(complete.lowest or 1)} and later epochs"

    def heartbeat(self) -> dict[str, object]:
        waiting = set(self._sums[0]) ^ set(self._sums[1])
        return {"open_windows": len(waiting), "counts": dict(self.counts)}

    def _note_decision(self, decision: Decision) -> None:
        epoch = decision.manifest.epoch
        if (
            decision.manifest.window_status is WindowStatus.RELEASED
            and epoch not in self._written.complete
        ):
            self._decisions[epoch] = decision.offset

    def _note_sum(self, payloads: dict[int, bytes], epoch: int, payload: bytes) -> None:
        if epoch not in self._written.complete:
            payloads[epoch] = payload

    def _write_due(self) -> Steps[None]:
        yield from catch_up((self._written_log, self._manifest_log, *self._sum_logs))
        first, second = self._sums
        due = sorted(first.keys() & second.keys() & self._decisions.keys())
        finished = []
        for epoch in due:
            manifest = yield from self._write(epoch)
            status, at = manifest.window_status, manifest.timestamp
            finished.append(FinishedWindow(epoch, status, manifest.contributors, decided_at=at))
        if due:
            yield from self._written_log.flush()
            for epoch, window in zip(due, finished, strict=True):
                del self._decisions[epoch]
                self._listener(window)

    @property
    def _position(self) -> int:
        return self._sum_logs[0].position

    @property
    def _waiting(self) -> bool:
        return bool(self._sums[0])

    def _write(self, epoch: int) -> Steps[Manifest]:
        offset = self._decisions[epoch]
        manifest = yield from manifest_at(self._job, offset)
        sums = self._sums[0].pop(epoch), self._sums[1].pop(epoch)
        payload = window_payload(self._job, manifest, sums)
        # The attempt id depends on the payload, so that all workers write the same records.
        attempt = hashlib.sha256(payload).digest()[:IDENTIFIER_BYTES]
        yield from append_partial(self._job, Role.PARTIALS, epoch, offset, attempt, payload)
        self.counts["partials"] += 1
        if corruption_reason(payload) is not None:
            self.counts["windows corrupt"] += 1
        return manifest
