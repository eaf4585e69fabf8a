"""Counts of items as a hint of how unequal they are."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from dpstream.pipeline.devices.item_counts import counts_in, usual_shares
from dpstream.pipeline.devices.item_log import ItemLog, load_item_log
from dpstream.pipeline.devices.rows import InputError
from dpstream.pipeline.values.sets import SetDomain

DOMAIN = SetDomain(("a", "b", "c"), slots=2)


def log_of(path: Path, text: str) -> ItemLog:
    path.write_text(f"user,epoch,value\n{text}")
    return load_item_log(path, domain=DOMAIN, last_epoch=3)


def test_counts_are_read_whatever_the_items(tmp_path: Path) -> None:
    path = tmp_path / "counts.csv"
    text = ' Item,COUNT\n"milk, fresh",30\nbread,12.5\n\nrare,0\n'
    for data in (text.encode(), gzip.compress(text.encode())):
        path.write_bytes(data)
        found = counts_in(path)
        assert found is not None
        assert found.tolist() == [30, 12.5]


def test_an_input_file_is_another_kind(tmp_path: Path) -> None:
    path = tmp_path / "input.csv"
    path.write_text("user,epoch,value\nann,1,a\n")
    assert counts_in(path) is None
    path.write_text("")
    assert counts_in(path) is None


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("a,many\n", ":2: 'a,many' is not an item and its count"),
        ("a,1\nb,-1\n", ":3: 'b,-1' is not an item and its count"),
        ("a,0\n", ": no item has a count above 0"),
    ],
)
def test_wrong_counts_are_refused_with_their_line(tmp_path: Path, rows: str, message: str) -> None:
    path = tmp_path / "counts.csv"
    path.write_text(f"item,count\n{rows}")
    with pytest.raises(InputError) as caught:
        counts_in(path)
    assert str(caught.value) == f"{path}{message}"


def test_shares_of_a_log_are_means_over_its_epochs(tmp_path: Path) -> None:
    # Four users, at epochs 1 and 3: a is held by 3 and 1 of them, c by 1 and 0.
    rows = "ann,1,a\nann,1,c\nbob,1,a\ncid,1,a\ndan,1,\ncid,3,a\n"
    assert usual_shares(log_of(tmp_path / "log.csv", rows)).tolist() == [0.5, 0.125]
    with pytest.raises(InputError, match="nobody holds an item"):
        usual_shares(log_of(tmp_path / "empty.csv", "ann,1,\n"))
