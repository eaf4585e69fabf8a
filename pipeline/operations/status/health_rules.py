"""Derive issues that require action, with their remedies, from a job's status."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dpstream.aggregators.estimate import CHANGES_USED
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.epoch_times import CLOCK_TOLERANCE
from dpstream.pipeline.jobs.job_phases import Phase
from dpstream.pipeline.kafka.broker_clock import off_by
from dpstream.pipeline.kafka.stored_state import restart
from dpstream.pipeline.operations.status.facts import (
    JobStatus,
    StageStatus,
    TopicStatus,
    WorkerStatus,
)
from dpstream.pipeline.stages.decision_log import MAX_MISSED_EPOCHS
from dpstream.pipeline.stages.topic_uses import stages_of
from dpstream.topics.manifests import WindowStatus
from dpstream.topics.records import Reason
from dpstream.topics.topic_checks import clock_problem

# A record is stuck if it has waited this many seconds beyond the grace period of its window while
# the live workers of its stage read nothing.
STUCK_SECONDS = 60.0
_NAMES_SHOWN = 5


def find_issues(job: DeployedJob, status: JobStatus) -> Iterator[str]:
    """Yield sentences about issues that require action.

    Records rejected from an earlier deployment, and requeued dead letters, are not issues.
    """
    for topic in status.topics:
        yield from _topic_issues(job, topic)
    yield from status.contradictions
    for stage in status.stages:
        if stage.deleted and not status.finished:
            yield (
                f"Stage {stage.stage} lost records: unprocessed data in partition "
                f"{', '.join(map(str, stage.deleted))} was deleted, probably by retention "
                f"({job.topics.retention / 86400:.3g} days). The affected epochs cannot be "
                "released. To start over: 'dpstream deploy JOBFILE --replace'"
            )
    if status.other_clocks:
        yield clock_problem(job.name, status.other_clocks)
    yield from _clock_issues(status)
    yield from _ahead_issues(job, status)
    if workers_needed(job, status):
        # Workers cannot recover records that a topic has lost.
        lost = bool(status.contradictions) or any(
            topic.partitions < topic.deployed for topic in status.topics
        )
        for stage in status.stages:
            yield from _stage_issues(job, stage, lost=lost)
        if _collects(job) and not any(each.up for each in status.collectors):
            yield "No collector is running, so devices cannot report. Start one: 'dpstream collect'"
        if status.suppressed >= MAX_MISSED_EPOCHS and job.replay_of is None:
            see = (
                "Check whether the app sends reports, and which requests collectors reject"
                if _collects(job)
                else f"Check reporting: 'dpstream producers {job.name}'"
            )
            yield (
                f"The last {status.suppressed:,} epochs were suppressed: each had {_few(job)}. "
                f"{see}"
            )
    published = status.published
    if published is not None and published.reason is not None:
        yield (
            f"Epoch {job.epochs.dated(published.epoch)} is corrupt: {published.reason}. If shares "
            "cannot be decrypted, check that both aggregators have the keys for its key period, "
            f"and find the producer of these shares: 'dpstream producers {job.name}'"
        )
    limit = job.change_limit
    if (
        published is not None
        and limit is not None
        and CHANGES_USED in published.flags
        and not status.finished
    ):
        yield f"{limit.warning}. For valid intervals: {limit.remedy}"
    if status.late_reports:
        what = "devices" if job.counts_devices and not _collects(job) else "reports"
        see = (
            "Collectors stored them too slowly. Check their connection to Kafka, or increase "
            "shuffle.grace"
            if _collects(job)
            else f"To find lagging producers: 'dpstream producers {job.name}'"
        )
        yield (
            f"{status.late_reports:,} {what} arrived after their epoch was finalized and are "
            f"not counted. {see}"
        )
    rejected = sum(
        count for reason, count in status.dead_letters.items() if reason != Reason.DEPLOYMENT.value
    )
    if rejected:
        letters = "1 dead letter" if rejected == 1 else f"{rejected:,} dead letters"
        yield (
            f"{letters}. To list them: 'dpstream dead-letters {job.name}'. After a fix, --redrive "
            "requeues valid records; --discard deletes the rest"
        )


def _collects(job: DeployedJob) -> bool:
    return job.devices is not None and job.replay_of is None


def workers_needed(job: DeployedJob, status: JobStatus) -> bool:
    """Return whether the job is running or draining and its last epoch is not published.

    A replay can end at any epoch, so it needs workers as long as there are unfinished records.
    """
    waits = status.published is None or any(stage.waiting is not None for stage in status.stages)
    return status.phase.works and not status.finished and (waits or job.replay_of is None)


def find_notes(job: DeployedJob, status: JobStatus) -> Iterator[str]:
    if status.phase is Phase.PAUSED:
        yield f"Paused. To continue: 'dpstream resume {job.name}'"
    if status.phase is Phase.DRAINING:
        yield "Draining: open epochs are finalized and published, then the workers stop"
    if status.phase is Phase.DRAINED:
        resume_hint = "" if status.finished else f"To continue: 'dpstream resume {job.name}'. "
        yield (
            f"Drained: all epochs that were open are published{_records_since_drain(status)}. "
            f"{resume_hint}To end the job: 'dpstream undeploy {job.name}'"
        )
    elif status.finished:
        drain = "" if job.replay_of is not None else f"dpstream drain {job.name}' or '"
        yield (
            "The last epoch is published; no workers are needed. To end the job: "
            f"'{drain}dpstream undeploy {job.name}'"
        )
    published = status.published
    without_estimate = published is not None and published.window_status in (
        WindowStatus.EMPTY,
        WindowStatus.SUPPRESSED,
    )
    if published is not None and without_estimate and not status.finished:
        who = "no devices" if published.window_status is WindowStatus.EMPTY else _few(job)
        yield f"No estimate for epoch {job.epochs.dated(published.epoch)}: {who} reported"
    for topic in status.topics:
        if topic.partitions > topic.deployed and not topic.unexpected_records:
            yield (
                f"Topic {topic.name} has {topic.partitions} partitions; the job uses the first "
                f"{topic.deployed}, the others stay empty"
            )
    registered = status.producers
    waits = job.replay_of is None and not status.finished
    if waits and registered is not None and registered < job.shuffle.producers:
        until = (
            "a window closes when more than half of all producers have reported"
            if job.epochs.calendar is None
            else "a window closes when its grace period ends"
        )
        yield (
            f"{registered} of {job.shuffle.producers} producers have registered. Until all "
            f"have, {until}"
        )
    if status.unusable_reports:
        unusable = status.unusable_reports
        yield (
            f"Ignored {'1 invalid report' if unusable == 1 else f'{unusable:,} invalid reports'} "
            "(decryption failed or unknown content). Anyone can send such reports; if there are "
            "many, check that the app uses this version of the client"
        )
    if contradicting := status.contradicting_reports:
        yield (
            f"{'1 report differs' if contradicting == 1 else f'{contradicting:,} reports differ'} "
            "from an earlier one by the same device for that epoch; the first counts. A device "
            "with lost or copied state randomizes again, which can disclose more than guaranteed"
        )
    if status.missing_producers and not status.finished:
        yield (
            f"No longer waiting for producers that missed the last {MAX_MISSED_EPOCHS} epochs: "
            f"{_listed(status.missing_producers)}. To retire one: 'dpstream producers {job.name} "
            "--retire NAME'"
        )


def _records_since_drain(status: JobStatus) -> str:
    reports = next((stage for stage in status.stages if stage.stage == "shuffle"), None)
    if status.finished or reports is None or reports.waiting is None:
        return ""
    if reports.lag is None:
        return "; new records will be processed on resume"
    come = "1 record has" if reports.lag == 1 else f"{reports.lag:,} records have"
    return f"; {come} arrived since and wait{'s' * (reports.lag == 1)} for resume"


def _clock_issues(status: JobStatus) -> Iterator[str]:
    """Yield issues caused by inaccurate clocks; no guarantee relies on clocks."""
    if status.clock_ahead is not None and abs(status.clock_ahead) > CLOCK_TOLERANCE:
        yield (
            f"This machine's clock is {off_by(status.clock_ahead)} the broker's: correct it. Ages "
            "shown here use the broker's clock"
        )
    for stage in status.stages:
        for worker in stage.workers:
            ahead = worker.clock_ahead
            if worker.up and ahead is not None and abs(ahead) > CLOCK_TOLERANCE:
                yield (
                    f"The clock of worker {worker.worker} of stage {stage.stage} is "
                    f"{off_by(ahead)} the broker's: correct it"
                )


def _ahead_issues(job: DeployedJob, status: JobStatus) -> Iterator[str]:
    ahead: dict[str, int] = {}
    for stage in status.stages:
        for worker in stage.workers:
            if worker.up:
                for producer, epochs in worker.ahead.items():
                    ahead[producer] = max(epochs, ahead.get(producer, 0))
    what = (
        "its records wait until more than half of the producers reach these epochs"
        if job.epochs.calendar is None
        else "its records for epochs that have not started are rejected"
    )
    for producer, epochs in ahead.items():
        yield (
            f"Producer {producer} is {epochs:,} epochs ahead of time: {what}. Check its clock "
            f"and its epochs, or retire it: 'dpstream producers {job.name} --retire {producer}'"
        )


def _topic_issues(job: DeployedJob, topic: TopicStatus) -> Iterator[str]:
    if not topic.partitions:
        yield f"Topic {topic.name} no longer exists; its data is lost. {restart(job.name)}"
    elif topic.partitions < topic.deployed:
        yield (
            f"Topic {topic.name} has {topic.partitions} partitions, but was deployed with "
            f"{topic.deployed}: it was deleted and recreated; its data is lost. {restart(job.name)}"
        )
    elif topic.unexpected_records:
        yield (
            f"Topic {topic.name} was deployed with {topic.deployed} partitions. Another program "
            "writes to partitions that were added later, which are not read. Epoch e belongs in "
            f"partition e mod {topic.deployed}"
        )


def _stage_issues(job: DeployedJob, stage: StageStatus, *, lost: bool) -> Iterator[str]:
    up = [worker for worker in stage.workers if worker.up]
    if not up:
        yield (
            f"No worker of stage {stage.stage} is up. Start one: 'dpstream run {stage.stage} "
            f"{job.name}'"
        )
    elif _stuck(job, stage, up) and not lost:
        records = "" if stage.lag is None else f"{stage.lag:,} records waiting, "
        remedy = (
            "Check the workers' logs, or restart them"
            if any(worker.partitions or worker.idle for worker in up)
            else "No worker has partitions. Each exits within a minute; restart it then: "
            f"'dpstream run {stage.stage}'"
        )
        yield (
            f"Stage {stage.stage} is stuck: {records}the oldest for {stage.waiting:,.0f} s. "
            f"{remedy}"
        )


def _stuck(job: DeployedJob, stage: StageStatus, up: Sequence[WorkerStatus]) -> bool:
    allowed = STUCK_SECONDS + allowed_wait(job, stage)
    idle = not any(worker.busy for worker in up)
    # Records that are ahead of time are not stuck, unless a window has exceeded its grace period.
    windows = [window for worker in up for window in worker.windows]
    early = any(worker.ahead for worker in up) and all(each.grace_left != 0 for each in windows)
    return stage.waiting is not None and stage.waiting > allowed and idle and not early


def allowed_wait(job: DeployedJob, stage: StageStatus) -> float:
    """Return the maximum seconds for which a record can wait until its window closes."""
    if stages_of(job).get(stage.stage) not in job.route.reports:
        return 0.0
    return job.shuffle.grace + _longest_window(job)


def _longest_window(job: DeployedJob) -> float:
    """Return the maximum seconds, before the grace period, in which devices report to a window."""
    length = job.epochs.length
    if job.devices is None or length is None:
        return 0.0
    return length.months * 31 * 86_400.0 + length.exact.total_seconds()


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _NAMES_SHOWN
    return ", ".join(names[:_NAMES_SHOWN]) + (f" and {more:,} more" if more > 0 else "")


def _few(job: DeployedJob) -> str:
    minimum = job.shuffle.minimum
    return "no devices" if minimum == 1 else f"fewer than {minimum:,} devices"
