"""What a job is doing: gathered from its topics, judged by fixed rules.

`facts` are what can be said, `gathering` reads them (`JobWatch`, as often as once a second),
`heartbeats` reads the last words of workers, and `judging` says what needs a person. Nothing is
asked of the workers themselves: a worker that hangs cannot hide. Where devices rely on the shuffle
stage to hide how many messages they send, nothing here counts those: devices and seconds are told.
"""

from dpstream.pipeline.operations.status.facts import (
    SILENCE,
    CollectorStatus,
    JobStatus,
    OpenWindow,
    StageStatus,
    TopicStatus,
    WorkerStatus,
)
from dpstream.pipeline.operations.status.gathering import JobWatch, gather_status
from dpstream.pipeline.operations.status.judging import (
    PATIENCE,
    allowed_wait,
    find_notes,
    find_problems,
    workers_needed,
)

__all__ = [
    "PATIENCE",
    "SILENCE",
    "CollectorStatus",
    "JobStatus",
    "JobWatch",
    "OpenWindow",
    "StageStatus",
    "TopicStatus",
    "WorkerStatus",
    "allowed_wait",
    "find_notes",
    "find_problems",
    "gather_status",
    "workers_needed",
]
