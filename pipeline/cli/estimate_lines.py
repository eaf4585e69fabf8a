"""Estimates as lines of text: a table, CSV, or JSON, each line as soon as there is one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping

from aggregators.found_items import FoundItems
from pipeline.cli.output import number
from pipeline.estimate_csv import csv_lines
from pipeline.estimate_records import EstimateRecord
from pipeline.input.sets import SetDomain
from topics.manifests import Fate

_TABLE = "{:>6} {:>10} {:>8} {:>10} {:>10} {:>9} {:>10} {}"


def table_lines(records: Iterable[EstimateRecord]) -> Iterator[str]:
    """Columns for people; sd is the standard deviation, low and high bound the 95 % interval."""
    yield _TABLE.format(
        "epoch", "estimate", "± sd", "95 % low", "high", "reports", "population", ""
    ).rstrip()
    for record in records:
        estimate = record.headline
        values = (
            (None,) * 4
            if estimate is None
            else (estimate.value, estimate.standard_deviation, estimate.low, estimate.high)
        )
        notes = [] if record.fate is Fate.RELEASED else [record.fate.value]
        notes += estimate.flags if estimate is not None else ()
        yield _TABLE.format(
            record.epoch,
            *map(number, values),
            number(estimate.reports if estimate is not None else 0),
            number(record.population),
            ", ".join(notes),
        ).rstrip()


def json_lines(records: Iterable[EstimateRecord], domain: SetDomain | None = None) -> Iterator[str]:
    """One object a line, as in the topic; with a domain of sets, found items have labels too."""
    for record in records:
        body, found = record.to_json(), record.estimate
        if domain is not None and isinstance(found, FoundItems):
            body["estimate"]["labels"] = [domain.label(item) for item in found.items.tolist()]
        yield json.dumps(body, allow_nan=False)


LINES: Mapping[str, Callable[[Iterable[EstimateRecord]], Iterator[str]]] = {
    "table": table_lines,
    "csv": csv_lines,
    "json": json_lines,
}
"""The formats, by the names that people give."""
