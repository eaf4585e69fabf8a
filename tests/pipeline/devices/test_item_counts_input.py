"""Test files with item counts, from which `plan` predicts errors."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from dpstream.pipeline.devices.item_shares import counts_in
from dpstream.pipeline.devices.rows import InputError


def test_item_counts_are_read_plain_or_gzipped(tmp_path: Path) -> None:
    path = tmp_path / "counts.csv"
    text = ' Item,COUNT\n"milk, fresh",30\nbread,12.5\n\nrare,0\n'
    for data in (text.encode(), gzip.compress(text.encode())):
        path.write_bytes(data)
        found = counts_in(path)
        assert found is not None
        assert found.tolist() == [30, 12.5]


def test_input_file_is_not_read_as_item_counts(tmp_path: Path) -> None:
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
