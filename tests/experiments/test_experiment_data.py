"""How the data of shipped experiments are prepared, and what is stated of them.

The small inputs here tell the rules. The facts of the real ones are checked where their public
sources lie in a folder ``shared/data`` beside that of the repository.
"""

from __future__ import annotations

import csv
import gzip
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dpstream.pipeline.devices.change_log import load_change_log
from dpstream.pipeline.values.value_domains import CategoryDomain
from experiments import prepare_askubuntu, prepare_traminer
from experiments.prepare_traminer import TABLES
from tests.support.changes_per_user import changes_per_user

SOURCES = Path(__file__).parents[2].parent / "shared" / "data"
WEEK = 7 * 24 * 3600
BEGIN = 1_231_431_607


def read_rows(path: Path) -> list[tuple[str, ...]]:
    with gzip.open(path, "rt", newline="") as file:
        header, *rows = (tuple(row) for row in csv.reader(file))
    assert header == ("user", "epoch", "value")
    return rows


EVENTS = [
    (30, 7, BEGIN),  # week 1, with the first event: users 3 and 1
    (9, 30, BEGIN + 2 * WEEK - 1),  # week 2: users 2 and 3, who stays active up to week 13
    (9, 9, BEGIN + 13 * WEEK),  # week 14, the first one in which user 2 would not be active
    (7, 30, BEGIN + 14 * WEEK),  # week 15, the last one: users 1 and 3 are back
]


def test_active_is_who_asked_or_answered_in_the_last_12_weeks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, out = tmp_path / "events.txt", tmp_path / "log.csv.gz"
    source.write_text("".join(f"{a} {b} {time}\n" for a, b, time in reversed(EVENTS)))
    prepare_askubuntu.main([str(source), str(out)])
    assert "7 rows" in capsys.readouterr().out
    assert read_rows(out) == [
        # By week, then by user; users 7 9 30 are 1 to 3.
        ("1", "1", "1"),
        ("3", "1", "1"),
        ("2", "2", "1"),
        ("1", "13", "0"),
        ("3", "14", "0"),
        ("1", "15", "1"),
        ("3", "15", "1"),
    ]


def write_lives(path: Path, *codes: str) -> None:
    """A table of biofam with people who are in one state, and then in another one."""
    columns = TABLES[1].columns
    lines = [["id", *columns, "more"]]
    for person, code in enumerate(codes):
        states = [code[0]] * 4 + [code[1]] * (len(columns) - 4)
        lines.append([str(person), *states, "x"])
    path.write_text("".join(",".join(line) + "\n" for line in lines))


def test_a_life_becomes_a_row_for_each_change_of_state(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, out = tmp_path / "biofam.csv", tmp_path / "log.csv.gz"
    write_lives(source, "06", "11")
    prepare_traminer.main([str(source), str(out)])
    assert "3 rows" in capsys.readouterr().out
    assert read_rows(out) == [
        ("1", "1", "parents"),
        ("2", "1", "left"),
        ("1", "5", "left+married+child"),
    ]


def test_more_people_are_drawn_from_the_same_lives(tmp_path: Path) -> None:
    source = tmp_path / "biofam.csv"
    write_lives(source, "06", "11", "17")

    def prepared(*options: str) -> bytes:
        out = tmp_path / "log.csv.gz"
        prepare_traminer.main([str(source), str(out), *options])
        return out.read_bytes()

    assert prepared("--users", "900") == prepared("--users", "900", "--seed", "1")
    assert prepared("--users", "900", "--seed", "2") != prepared("--users", "900")
    log = load_change_log(
        tmp_path / "log.csv.gz", domain=CategoryDomain(tuple(TABLES[1].labels.values()))
    )
    assert len(log.users) == 900
    # A third of them each: 0 to 6, 1 throughout, and 1 to 7.
    begun, ended = (np.bincount(log.values_at(epoch), minlength=9) for epoch in (1, 16))
    assert begun[[1, 2]] == pytest.approx([300, 600], abs=6 * 15)
    assert ended[[2, 7, 8]] == pytest.approx([300, 300, 300], abs=6 * 15)


@pytest.mark.parametrize("main", [prepare_askubuntu.main, prepare_traminer.main])
def test_the_same_source_gives_the_same_bytes_without_name_and_time(
    main: Callable[[list[str]], None], tmp_path: Path
) -> None:
    source = tmp_path / "source"
    if main is prepare_askubuntu.main:
        source.write_text("1 2 3\n")
    else:
        write_lives(source, "06")
    written = []
    for name in ("one.csv.gz", "another.csv.gz"):
        main([str(source), str(tmp_path / name)])
        written.append((tmp_path / name).read_bytes())
    assert written[0] == written[1]
    assert written[0][3:8] == bytes(5), "no flags (such as a file name), time 0"


if SOURCES.is_dir():

    @pytest.mark.verify
    def test_facts_of_askubuntu(tmp_path: Path) -> None:
        source = SOURCES / "askubuntu-a2q" / "sx-askubuntu-a2q.txt.gz"
        out = tmp_path / "log.csv.gz"
        prepare_askubuntu.main([str(source), str(out)])
        log = load_change_log(out)
        assert prepare_askubuntu.__doc__ is not None
        stated = re.sub(r"\s+", " ", prepare_askubuntu.__doc__)
        truth = log.truth()
        assert (len(log.users), truth.max(), truth[0] > 0) == (137_517, 12_824, True)
        assert f"{len(log.users):,} users and 374 weeks; at most {truth.max():,} users" in stated
        at_most = np.cumsum(changes_per_user(log)) / len(log.users)
        assert [f"{at_most[changes]:.1%}" for changes in (2, 4, 8)] == ["79.5%", "91.8%", "98.0%"]

    @pytest.mark.verify
    @pytest.mark.parametrize(
        ("table", "people", "epochs", "changes", "share"),
        [
            ("mvad", 712, 72, 4, "88.9%"),
            ("biofam", 2_000, 16, 3, "99.8%"),
            ("actcal", 2_000, 12, 2, "97.7%"),
        ],
    )
    def test_facts_of_traminer(
        table: str, people: int, epochs: int, changes: int, share: str, tmp_path: Path
    ) -> None:
        source = SOURCES / "traminer" / f"{table}.csv.gz"
        out = tmp_path / "log.csv.gz"
        prepare_traminer.main([str(source), str(out)])
        (labels,) = (known.labels.values() for known in TABLES if known.name == table)
        log = load_change_log(out, domain=CategoryDomain(tuple(labels)))
        assert (len(log.users), log.last_epoch) == (people, epochs)
        # The first state is a change from none.
        at_most = np.cumsum(changes_per_user(log)) / people
        assert f"{at_most[changes + 1]:.1%}" == share
