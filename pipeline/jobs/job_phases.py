"""What an operator has decided that a deployed job does: run, pause, drain.

A phase is a record of its own in ``dpstream.jobs`` beside the job's, so that whoever knows nothing
of phases still reads the job. A job without one is running. Supervisors of all machines obey it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum

from dpstream.topics.frames import CodecError

_KEY = b"phase/"


class Phase(StrEnum):
    """What a deployed job does."""

    RUNNING = "running"
    PAUSED = "paused"
    """Its workers are ended; producers go on writing, and nothing is lost within retention."""
    DRAINING = "draining"
    """Its workers decide what is open, publish it, and then end."""
    DRAINED = "drained"
    """What was open when the drain began is published, and the workers are ended."""

    @property
    def works(self) -> bool:
        """Whether workers are needed."""
        return self in (Phase.RUNNING, Phase.DRAINING)


@dataclass(frozen=True, slots=True)
class JobPhase:
    """The phase of one deployment of a job.

    Attributes:
        job: the job's name.
        deployment: 16 bytes; a phase says nothing of a later deployment.
        phase: since when it holds is `since`.
        since: milliseconds since 1970.
    """

    job: str
    deployment: bytes
    phase: Phase
    since: int

    @property
    def key(self) -> bytes:
        """The record's key, one for every job name."""
        return phase_key(self.job)

    def to_bytes(self) -> bytes:
        """The record's value."""
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
        """Read a record's value.

        >>> paused = JobPhase("students", bytes(16), Phase.PAUSED, 1_700_000_000_000)
        >>> JobPhase.from_bytes(paused.to_bytes()) == paused
        True

        Raises:
            CodecError: it is not the phase of a job.
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
            raise CodecError(f"not the phase of a job: {error!r}") from None


def phase_key(job: str) -> bytes:
    """The key under which the phase of a job is written."""
    return _KEY + job.encode()


def is_phase(key: bytes | None) -> bool:
    """Whether a record of ``dpstream.jobs`` is a phase."""
    return key is not None and key.startswith(_KEY)
