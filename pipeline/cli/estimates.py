"""The command ``dpstream estimates``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer

from dpstream.pipeline.cli.answer_lines import (
    NormSub,
    Plot,
    plot_answers,
    printed_lines,
    record_json,
)
from dpstream.pipeline.cli.cluster_and_jobs import cluster_of, find_job, local_results
from dpstream.pipeline.cli.cohort_lines import CohortAttribute, print_cohorts
from dpstream.pipeline.cli.command_errors import UsageProblem
from dpstream.pipeline.cli.estimate_files import CsvFile, EstimateFile, JsonLinesFile, ParquetFile
from dpstream.pipeline.cli.one_epoch import (
    EpochDate,
    EpochNumber,
    chosen_epoch,
    only,
    print_groups,
)
from dpstream.pipeline.cli.options import (
    Box,
    Crowd,
    Format,
    Item,
    JobName,
    KafkaConfig,
    Quantile,
    Range,
    Servers,
    Top,
)
from dpstream.pipeline.cli.output import print_line, print_lines, tell
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.epoch_times import EpochSpans
from dpstream.pipeline.jobs.epoch_words import epoch_name
from dpstream.pipeline.json_values import json_text
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.kafka.topic_reader import read_from
from dpstream.pipeline.results.counts_queries import Query
from dpstream.pipeline.results.derived_queries import derived_query
from dpstream.pipeline.results.follow import EstimateReader
from dpstream.pipeline.results.kinds import kind_of
from dpstream.pipeline.results.measure_sentences import other_warnings
from dpstream.pipeline.results.measure_series import ChosenRows
from dpstream.pipeline.results.measure_words import (
    PARTIAL_WINDOW,
    partial_epochs,
    partial_flags,
    partial_words,
)
from dpstream.pipeline.results.other_jobs import OtherJobQuery, other_job_query
from dpstream.pipeline.results.periods import Aggregate, Periods
from dpstream.pipeline.results.phrases import flag_words
from dpstream.pipeline.results.published_rows import PublishedRows
from dpstream.pipeline.results.query_options import QueryOptions, default_query, make_query
from dpstream.pipeline.results.row_queries import RowsQuery, measures_of, rows_query
from dpstream.pipeline.results.series import SeriesError
from dpstream.pipeline.results.smoothing import epoch_json, smoothed_horizon, smoothed_records
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.pipeline.stages.result_documents import document_schema
from dpstream.pipeline.values.panels import PanelDomain

MOST_PRINTED = 2_000
"""Maximum number of epochs in a printed table, unless ``--last`` sets another number."""


def _print_schema(requested: bool) -> None:
    if requested:
        print(document_schema(), end="")
        raise typer.Exit


def estimates(
    job: JobName,
    follow: Annotated[
        bool, typer.Option("--follow", help="Continue to print new epochs until the last one.")
    ] = False,
    format: Annotated[
        Format,
        typer.Option(help="Output format. json: one object per line; csv: rows below a header."),
    ] = Format.table,
    smoothed: Annotated[
        bool,
        typer.Option(
            "--smoothed",
            help="Smooth retrospectively: estimate every epoch from the reports of all epochs so "
            "far.",
        ),
    ] = False,
    change: Annotated[
        int | None,
        typer.Option(
            "--change",
            min=1,
            metavar="N",
            help="Print changes since N epochs ago, with their own intervals.",
        ),
    ] = None,
    interval: Annotated[
        int | None,
        typer.Option(
            "--interval",
            min=2,
            metavar="M",
            help="Print one number for every M epochs, with its own interval. With --change N, "
            "print its change since N such periods ago.",
        ),
    ] = None,
    aggregate: Annotated[
        Aggregate | None,
        typer.Option(
            help="(with --interval) mean: the mean of the epochs, the default. last: the last "
            "epoch. sum: their sum, for means of measures of type count or sum."
        ),
    ] = None,
    share: Annotated[
        bool,
        typer.Option(
            "--share",
            help="Print % of all users in place of numbers; with --by, % of each group's users.",
        ),
    ] = False,
    total: Annotated[
        bool,
        typer.Option(
            "--total",
            help="Print totals over all users, or over the users in each group, in place of means "
            "per user: of measures of type count and sum.",
        ),
    ] = False,
    ratio: Annotated[
        list[str] | None,
        typer.Option(
            "--ratio",
            metavar="A/B",
            help="Print the ratio of two items, or of two sums such as A+B/C. May be repeated.",
        ),
    ] = None,
    per: Annotated[
        str | None,
        typer.Option(
            "--per",
            metavar="JOB[:MEASURE]",
            help="Divide the numbers of --measure by those of another job about the same "
            "population, at the same time.",
        ),
    ] = None,
    difference: Annotated[
        list[str] | None,
        typer.Option(
            "--difference",
            metavar="A,B",
            help="Print A in % of its group's users minus B in % of its own. May be repeated.",
        ),
    ] = None,
    simultaneous: Annotated[
        bool,
        typer.Option(
            "--simultaneous",
            help="(with --share, --ratio or --difference) Widen intervals so that all those of an "
            "epoch hold together.",
        ),
    ] = False,
    horizon: Annotated[
        int | None,
        typer.Option(min=1, help="Horizon to smooth, numbered from 1. Default: the latest."),
    ] = None,
    last: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help=(
                f"Print only the latest N epochs. Default: all, or {MOST_PRINTED:,} in a printed "
                "table."
            ),
        ),
    ] = None,
    epoch: EpochNumber = None,
    date: EpochDate = None,
    cohorts: CohortAttribute = None,
    measure: Annotated[
        str | None,
        typer.Option("--measure", metavar="NAME", help="Measure to show. Default: all."),
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(
            "--by", metavar="ATTRIBUTE,...", help="Break the measure down, as the job file does."
        ),
    ] = None,
    where: Annotated[
        str | None,
        typer.Option(
            "--where",
            metavar="ATTRIBUTE=VALUE,...",
            help="Show only groups with these values; with --by, of a breakdown by all of these "
            "attributes.",
        ),
    ] = None,
    item: Item = None,
    top: Top = None,
    range_: Range = None,
    quantile: Quantile = None,
    box: Box = None,
    crowd: Crowd = None,
    norm_sub: NormSub = False,
    plot: Plot = None,
    csv: CsvFile = None,
    parquet: ParquetFile = None,
    jsonl: JsonLinesFile = None,
    schema: Annotated[
        bool,
        typer.Option(
            "--schema",
            callback=_print_schema,
            is_eager=True,
            help="Print the JSON Schema of the documents in the topic JOB.results, and exit.",
        ),
    ] = False,
    servers: Servers = None,
    kafka_config: KafkaConfig = None,
    as_json: Annotated[bool, typer.Option("--json", help="Same as --format json.")] = False,
) -> None:
    """Print published estimates: for items the largest, for numbers the quartiles.

    Printed CSV contains all items or numbers; printed JSON contains the published records. Files
    have one row per epoch and estimate. They contain all items or numbers, unless a query
    selects some.
    """
    file = EstimateFile.of({"csv": csv, "parquet": parquet, "jsonl": jsonl})
    if file is not None and follow:
        raise UsageProblem(f"--{file.format} writes a complete file: remove --follow")
    if file is not None and (as_json or format != "table"):
        raise UsageProblem(f"--{file.format} sets the format: remove --format and --json")
    if smoothed and follow:
        raise UsageProblem("--smoothed uses all available epochs: remove --follow")
    if smoothed and change is not None:
        raise UsageProblem("--change uses the published estimates: remove --smoothed")
    if smoothed and interval is not None:
        raise UsageProblem("--interval uses the published estimates: remove --smoothed")
    if aggregate is not None and interval is None:
        raise UsageProblem("--aggregate requires --interval")
    others = (share, ratio, difference, follow, item, top, range_, quantile, box, crowd, norm_sub)
    if per is not None and (cohorts is not None or any(others)):
        raise UsageProblem(
            "--per divides numbers of --measure by those of another job as they are now: remove "
            "queries, --share, --ratio, --difference, --cohorts and --follow"
        )
    pairs = bool(ratio or difference or per)
    if smoothed and pairs:
        raise UsageProblem(
            "--ratio, --difference and --per use the published estimates: remove --smoothed"
        )
    if change is not None and pairs:
        raise UsageProblem("--change applies to numbers of users and shares: remove it")
    if plot is not None and (share or pairs):
        raise UsageProblem("--plot draws numbers of users: remove --share, --ratio, --difference")
    if norm_sub and change is not None:
        raise UsageProblem("--norm-sub applies to estimates, not to changes: remove it")
    if plot is not None and follow:
        raise UsageProblem("--plot draws all available epochs: remove --follow")
    if total and (share or pairs or smoothed or change is not None or plot is not None):
        raise UsageProblem(
            "--total shows numbers of events or their sums, as estimated: remove --share, --ratio, "
            "--difference, --per, --smoothed, --change and --plot"
        )
    derived = smoothed or change is not None or interval is not None
    if last is not None and derived:
        raise UsageProblem(
            "--smoothed, --change and --interval use all available epochs: remove --last"
        )
    single = epoch is not None or date is not None
    if single and (follow or last is not None or smoothed or interval is not None or plot):
        raise UsageProblem(
            "--epoch and --date select one epoch: remove --follow, --last, --smoothed, --interval "
            "and --plot"
        )
    shown = (item, top, range_, quantile, box, crowd, share, total, ratio, difference, plot)
    if cohorts is not None and (derived or single or follow or last is not None or any(shown)):
        raise UsageProblem("--cohorts shows one measure at all epochs: remove the other options")
    if horizon is not None and not smoothed:
        raise UsageProblem("--horizon selects the horizon to smooth: add --smoothed")
    with local_results(servers, kafka_config), cluster_of(servers, kafka_config) as cluster:
        deployed = find_job(cluster, job)
        query_options = QueryOptions(item, top, range_, quantile, box, crowd)
        query = make_query(deployed.domain, query_options, norm_sub=norm_sub)
        form = "json" if as_json else format
        whole = derived or single or plot is not None or file is not None or cohorts is not None
        if last is None and form == "table" and not whole:
            last = MOST_PRINTED
        default = default_query(deployed.domain)
        if form != "table" or file is not None:
            default = Query(deployed.domain, kind_of(deployed.domain).everything(deployed.domain))
        try:
            selection = ChosenRows.parse(measure or "", by or "", where or "")
        except SeriesError as error:
            raise UsageProblem(f"--{error}") from None
        if selection and (query is not None or ratio or difference or smoothed):
            raise UsageProblem(
                "--measure, --by and --where show numbers of users, means or shares: remove "
                "queries, --ratio, --difference and --smoothed"
            )
        plain = query is None and not pairs and not smoothed and plot is None
        if share and change is not None:
            if isinstance(deployed.domain, PanelDomain):
                raise UsageProblem("--change of groups applies to numbers: remove --share")
            plain = False
        selected: Query | None = None
        # Printed JSON has the records as published.
        if cohorts is None and plain and (selection or share or total or form != "json"):
            every = form != "table" or file is not None
            selected = rows_query(
                deployed,
                selection,
                every=every,
                shares=share,
                totals=total,
                simultaneous=simultaneous,
            )
        if total and not isinstance(selected, RowsQuery):
            raise UsageProblem("--total requires a job with measures, without another query")
        if isinstance(selected, RowsQuery) and change is not None and selected.sums:
            raise UsageProblem(
                "--change has no intervals for sums of cells of private attributes: remove it"
            )
        computed = selected
        if per is not None:
            other, _, divisor = per.partition(":")
            computed = other_job_query(
                deployed, selection, find_job(cluster, other), divisor, simultaneous=simultaneous
            )
        computed = computed or derived_query(
            deployed,
            query or default,
            shares=share,
            ratios=ratio or (),
            differences=difference or (),
            simultaneous=simultaneous,
            signed=change is not None,
            declared={
                name: (each.numerator, each.denominator)
                for name, each in (deployed.ratios or {}).items()
            },
        )
        reader = EstimateReader(cluster, deployed, last)
        if cohorts is not None:
            print_cohorts(deployed, cohorts, measure, reader.read(), form, file)
            return
        if smoothed:
            _print_smoothed(cluster, deployed, reader, horizon, computed or query, plot, form, file)
            return
        if change is not None and deployed.domain.kind == "numbers":
            if query is None or not range_:
                raise UsageProblem(
                    "--change of numbers requires --range: quantiles have no changes"
                )
            if share:
                raise UsageProblem("--change of ranges applies to counts: remove --share")
        chosen = aggregate or Aggregate.mean
        names = () if computed is None else measures_of(deployed, computed)
        periods = Periods(deployed, interval, change, chosen, of_shares=share, measures=names)
        published = reader.follow(tell) if follow else _notify_if_empty(reader.read(), deployed)
        chosen_one = chosen_epoch(deployed, epoch, date)
        groups = isinstance(computed, RowsQuery) and selection and not (share or total or change)
        if chosen_one is not None and groups and form == "table" and file is None:
            _tell_limit(deployed)
            partial = names if chosen_one <= partial_epochs(deployed, names) else ()
            print_groups(deployed, selection, chosen_one, _explained(published, deployed, partial))
            return
        records = periods.records(published)
        if isinstance(computed, OtherJobQuery):
            computed = computed.reading(EstimateReader(cluster, computed.other).read(), periods)
        if chosen_one is not None:
            records = only(deployed, chosen_one, records)
        if plot is not None:
            known = list(records)
            plot_answers(plot, deployed, query, known, label=periods.description)
            records = iter(known)
        query = computed or query
        if file is not None:
            rows = PublishedRows.of(
                deployed, query, periods.value, windows=periods.averages is not None
            )
            file.write(rows, records)
            return
        if form == "table":
            _tell_limit(deployed)
        records = _explained(records, deployed, names or tuple(deployed.measures or ()))
        lines = printed_lines(deployed, query, form, records, periods.value, periods)
        if follow:
            for line in lines:
                print_line(line, flush=True)
        else:
            print_lines(lines)
        if reader.leaves_out:
            shown_epochs = "epoch is" if last == 1 else f"{last:,} epochs are"
            tell(f"the latest {shown_epochs} shown. For more: --last N; for all: --csv FILE")


def _tell_limit(job: DeployedJob) -> None:
    if job.change_limit is not None:
        tell(f"95 % intervals: {job.change_limit}")


def _explained(
    records: Iterable[EstimateRecord], job: DeployedJob, measures: Sequence[str]
) -> Iterator[EstimateRecord]:
    """Yield the records unchanged, and explain each flag at its first occurrence."""
    known, last = set[str](), None
    for record in records:
        if last is None and partial_flags(job, measures, record):
            tell(
                f"{PARTIAL_WINDOW}: {partial_words(job, measures)}. If there were no events "
                "before, set 'history: complete'"
            )
        for flag in set(record.flags) - known:
            since = epoch_name(job, record.epoch).name
            tell(f"{flag}, first in {since}: {flag_words(job, flag)}")
        known.update(record.flags)
        yield record
        last = record
    for warning in other_warnings(job, last):
        tell(warning)


def _notify_if_empty(
    records: Iterable[EstimateRecord], job: DeployedJob
) -> Iterator[EstimateRecord]:
    found = False
    for record in records:
        found = True
        yield record
    if not found:
        tell(f"nothing is published yet. To see why: 'dpstream status {job.name}'")


def _print_smoothed(
    cluster: Cluster,
    job: DeployedJob,
    reader: EstimateReader,
    horizon: int | None,
    query: Query | None,
    plot: Path | None,
    format: str,
    file: EstimateFile | None,
) -> None:
    # Estimates are read before the logs, so that the logs cover every estimate.
    published = list(reader.read())
    smoothed_estimates = read_from(cluster, job, smoothed_horizon(job, horizon))
    records = smoothed_records(published, smoothed_estimates)
    if plot is not None:
        plot_answers(plot, job, query, records, label="smoothed")
    if file is not None:
        file.write(PublishedRows.of(job, query, "smoothed"), records)
        return
    if query is None and format == "json":
        online = (
            record for record in published if smoothed_estimates.index(record.epoch) is not None
        )
        spans = EpochSpans(job)
        for record in online:
            body = record_json(job, record) | epoch_json(record, smoothed_estimates)
            print_line(json_text(spans.dated(body)))
        return
    print_lines(printed_lines(job, query, format, records, "smoothed"))
