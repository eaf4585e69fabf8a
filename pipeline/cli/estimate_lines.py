"""Estimates as lines of text: a table or JSON, each line as soon as there is one."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from pipeline.cli.output import number
from pipeline.stages.estimate_records import EstimateRecord
from pipeline.values.value_domains import BOOLEAN, ValueDomain

_TABLE = "{:>6} {:>10} {:>8} {:>10} {:>10} {:>9} {:>10} {}"


def table_lines(records: Iterable[EstimateRecord]) -> Iterator[str]:
    """Columns for people; sd is the standard deviation, low and high bound the 95 % interval."""
    yield _TABLE.format(
        "epoch", "estimate", "± sd", "95 % low", "high", "reports", "population", ""
    ).rstrip()
    for record in records:
        estimate = record.summary
        values = (estimate.value, estimate.standard_deviation, estimate.low, estimate.high)
        yield _TABLE.format(
            record.epoch,
            *map(number, values),
            number(estimate.reports),
            number(record.population),
            ", ".join(record.notes),
        ).rstrip()


def json_lines(records: Iterable[EstimateRecord], domain: ValueDomain = BOOLEAN) -> Iterator[str]:
    """One object a line, as in the topic; items that were found have labels too."""
    for record in records:
        body, estimate = record.to_json(), record.estimate
        if estimate is not None and estimate.found_above is not None:
            body["estimate"]["labels"] = domain.labels(estimate.numbers)
        yield json.dumps(body, allow_nan=False)
