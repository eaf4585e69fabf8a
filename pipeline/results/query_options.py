"""Queries about published data and windows, from command-line options."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpstream.aggregators.counts import NoValuesError, UnsupportedQueryError
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.results.counts_queries import (
    QUARTILES,
    Answers,
    Boxes,
    CountsQuery,
    Items,
    Quantiles,
    Query,
    Top,
)
from dpstream.pipeline.results.epoch_counts import CountsCells, EpochCounts
from dpstream.pipeline.results.kinds import kind_of
from dpstream.pipeline.values.boxes import QueryError, finite
from dpstream.pipeline.values.panels import PanelDomain
from dpstream.pipeline.values.value_domains import ValueDomain
from dpstream.pipeline.whole_files import read_whole_text

MOST_USUAL = 20
"""Maximum number of items in a domain whose items are all shown by default."""


@dataclass(frozen=True, slots=True)
class QueryOptions:
    """Query options: at most one kind of query, optionally within a crowd.

    Attributes:
        items: Names of items; ``@FILE`` reads them from a file, one per line.
        top: Maximum number of the most frequent items.
        ranges, boxes: Ranges, each as ``LOW:HIGH``, and boxes, each as ``A1:B1,A2:B2``.
        quantiles: Quantiles between 0 and 1, such as 0.5.
        crowd: Label of a crowd; by itself, it requests the crowd's size and all its items.
    """

    items: Sequence[str] | None = None
    top: int | None = None
    ranges: Sequence[str] | None = None
    quantiles: Sequence[str] | None = None
    boxes: Sequence[str] | None = None
    crowd: str | None = None

    def counts_query(self, domain: ValueDomain) -> CountsQuery | None:
        """Return the query for a domain, or None without options; raise `QueryError` if invalid.

        >>> from dpstream.pipeline.values.numeric_values import NumericDomain
        >>> QueryOptions(ranges=["10:40", "60:"]).counts_query(NumericDomain(0, 80, 8))
        ... # doctest: +NORMALIZE_WHITESPACE
        Boxes(boxes=(Box(name='10:40', starts=(1,), ends=(4,)),
                     Box(name='60:', starts=(6,), ends=(8,))))
        """
        crowd = None if self.crowd is None else domain.numbers_in(self.crowd)

        def items_of(names: Sequence[str]) -> Items:
            listed = [*_listed(names)]
            if self.crowd is not None:
                listed = [domain.text_of(self.crowd, name) for name in listed]
            return Items(domain.numbers_of(listed))

        options: Mapping[str, tuple[Any, Callable[[Any], CountsQuery]]] = {
            "--item": (self.items, items_of),
            "--top": (self.top, lambda count: Top(count, crowd)),
            "--range": (self.ranges, lambda texts: Boxes(tuple(map(domain.range, texts)))),
            "--quantile": (self.quantiles, lambda texts: Quantiles(tuple(map(_share, texts)))),
            "--box": (self.boxes, lambda texts: Boxes(tuple(map(domain.box, texts)))),
        }
        given = [option for option, (value, _) in options.items() if value]
        if len(given) > 1:
            raise QueryError(f"{' and '.join(given)} are mutually exclusive")
        for option in given:
            domain.check_supports(option)
            value, parse = options[option]
            return parse(value)
        return None if crowd is None else Items(tuple(crowd))


def _listed(names: Sequence[str]) -> Iterator[str]:
    for name in names:
        if not name.startswith("@"):
            yield name.strip()
            continue
        try:
            lines = read_whole_text(Path(name[1:]), "utf-8-sig").split("\n")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise QueryError(f"--item: {name[1:]} cannot be read: {reason}") from None
        yield from filter(None, map(str.strip, lines))


def _share(text: str) -> float:
    share = finite(text, "--quantile")
    if not 0 < share < 1:
        raise QueryError(f"--quantile: got {share:g}; expected a number between 0 and 1")
    return share


def make_query(
    domain: ValueDomain, query_options: QueryOptions, *, norm_sub: bool = False
) -> Query | None:
    """Return the requested query, or None without options.

    Norm-Sub without other options covers all items or buckets. Raises `QueryError` if the job does
    not support the query, or if options are mutually exclusive.
    """
    counts_query = query_options.counts_query(domain)
    if counts_query is None and not norm_sub:
        return None
    if kind_of(domain).single:
        raise QueryError(
            "--norm-sub requires a job over items or numbers; this one counts a single value"
        )
    if norm_sub and counts_query is not None and counts_query.in_values:
        raise QueryError("--norm-sub applies to items and ranges, not to --quantile")
    counts_query = counts_query or kind_of(domain).everything(domain)
    if domain.slots is not None:
        _check_published(domain, counts_query, norm_sub=norm_sub)
    return Query(domain, counts_query, norm_sub)


def _check_published(domain: ValueDomain, counts_query: CountsQuery, *, norm_sub: bool) -> None:
    if counts_query.of_tree:
        raise QueryError(f"{counts_query.of_tree} are not published; use 'dpstream query'")
    if domain.items is None and (norm_sub or not counts_query.selects):
        raise QueryError(
            f"{'--norm-sub' if norm_sub else '--item'}: not possible, because only frequent "
            "items are published. For one item, use 'dpstream query' with --item"
        )


def default_query(domain: ValueDomain) -> Query:
    if isinstance(domain, PanelDomain):
        # Rows are not comparable: all of them, or those of all users if there are many.
        totals = (number for number, row in enumerate(domain.rows, 1) if not row.attributes)
        return Query(domain, Items(tuple(totals) if domain.size > MOST_USUAL else None))
    return Query(domain, kind_of(domain).in_few)


def evaluate(window: EpochCounts, domain: ValueDomain, counts_query: CountsQuery) -> Answers:
    """Answer a query about the window of an epoch, or about a sum of several windows.

    >>> import numpy as np
    >>> from dpstream.aggregators.cell_window import CellWindow
    >>> from dpstream.pipeline.values.sets import SetDomain
    >>> from dpstream.randomizers.cell_codes.hashed_rows import HashedRows
    >>> cells = CellWindow(HashedRows.histogram(3), np.array([40.0, 90, 55]), 25.0, 185, 185)
    >>> window = EpochCounts(1, 1, (1,), (), 185, 185, cells)
    >>> found = evaluate(window, SetDomain(("red", "green", "blue"), slots=1), Top(2))
    >>> [(answer.name, answer.value, answer.standard_error) for answer in found.answers]
    [('green', 90.0, 5.0), ('blue', 55.0, 5.0)]

    Raises:
        UnsupportedQueryError: If the job's cells do not support the query.
        QueryError: If no window was released, or no user has a value, so there are no quantiles.
    """
    if window.counts is None:
        raise QueryError("; ".join(map(str, window.suppressed)))
    try:
        return counts_query.evaluate(window.counts.estimates, domain)
    except NoValuesError as error:
        raise QueryError(str(error)) from None


def has_tree(job: DeployedJob) -> bool:
    aggregator = job.aggregator()
    return isinstance(aggregator, CountsCells) and aggregator.ordered


def check_supported(job: DeployedJob, counts_query: CountsQuery) -> CountsQuery:
    """Return the query unchanged; raise `UnsupportedQueryError` if the cells cannot answer it."""
    if counts_query.of_tree and not has_tree(job):
        raise UnsupportedQueryError(
            f"{counts_query.of_tree} require protocol count_min with 'queries: ranges', over "
            f"numbers or points; job {job.name} ({job.protocol}) counts single items. Use --item "
            "or --top"
        )
    return counts_query


def default_counts_query(job: DeployedJob) -> CountsQuery:
    if "--quantile" in job.domain.supported_options and has_tree(job):
        return Quantiles(QUARTILES)
    return Items() if job.domain.size - 1 <= MOST_USUAL else Top(10)
