"""Rows of the results of jobs with measures."""

from __future__ import annotations

from typing import Any

from dpstream.pipeline.jobs.job_files import make_job
from dpstream.pipeline.results.measure_rows import MeasureRow, rows_of

PLAN = {"plan": {"values": ["free", "pro"]}}
SHUFFLED = {"trust": "shuffle", "parameters": {"epsilon": 1, "delta": 1e-6}}
SHUFFLED |= {"shuffle": {"minimum": 1_000}}


def rows(**keys: Any) -> tuple[MeasureRow, ...]:
    given = {
        "name": "app",
        "epochs": {"count": 12, "start": "2026-01-01", "length": "P1M"},
        "parameters": {"epsilon": 4},
        "measures": {"mau": {"type": "active"}},
    }
    return rows_of(make_job(given | keys))


def test_a_single_measure_has_one_row_or_one_per_label() -> None:
    assert rows() == (MeasureRow("mau", None, {}, (1,)),)
    visits = rows(measures={"visits": {"type": "count", "buckets": [0, 1, 5]}})
    assert [row.label for row in visits] == ["visits=0", "visits=1 to 4", "visits=5 and more"]


def test_totals_and_margins_are_sums_of_private_cells() -> None:
    crossed = {**PLAN, "tier": {"values": ["x"]}}
    found = rows(**SHUFFLED, attributes=crossed, by=["plan", ["plan", "tier"]])
    by_label = {row.label: row.items for row in found}
    # Cells are in the order no, yes; plan none, other, free, pro; tier none, other, x.
    assert by_label["mau=no"] == tuple(range(1, 13))
    assert by_label["mau"] == tuple(range(13, 25))
    assert by_label["mau: plan=pro"] == (22, 23, 24)
    assert by_label["mau: plan=pro, tier=x"] == (24,)
    assert len(found) == 2 * (1 + 4 + 12)


def test_rows_of_panels_are_their_own_items() -> None:
    public = {"os": {"values": ["ios"], "public": True}}
    measures = {"wau": {"type": "active"}, "mau": {"type": "active", "within": 4}}
    found = rows(measures=measures, attributes=public, by=["os"])
    assert [(row.label, row.items) for row in found][:3] == [
        ("wau", (1,)),
        ("wau: os=ios", (2,)),
        ("wau: os=other", (3,)),
    ]
    assert (
        rows_of(
            make_job(
                {
                    "name": "a",
                    "protocol": "value_stream",
                    "parameters": {"epsilon": 1, "max_changes": 1},
                    "epochs": {"count": 2},
                }
            )
        )
        == ()
    )
