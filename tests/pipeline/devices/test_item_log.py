"""Test item logs: one row for every item of a user at an epoch."""

from __future__ import annotations

import gzip
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from dpstream.pipeline.devices.item_log import ItemLog, load_item_log
from dpstream.pipeline.devices.item_shares import counts_in
from dpstream.pipeline.devices.rows import BadRowsError, InputError
from dpstream.pipeline.values.durations import parse_duration
from dpstream.pipeline.values.sets import SetDomain
from dpstream.pipeline.values.times import EpochCalendar

DOMAIN = SetDomain(("x", "y", "z"), 2)


def log_of(folder: Path, *rows: str, header: str = "user,epoch,value", **how: Any) -> ItemLog:
    path = folder / "items.csv"
    path.write_text("\n".join([header, *rows]) + "\n")
    return load_item_log(path, domain=DOMAIN, **how)


def held(log: ItemLog) -> list[dict[str, list[int]]]:
    return [
        {user: [v for v in items if v] for user, items in zip(log.users, now.tolist(), strict=True)}
        for now in log.values_by_epoch()
    ]


def test_rows_in_any_order_are_grouped_into_item_sets_per_epoch(tmp_path: Path) -> None:
    log = log_of(tmp_path, "bo,3,z", "al,1,y", "bo,1,x", "al,1,x")
    assert log.users == ("al", "bo")
    assert held(log) == [{"al": [2, 1], "bo": [1]}, {"al": [], "bo": []}, {"al": [], "bo": [3]}]
    assert log.ground_truth(DOMAIN).tolist() == [[2, 1, 0], [0, 0, 0], [0, 0, 1]]
    items, counts = log.counts_at(1)
    assert (items.tolist(), counts.tolist()) == ([1, 2], [2, 1])
    assert [each.tolist() for each in log.counts_at(2)] == [[], []]


def test_only_first_items_up_to_the_limit_are_used(tmp_path: Path) -> None:
    log = log_of(tmp_path, "al,1,z", "al,1,z", "al,1,y", "al,1,x", "bo,1,x", "al,2,x")
    assert held(log) == [{"al": [3, 2], "bo": [1]}, {"al": [1], "bo": []}]
    (warning,) = log.warnings
    assert warning.endswith("1 item from users with more than 2 in an epoch: not used")


def test_bad_item_rows_are_counted_or_skipped(tmp_path: Path) -> None:
    rows = ("al,1,x", "bo,1,w", "bo,one,x", "bo,1", ",1,x")
    with pytest.raises(BadRowsError) as caught:
        log_of(tmp_path, *rows)
    assert caught.value.bad_rows.total == 4
    with pytest.raises(InputError, match="1 bad row with an unreadable user"):
        log_of(tmp_path, *rows, skip_bad_rows=True)
    log = log_of(tmp_path, *rows, skip_bad_rows=True, users=("al", "bo"))
    assert held(log) == [{"al": [1], "bo": []}]
    assert log.bad_rows.total == 4
    assert "4 bad rows skipped" in log.warnings[0]


def test_times_map_to_calendar_epochs(tmp_path: Path) -> None:
    start = datetime(2024, 1, 1, tzinfo=UTC)
    log = log_of(
        tmp_path,
        "al,2024-01-01T23:59:59Z,x",
        "al,2024-01-02T00:00:00Z,y",
        "bo,2023-12-31T23:00:00Z,y",
        header="user,time,value",
        calendar=EpochCalendar(start, parse_duration("1d")),
    )
    assert held(log) == [{"al": [1], "bo": []}, {"al": [2], "bo": []}]
    assert "1 row before epoch 1: not used" in log.warnings[0]


def test_item_counts_are_read_from_plain_or_gzipped_files(tmp_path: Path) -> None:
    path = tmp_path / "counts.csv"
    text = ' Item,COUNT\n"milk, fresh",30\nbread,12.5\n\nrare,0\n'
    for data in (text.encode(), gzip.compress(text.encode())):
        path.write_bytes(data)
        found = counts_in(path)
        assert found is not None
        assert found.tolist() == [30, 12.5]


def test_file_of_user_rows_is_not_read_as_item_counts(tmp_path: Path) -> None:
    path = tmp_path / "input.csv"
    path.write_text("user,epoch,value\nann,1,a\n")
    assert counts_in(path) is None
    path.write_text("")
    assert counts_in(path) is None


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("a,many\n", ":2: got 'a,many'; expected an item and its count"),
        ("a,1\nb,-1\n", ":3: got 'b,-1'; expected an item and its count"),
        ("a,0\n", ": no item has a count above 0"),
    ],
)
def test_invalid_item_counts_are_rejected_with_their_line(
    tmp_path: Path, rows: str, message: str
) -> None:
    path = tmp_path / "counts.csv"
    path.write_text(f"item,count\n{rows}")
    with pytest.raises(InputError) as caught:
        counts_in(path)
    assert str(caught.value) == f"{path}{message}"
