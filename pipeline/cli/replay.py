"""The command ``dpstream replay``."""

from __future__ import annotations

import secrets
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

from dpstream.pipeline.cli.answer_lines import printed_lines
from dpstream.pipeline.cli.cluster_and_jobs import cluster_of, find_job
from dpstream.pipeline.cli.command_errors import UsageProblem
from dpstream.pipeline.cli.keygen import key_ring
from dpstream.pipeline.cli.options import AsJson, Format, KafkaConfig, SealingKeys, Servers
from dpstream.pipeline.cli.output import (
    now,
    number,
    plural,
    print_json,
    print_line,
    print_pairs,
    print_text,
    tell,
)
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.job_files import Job, load_job
from dpstream.pipeline.jobs.replays import deploy_replay, replayed_job
from dpstream.pipeline.kafka.cluster import AccessError, Cluster, ClusterError
from dpstream.pipeline.recording.recording_index import INDEX_FILE
from dpstream.pipeline.recording.replay.in_memory import MemoryReplay
from dpstream.pipeline.recording.replay.on_cluster import (
    ClusterReader,
    ClusterReplay,
    find_replay,
    start_replay,
)
from dpstream.pipeline.recording.replay.pace import Pace, ReplayProgress, Speed
from dpstream.pipeline.recording.replay.replay_plan import ReplayPlan, ReplayRange, plan_replay
from dpstream.pipeline.recording.replay.sources import ReplaySource
from dpstream.pipeline.recording.replay.topic_source import TopicSource
from dpstream.pipeline.stages.topic_uses import stages_of
from dpstream.pipeline.values.times import parse_time
from dpstream.topics.manifests import Manifest

_LAST_MILLISECOND = 253_402_300_799_999


def replay(
    source: Annotated[
        str,
        typer.Argument(metavar="SOURCE", help="Name of a deployed job, or folder of a recording."),
    ],
    name: Annotated[
        str | None,
        typer.Option(
            "--new-name", metavar="NAME", help="Name of the replay. Default: SOURCE-replay."
        ),
    ] = None,
    job: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Job file with another estimator or other topics; everything else must be "
            "unchanged.",
        ),
    ] = None,
    from_epoch: Annotated[
        int | None,
        typer.Option(min=1, metavar="E", help="First epoch to aggregate again."),
    ] = None,
    from_time: Annotated[
        str | None,
        typer.Option(
            metavar="T",
            help="Start at the first epoch finalized at this time or later (ISO 8601, UTC), "
            "instead of --from-epoch.",
        ),
    ] = None,
    to_epoch: Annotated[
        int | None,
        typer.Option(min=1, metavar="E", help="Last epoch. Default: the last available."),
    ] = None,
    from_partials: Annotated[
        bool,
        typer.Option(
            "--from-partials",
            help="Skip the aggregation; estimate from the existing counts.",
        ),
    ] = False,
    speed: Annotated[
        str,
        typer.Option(
            metavar="N|xN|max", help="Speed: N epochs per second, or xN times the live speed."
        ),
    ] = "max",
    in_memory: Annotated[
        bool,
        typer.Option("--in-memory", help="Deploy nothing and write no topic; print the estimates."),
    ] = False,
    partitions: Annotated[
        int | None,
        typer.Option(
            min=1, max=1024, metavar="P", help="Number of partitions of the replay's topics."
        ),
    ] = None,
    no_workers: Annotated[
        bool,
        typer.Option(
            "--no-workers", help="Start no workers; workers elsewhere aggregate and publish."
        ),
    ] = False,
    keys: SealingKeys = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be read and written.")
    ] = False,
    format: Annotated[
        Format, typer.Option(help="Format of the estimates printed by --in-memory.")
    ] = Format.table,
    servers: Servers = None,
    kafka_config: KafkaConfig = None,
    as_json: AsJson = False,
) -> None:
    """Aggregate a job's windows again, under a new name. Costs no epsilon.

    No window is closed again, and no suppressed window is released. The same parameters produce the
    same integers and estimates: compare them with dpstream diff.
    """
    replay_range = _replay_range(from_epoch, from_time, to_epoch, from_partials)
    try:
        pace = Speed.parse(speed)
    except ValueError as error:
        raise UsageProblem(f"--speed: {error}") from None
    if in_memory and no_workers:
        raise UsageProblem("--in-memory runs no workers: remove --no-workers")
    changed = None if job is None else load_job(job)
    recording = _recording(source)
    with ExitStack() as stack:
        cluster: Cluster | None = None
        if recording is None or not in_memory:
            cluster = stack.enter_context(cluster_of(servers, kafka_config))
        found = _source(cluster, source, recording, windows=not from_partials)
        deployed_as = replayed_job(found.job, name=name, changed=changed, partitions=partitions)
        plan = plan_replay(found, replay_range)
        earlier = None
        if cluster is not None and not in_memory:
            earlier = find_replay(cluster, found.job, deployed_as)
        if dry_run:
            _print_plan(found, deployed_as, plan, earlier, in_memory=in_memory, as_json=as_json)
            return
        found.check(plan.first, plan.windows_from, plan.last)
        if in_memory:
            _print_estimates(found, deployed_as, plan, pace, "json" if as_json else format, keys)
        else:
            assert cluster is not None
            _run(cluster, found, deployed_as, plan, pace, earlier, not no_workers, as_json, keys)


