"""How item logs of shipped experiments are prepared, and what is stated of them."""

from __future__ import annotations

import csv
import gzip
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from experiments import (
    prepare_adult,
    prepare_flights,
    prepare_image,
    prepare_retail,
    prepare_words,
)
from experiments.preparation import labels_path

SOURCES = Path(__file__).parents[2].parent / "shared" / "data"

Main = Callable[[list[str]], None]

SMALL: dict[Main, bytes] = {
    prepare_retail.main: b"3 1 2 \n7\n\n10 9 2 \n",
    prepare_words.main: b"you 50\ni'm 30\nnever 0\n",
    prepare_flights.main: b"delay,distance\n-5,100\n12,200\n",
    prepare_adult.main: b"sex,age,hours_per_week\nMale,39,40\nFemale, 17, 20\n",
    prepare_image.main: b"P5\n3 2\n255\n" + bytes([0, 2, 0, 1, 0, 3]),
}


def prepared(
    main: Main, folder: Path, source: bytes | None = None, *options: str
) -> list[list[str]]:
    """The rows of the log that a script makes."""
    path, out = folder / "source", folder / "log.csv.gz"
    path.write_bytes(SMALL[main] if source is None else source)
    main([str(path), str(out), *options])
    with gzip.open(out, "rt", newline="") as file:
        header, *rows = list(csv.reader(file))
    assert header == ["user", "epoch", "value"]
    assert {row[1] for row in rows} <= {"1"}
    return [[user, value] for user, _, value in rows]


def test_a_user_is_a_basket_with_some_of_its_items(tmp_path: Path) -> None:
    assert prepared(prepare_retail.main, tmp_path) == [
        *(["1", item] for item in "123"),
        ["2", "7"],
        *(["4", item] for item in ("2", "9", "10")),
    ]
    assert labels_path(tmp_path / "log.csv.gz") == tmp_path / "log-items.txt"
    assert (tmp_path / "log-items.txt").read_text().split() == ["1", "2", "3", "7", "9", "10"]
    baskets = b"1 2 3 4\n" * 600
    drawn = prepared(prepare_retail.main, tmp_path, baskets, "--items", "2")
    assert set(Counter(user for user, _ in drawn).values()) == {2}
    assert len({(user, item) for user, item in drawn}) == 1200
    for count in Counter(item for _, item in drawn).values():
        assert count == pytest.approx(300, abs=6 * 13)


def test_a_user_has_a_word_as_often_as_it_is_said(tmp_path: Path) -> None:
    drawn = prepared(prepare_words.main, tmp_path, None, "--users", "800")
    counts = Counter(word for _, word in drawn)
    assert [user for user, _ in drawn] == list(map(str, range(1, 801)))
    assert counts.keys() == {"you", "i'm"}
    assert counts["you"] == pytest.approx(500, abs=6 * 14)
    assert (tmp_path / "log-items.txt").read_text().split() == ["you", "i'm", "never"]


def test_a_user_is_a_row_of_a_table(tmp_path: Path) -> None:
    assert prepared(prepare_flights.main, tmp_path) == [["1", "-5"], ["2", "12"]]
    assert prepared(prepare_adult.main, tmp_path) == [["1", "39;40"], ["2", "17;20"]]


def test_each_unit_of_light_becomes_a_user(tmp_path: Path) -> None:
    assert prepared(prepare_image.main, tmp_path) == [
        *([user, "0;1"] for user in "12"),
        ["3", "1;0"],
        *([user, "1;2"] for user in "456"),
    ]


@pytest.mark.parametrize(
    "main",
    [
        # A million users hold words.
        pytest.param(main, marks=[pytest.mark.verify] if main is prepare_words.main else [])
        for main in SMALL
    ],
)
def test_the_same_source_gives_the_same_bytes(main: Main, tmp_path: Path) -> None:
    written = []
    for _ in range(2):
        prepared(main, tmp_path)
        written.append((tmp_path / "log.csv.gz").read_bytes())
    assert written[0] == written[1]


if SOURCES.is_dir():

    @pytest.mark.verify
    @pytest.mark.parametrize(
        ("main", "source", "users", "rows", "labels"),
        [
            (prepare_retail.main, "retail/retail.dat.gz", 88_162, 549_139, 16_470),
            (prepare_words.main, "words/en_50k.txt.gz", 1_000_000, 1_000_000, 50_000),
            (prepare_flights.main, "flights/flights-200k.csv.gz", 200_000, 200_000, None),
            (prepare_adult.main, "adult/adult.csv.gz", 48_842, 48_842, None),
            (
                prepare_image.main,
                "images/earth-night-lights-1024x512.pgm.gz",
                923_265,
                923_265,
                None,
            ),
        ],
    )
    def test_facts(
        main: Main, source: str, users: int, rows: int, labels: int | None, tmp_path: Path
    ) -> None:
        found = prepared(main, tmp_path, (SOURCES / source).read_bytes())
        assert (len({user for user, _ in found}), len(found)) == (users, rows)
        beside = tmp_path / "log-items.txt"
        assert beside.exists() == (labels is not None)
        if labels is not None:
            assert len(set(beside.read_text().split())) == labels
