"""Phase of a deployed job, set by an operator: run, pause, drain.

A phase is a separate record in ``dpstream.jobs``, so software that does not know phases can still
read the job. A job without a phase is running.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum

from dpstream.topics.frames import CodecError

_KEY = b"phase/"


class Phase(StrEnum):
    RUNNING = "running"
    PAUSED = "paused"
    """Workers have ended; producers still write. No report is lost within the retention period."""
    DRAINING = "draining"
    """Workers finalize and publish the open windows, and then end."""
    DRAINED = "drained"
    """All windows open when the drain started are published, and the workers have ended."""

    @property
    def works(self) -> bool:
        return self in (Phase.RUNNING, Phase.DRAINING)


@dataclass(frozen=True, slots=True)
class JobPhase:
    """Phase of one deployment; it does not apply to the job's later deployments.

    `deployment` is 16 bytes; `since` is the start of the phase, in milliseconds since 1970.
    """

    job: str
    deployment: bytes
    phase: Phase
    since: int

    @property
    def key(self) -> bytes:
        return phase_key(self.job)

    def to_bytes(self) -> bytes:
        body = {
            "version": 1,
            "job": self.job,
            "deployment": self.deployment.hex(),
            "phase": self.phase.value,
            "since": self.since,
        }
        return json.dumps(body, sort_keys=True, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> JobPhase:
        """Decode a phase from its record's value.

        >>> paused = JobPhase("students", bytes(16), Phase.PAUSED, 1_700_000_000_000)
        >>> JobPhase.from_bytes(paused.to_bytes()) == paused
        True
        """
        try:
            body = json.loads(data)
            return cls(
                str(body["job"]),
                bytes.fromhex(body["deployment"]),
                Phase(body["phase"]),
                int(body["since"]),
            )
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise CodecError(f"not a job phase: {error!r}") from None


def phase_key(job: str) -> bytes:
    return _KEY + job.encode()


def is_phase(key: bytes | None) -> bool:
    return key is not None and key.startswith(_KEY)
