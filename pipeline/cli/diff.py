"""The command ``dpstream diff``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from dpstream.pipeline.cli.cluster_and_jobs import cluster_of, find_job
from dpstream.pipeline.cli.command_errors import UsageProblem
from dpstream.pipeline.cli.options import AsJson, KafkaConfig, Servers
from dpstream.pipeline.cli.output import plural, print_json, print_table, print_text, tell
from dpstream.pipeline.cli.query import first_and_last
from dpstream.pipeline.errors import FAILED
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.kafka.topic_reader import read_from
from dpstream.pipeline.recording.differences import (
    Difference,
    check_comparable,
    differences,
    write_differences,
)
from dpstream.pipeline.results.coverage import EpochResult, result_of
from dpstream.pipeline.results.epoch_counts import NoCountsError, check_epochs
from dpstream.pipeline.stages.epoch_log import EpochLog
from dpstream.pipeline.values.value_domains import ValueDomain

_JOB_HELP = "Name of a deployed job, or its job file."


def diff(
    one: Annotated[str, typer.Argument(metavar="A", help=_JOB_HELP)],
    other: Annotated[str, typer.Argument(metavar="B", help=_JOB_HELP)],
    epochs: Annotated[
        str | None,
        typer.Option(metavar="A..B", help="Compare only epochs A to B, inclusive."),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE.png", dir_okay=False, help="Plot the differences by epoch."),
    ] = None,
    servers: Servers = None,
    kafka_config: KafkaConfig = None,
    as_json: AsJson = False,
) -> None:
    """Compare two jobs with the same protocol and domain. Exits with 1 if they differ.

    Compares every epoch: first integers (window_status, contributors, population and the counts
    themselves), then published estimates, by their largest difference in standard errors.
    """
    first, last = (1, None) if epochs is None else first_and_last(epochs)
    with cluster_of(servers, kafka_config) as cluster:
        jobs = find_job(cluster, one), find_job(cluster, other)
        check_comparable(*jobs)
        if last is not None:
            for job in jobs:
                check_epochs(job, first, last)
        compared = list(differences(*(_results(cluster, job, first, last) for job in jobs)))
    _check_all_there(jobs, compared, first, last)
    if plot is not None:
        _plot(jobs, compared, plot)
    if as_json:
        print_json(_to_json(jobs, compared))
    else:
        _show(jobs, compared)
    if any(each.differs for each in compared):
        raise typer.Exit(FAILED)


def _results(
    cluster: Cluster, job: DeployedJob, first: int, last: int | None
) -> Iterator[EpochResult]:
    log = EpochLog(job, first, published=True)
    for epoch in log.read(partial(read_from, cluster, job)):
        if last is not None and epoch.epoch > last:
            return
        yield result_of(job, epoch)


def _check_all_there(
    jobs: Sequence[DeployedJob], found: Sequence[Difference], first: int, last: int | None
) -> None:
    there = {each.epoch for each in found}
    if last is None:
        last = first - 1 if found else first
    requested = range(first, last + 1)
    missing = next((epoch for epoch in requested if epoch not in there), None)
    if missing is not None:
        names = " or ".join(job.name for job in jobs)
        raise NoCountsError(
            f"epoch {missing:,} is not yet published by {names}: wait for it, or compare other "
            "epochs"
        )


def _plot(jobs: Sequence[DeployedJob], found: Sequence[Difference], path: Path) -> None:
    try:
        write_differences([job.name for job in jobs], found, path)
    except ValueError as error:  # unknown image format
        raise UsageProblem(f"--plot {path}: {error}") from None
    tell(f"wrote {path}")


def _to_json(jobs: Sequence[DeployedJob], found: Sequence[Difference]) -> dict[str, Any]:
    return {
        "jobs": [{"job": job.name, "deployment": job.deployment} for job in jobs],
        "differ": any(each.differs for each in found),
        "epochs": [
            {
                "epoch": each.epoch,
                "only_in": None if each.only is None else jobs[each.only].name,
                "integers": each.integers,
                "estimates_differ": each.estimates,
                "standard_errors": each.deviations,
                "item": _label(jobs[0].domain, each.item) or None,
                "unmatched_items": each.unmatched,
            }
            for each in found
        ],
    }


def _show(jobs: Sequence[DeployedJob], found: Sequence[Difference]) -> None:
    if not any(each.differs for each in found):
        one, other = (job.name for job in jobs)
        print_text(
            f"{one} and {other} have identical integers and estimates: "
            f"{plural(len(found), 'epoch')}"
        )
        return
    print_table(
        [">epoch", "integers", "estimates", ">by (sd)", "of"],
        (_row(jobs, each) for each in found),
    )
    print_text()
    for line in _summary(found):
        print_text(line)


def _row(jobs: Sequence[DeployedJob], each: Difference) -> tuple[object, ...]:
    if each.only is not None:
        return each.epoch, f"only in {jobs[each.only].name}", "", "", ""
    return (
        each.epoch,
        f"differ: {', '.join(each.integers)}" if each.integers else "equal",
        "differ" if each.estimates else "equal",
        "-" if each.deviations is None else f"{each.deviations:.3g}",
        _about(jobs[0].domain, each),
    )


def _about(domain: ValueDomain, each: Difference) -> str:
    unmatched = f"{plural(each.unmatched, 'item')} in only one job" if each.unmatched else ""
    return "; ".join(filter(None, (_label(domain, each.item), unmatched)))


def _label(domain: ValueDomain, item: int | None) -> str:
    return "" if item is None else domain.label(item)


def _summary(found: Sequence[Difference]) -> Iterator[str]:
    both = [each for each in found if each.only is None]
    integers = sum(bool(each.integers) for each in both)
    estimates = sum(each.estimates for each in both)
    yield (
        f"{plural(len(both), 'epoch')} compared: integers differ in {integers:,}, estimates in "
        f"{estimates:,}"
    )
    largest = max(both, key=lambda each: each.deviations or 0.0, default=None)
    if largest is not None and largest.deviations:
        yield (
            f"the largest difference is {largest.deviations:.3g} standard errors, at epoch "
            f"{largest.epoch:,}"
        )
    if len(found) > len(both):
        yield (
            f"{plural(len(found) - len(both), 'epoch')} in only one job. To compare the common "
            "epochs: --epochs"
        )
