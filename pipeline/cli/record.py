"""The command ``dpstream record``."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.filesize import decimal

from dpstream.pipeline.cli.cluster_and_jobs import cluster_of, find_job
from dpstream.pipeline.cli.command_errors import UsageProblem
from dpstream.pipeline.cli.inputs import progress_bar
from dpstream.pipeline.cli.keygen import key_ring
from dpstream.pipeline.cli.options import AsJson, KafkaConfig, SealingKeys, Servers
from dpstream.pipeline.cli.output import plural, print_json, print_text, tell
from dpstream.pipeline.errors import FAILED
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.recording.record_verify import Verification, verify
from dpstream.pipeline.recording.recorder import DeploymentCheck, Recorded, Recorder, open_recording
from dpstream.pipeline.recording.recording_index import RecordingError
from dpstream.pipeline.recording.recordings import RecordingFolder, RecordingIndex
from dpstream.pipeline.recording.replay.on_cluster import ClusterReader
from dpstream.pipeline.results import follow as following
from dpstream.pipeline.results.epoch_counts import check_epochs
from dpstream.pipeline.state import FolderLock


def record(
    job: Annotated[
        str | None,
        typer.Argument(metavar="[JOB]", help="Name of a deployed job, or its job file."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            file_okay=False,
            help="Folder for the recording: a new one, or one with a recording of this job to "
            "continue.",
        ),
    ] = None,
    from_epoch: Annotated[
        int | None,
        typer.Option(min=1, metavar="EPOCH", help="First epoch to record. Default: the first."),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Continue until the job's last epoch is recorded.")
    ] = False,
    verify: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Check a recording instead. Exits with 1 if anything was altered, truncated or "
            "lost.",
        ),
    ] = None,
    deep: Annotated[
        bool,
        typer.Option(
            "--deep", help="(with --verify) Aggregate all windows again and compare the integers."
        ),
    ] = False,
    keys: SealingKeys = None,
    servers: Servers = None,
    kafka_config: KafkaConfig = None,
    as_json: AsJson = False,
) -> None:
    """Record a job's released windows, manifests, partials and estimates as Parquet.

    When run again on the same folder, it continues where it stopped. A recording is as private as
    the topics it is made from, which are as private as the job promises. It contains nothing else,
    and its files are accessible only to their owner (0600). Data that was deleted earlier is listed
    as missing.
    """
    if verify is not None:
        if job is not None or output is not None or follow or from_epoch is not None:
            raise UsageProblem("--verify DIR allows only --deep, --keys and --json")
        _verify(verify, deep, keys, as_json)
        return
    if job is None or output is None:
        raise UsageProblem("specify JOB and --output DIR to record, or --verify DIR to check")
    if deep:
        raise UsageProblem("--deep requires --verify DIR")
    if keys is not None:
        raise UsageProblem("--keys requires --verify DIR --deep: recording opens no reports")
    # On SIGTERM, commit what was read, as with Ctrl-C.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    with cluster_of(servers, kafka_config) as cluster:
        _record(cluster, find_job(cluster, job), output, from_epoch, follow, as_json)


def _record(
    cluster: Cluster,
    job: DeployedJob,
    output: Path,
    from_epoch: int | None,
    follow: bool,
    as_json: bool,
) -> None:
    if from_epoch is not None:
        check_epochs(job, from_epoch, from_epoch)
    with FolderLock(output, "dpstream record"):
        folder = RecordingFolder(output)
        index = open_recording(folder, job, from_epoch=from_epoch)
        recorder = Recorder(job, folder, index, ClusterReader(cluster, job))
        added = reports = 0
        try:
            for epoch in _shown(recorder, DeploymentCheck(cluster, job), job, follow):
                added, reports = added + 1, reports + (epoch.reports or 0)
        finally:
            recorder.stop()
        if as_json:
            print_json(_to_json(recorder, job, output, added, reports))
        else:
            _print_recorded(recorder, job, output, added, reports)


def _shown(
    recorder: Recorder, check: DeploymentCheck, job: DeployedJob, follow: bool
) -> Iterator[Recorded]:

    def round() -> Iterator[Recorded]:
        # Checked first: everything published before this check is still recorded.
        ended = check.ended()
        yield from recorder.round()
        if ended is not None and not recorder.complete:
            raise RecordingError(f"{ended}: everything available is recorded")

    with progress_bar() as progress:
        done = recorder.index.last_epoch or 0
        bar = progress.add_task("epochs", total=job.last_epoch, completed=done)
        source = (
            following.follow(round, lambda: recorder.complete, tell) if follow else recorder.round()
        )
        for epoch in source:
            progress.update(bar, completed=epoch.epoch)
            yield epoch


def _to_json(
    recorder: Recorder, job: DeployedJob, output: Path, added: int, reports: int
) -> dict[str, Any]:
    index = recorder.index
    return {
        "job": job.name,
        "deployment": job.deployment,
        "folder": output,
        "first_epoch": index.first_epoch,
        "last_epoch": index.last_epoch,
        "last_epoch_of_job": job.last_epoch,
        "reached_last_epoch": recorder.complete,
        "complete": recorder.complete and not index.missing,
        "epochs_added": added,
        "chunks_added" if job.shared else "reports_added": reports,
        "files": len(index.files),
        "bytes": sum(file.size for file in index.files),
        "missing": index.missing,
    }


def _print_recorded(
    recorder: Recorder, job: DeployedJob, output: Path, added: int, reports: int
) -> None:
    index = recorder.index
    if added:
        words = plural(reports, _unit(shared=job.shared))
        print_text(f"{plural(added, 'epoch')} recorded, with {words} in their windows")
        print_text(f"{output} contains {_contents(index)}", whole=True)
    else:
        print_text(f"nothing new is published: {output} contains {_contents(index)}", whole=True)
    for gap in index.missing:
        print_text(f"missing: {gap}")
    if recorder.complete:
        print_text(
            "the job's last epoch is recorded"
            + ("" if index.missing else ": the recording is complete")
        )
    else:
        following = 1 + (index.last_epoch or index.from_epoch - 1)
        print_text(
            f"epoch {following:,} is not published yet. To record it later, run the same "
            "command again, or wait with --follow"
        )


def _contents(index: RecordingIndex) -> str:
    size = decimal(sum(file.size for file in index.files))
    files = f"{plural(len(index.files), 'file')}, {size}"
    if index.first_epoch is None or index.last_epoch is None:
        return f"no epochs yet ({files})"
    return f"epochs {index.first_epoch:,} to {index.last_epoch:,} of job {index.job} ({files})"


def _verify(path: Path, deep: bool, keys: Path | None, as_json: bool) -> None:
    with progress_bar() as progress:
        bar = progress.add_task("checking", total=None)
        verified = verify(
            path,
            deep=deep,
            keys=lambda job: key_ring(job, keys),
            tell=lambda text: progress.update(bar, description=f"checking {text}"),
        )
    if as_json:
        print_json(verified)
    else:
        _print_verified(path, verified)
    if verified.problems:
        raise typer.Exit(FAILED)


def _print_verified(path: Path, found: Verification) -> None:
    for problem in found.problems:
        tell(f"error: {problem}")
    for note in found.notes:
        print_text(note)
    if found.index is None:
        return
    for gap in found.index.missing:
        print_text(f"already missing when recorded: {gap}")
    if found.problems:
        print_text(
            f"{plural(len(found.problems), 'problem')}: record the job again, if it still exists"
        )
        return
    print_text(f"{path} is intact: {_contents(found.index)}", whole=True)
    checked = "windows match the partials" if found.deep else "the tables are consistent"
    words = plural(found.reports, _unit(shared=found.shared))
    print_text(f"{words} in windows; all checksums match, and {checked}")


def _unit(*, shared: bool) -> str:
    return "chunk" if shared else "report"