def _replay_range(
    from_epoch: int | None, from_time: str | None, to_epoch: int | None, from_partials: bool
) -> ReplayRange:
    if from_epoch is not None and from_time is not None:
        raise UsageProblem("--from-epoch and --from-time are mutually exclusive")
    milliseconds = None
    if from_time is not None:
        try:
            # Rounded up, so that no earlier epoch is selected, and limited to the last valid year.
            milliseconds = min(-(-parse_time(from_time) // 1000), _LAST_MILLISECOND)
        except ValueError as error:
            raise UsageProblem(f"--from-time: {error}") from None
    return ReplayRange(from_epoch, milliseconds, to_epoch, from_partials)


def _recording(source: str) -> Path | None:
    path = Path(source)
    if path.name == INDEX_FILE:
        return path.parent
    if path.is_file() or path.suffix.lower() in (".yaml", ".yml"):
        return None
    is_folder = (path / INDEX_FILE).exists() or any(mark in source for mark in "/\\.")
    return path if is_folder else None


def _source(
    cluster: Cluster | None, source: str, recording: Path | None, *, windows: bool
) -> ReplaySource:
    if recording is not None:
        # Imported here: pyarrow loads slowly, and replays of topics do not need it.
        from dpstream.pipeline.recording.recordings import Recording
        from dpstream.pipeline.recording.replay.recording_source import RecordingSource

        return RecordingSource(Recording.open(recording))

    assert cluster is not None
    job = find_job(cluster, source)
    return TopicSource(job, ClusterReader(cluster, job), windows=windows)


def _run(
    cluster: Cluster,
    source: ReplaySource,
    job: Job,
    plan: ReplayPlan,
    speed: Speed,
    earlier: DeployedJob | None,
    workers: bool,
    as_json: bool,
    keys: Path | None,
) -> None:
    if earlier is None:
        try:
            earlier = start_replay(
                cluster,
                source.job,
                job,
                deployment=secrets.token_bytes(16),
                now=now(),
                first_epoch=plan.begins,
            )
        except AccessError as error:
            # The replay is not deployed, so access cannot be requested under its own name.
            named = f"{source.job.name} --replay {job.name}"
            raise ClusterError(error.asking_for("operator", named)) from error
        tell(f"job {job.name} is deployed as a replay of {source.place}, without a privacy charge")
    else:
        tell(f"job {job.name} continues: an unfinished replay of {source.place}")
    started = time.monotonic()
    try:
        ClusterReplay(cluster, earlier, source, plan, tell, keys).run(speed, workers=workers)
    except KeyboardInterrupt:
        tell(f"job {job.name} is not finished. To continue, run the same command again")
        raise
    seconds = time.monotonic() - started
    if as_json:
        body = _to_json(source, earlier, plan)
        print_json({**body, "deployment": earlier.deployment, "published": workers})
        return
    print_text(_ending(source.job.name, earlier, plan, seconds, workers=workers), whole=True)


def _ending(
    original: str, job: DeployedJob, plan: ReplayPlan, seconds: float, *, workers: bool
) -> str:
    done = f"{plural(plan.epochs, 'epoch')} of {original}"
    took = f"in {number(seconds)} s, at no privacy cost"
    if workers:
        epochs = "" if plan.first == 1 else f" --epochs {plan.first}..{plan.last}"
        compare = f"dpstream diff {original} {job.name}{epochs}"
        return f"{done} are published again as {job.name} {took}. To compare: '{compare}'"
    to_run = " and ".join(f"'dpstream run {stage} {job.name}'" for stage in stages_of(job))
    return f"{done} are written as {job.name} {took}. To estimate: {to_run}"


def _print_estimates(
    source: ReplaySource,
    job: Job,
    plan: ReplayPlan,
    speed: Speed,
    form: str,
    keys: Path | None,
) -> None:
    deployed = deploy_replay(
        source.job,
        job,
        deployment=secrets.token_bytes(16),
        deployed_at=now(),
        first_epoch=plan.begins,
    )
    pace = Pace(speed, time.monotonic())
    # On a terminal, the estimates themselves show the progress.
    progress = ReplayProgress(plan.last, (lambda text: None) if sys.stdout.isatty() else tell)

    def wait(manifest: Manifest) -> None:
        due = pace.due(manifest.timestamp)
        while (left := due - time.monotonic()) > 0:
            progress.waiting()
            time.sleep(min(left, 1.0))
        progress.reached(manifest.epoch, "in progress")

    records = MemoryReplay(deployed, source, plan, key_ring(deployed, keys)).run(wait)
    for line in printed_lines(deployed, None, form, records):
        print_line(line, flush=speed.limited)


def _print_plan(
    source: ReplaySource,
    job: Job,
    plan: ReplayPlan,
    earlier: DeployedJob | None,
    *,
    in_memory: bool,
    as_json: bool,
) -> None:
    if as_json:
        resumes = None if earlier is None else earlier.deployment
        print_json({**_to_json(source, job, plan), "resumes": resumes, "in_memory": in_memory})
        return
    stored = plan.stored
    reads = [
        ("from", source.place),
        ("epochs", f"{plan.first:,} to {plan.last:,}, {plan.suppressed:,} of them suppressed"),
        (
            "windows",
            f"{plan.windows:,}, from epoch {plan.windows_from:,}: {stored.records:,} records, "
            f"{stored.bytes:,} bytes"
            if plan.windows
            else "none",
        ),
        (
            "partials",
            f"{plan.copied:,}, copied unchanged"
            if plan.copied
            else "not read; the windows are counted again",
        ),
    ]
    print_text("input:")
    print_pairs(reads)
    print_text("output:")
    if in_memory:
        print_pairs([("estimates", "to standard output; nothing is deployed")])
    else:
        how = "new deployment" if earlier is None else "already deployed, to be continued"
        print_pairs(
            [
                ("job", f"{job.name}, {how}"),
                *(
                    ("topic", f"{topic.name}, {plural(topic.partitions, 'partition')}")
                    for topic in job.topic_settings().values()
                ),
            ]
        )
    print_text("privacy cost: none, because the replay uses only released data")


def _to_json(source: ReplaySource, job: Job, plan: ReplayPlan) -> dict[str, Any]:
    return {
        "reads": {
            "job": source.job.name,
            "deployment": source.job.deployment,
            "place": source.place,
            "first_epoch": plan.first,
            "windows_from": plan.windows_from if plan.windows else None,
            "last_epoch": plan.last,
            "windows": plan.windows,
            "records": plan.stored.records,
            "bytes": plan.stored.bytes,
            "partials": plan.copied,
            "suppressed": plan.suppressed,
        },
        "writes": {
            "job": job.name,
            "topics": {topic.name: topic.partitions for topic in job.topic_settings().values()},
        },
        "epsilon": 0,
    }
