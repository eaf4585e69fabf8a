"""The meaning of an input's columns, for the same events written in many ways."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpstream.pipeline.devices.bad_rows import InputError
from dpstream.pipeline.jobs.input_formats import AS_IT_IS
from dpstream.pipeline.planning.input_profile import InputProfile, profile_input
from dpstream.pipeline.values.times import microseconds
from tests.support.event_files import NAMES, TIMES, LoggedEvent, made_events, write_events

EVENTS = made_events(users=80)


def assert_profile_is_of(profile: InputProfile, events: list[LoggedEvent]) -> None:
    assert profile.users == len({each.user for each in events})
    assert profile.moments.tolist() == [microseconds(each.time) for each in events]
    assert profile.events == Counter(each.event for each in events)
    assert [column.users for column in profile.labels] == [
        Counter({each.user: each.os for each in events}.values())
    ]
    (column,) = profile.numbers
    expected = [np.nan if each.seconds is None else each.seconds for each in events]
    np.testing.assert_array_equal(column.numbers, expected)
    assert column.events == ("leave",)
    assert profile.labels[0].several == 0.0


@settings(max_examples=40)
@given(
    names=st.sampled_from(NAMES),
    order=st.permutations(range(5)).map(tuple),
    times=st.sampled_from(sorted(TIMES)),
    form=st.sampled_from(
        [
            ("csv", ","),
            ("csv", ";"),
            ("txt", "\t"),
            ("csv.gz", "|"),
            ("jsonl", ""),
            ("jsonl.gz", ""),
            ("parquet", ""),
        ]
    ),
    decimal=st.sampled_from(".,"),
    marked=st.booleans(),
)
def test_the_same_events_have_the_same_profile_in_any_form(
    names: tuple[str, ...],
    order: tuple[int, ...],
    times: str,
    form: tuple[str, str],
    decimal: str,
    marked: bool,
) -> None:
    suffix, separator = form
    if separator == "," or "jsonl" in suffix:
        decimal = "."
    with TemporaryDirectory() as folder:
        path = write_events(
            Path(folder) / f"log.{suffix}",
            EVENTS,
            names=names,
            order=order,
            times=times,
            separator=separator,
            decimal=decimal,
            encoding="utf-8-sig" if marked else "utf-8",
        )
        profile = profile_input(str(path))
    assert_profile_is_of(profile, EVENTS)
    assert profile.bad == 0


def test_bad_rows_are_counted_and_left_out(tmp_path: Path) -> None:
    extra = ("u1,yesterday,open,ios,", ",2026-01-05T00:00Z,open,ios,", "too,few", '"u2')
    path = write_events(tmp_path / "log.csv", EVENTS, extra=extra)
    profile = profile_input(str(path))
    assert profile.bad == len(extra)
    assert_profile_is_of(profile, EVENTS)


def test_another_encoding_is_detected(tmp_path: Path) -> None:
    names = ("Schlüssel", "Zeitpunkt", "event", "os", "seconds")
    path = write_events(tmp_path / "log.csv", EVENTS, names=names, encoding="cp1252")
    path.write_bytes(path.read_bytes().replace(b"android", "Ändroid".encode("cp1252")))
    profile = profile_input(str(path))
    assert profile.input_format.encoding == "cp1252"
    assert "Ändroid" in profile.labels[0].users
    assert profile.input_format.columns.user == "Schlüssel"


def test_a_log_of_changes_has_a_value_column(tmp_path: Path) -> None:
    path = tmp_path / "changes.csv"
    path.write_text("user,epoch,value\nann,1,0\nbob,2,1\nann,3,1\n")
    profile = profile_input(str(path))
    assert (profile.value, profile.has_times, profile.users) == ("value", False, 2)
    assert profile.texts == {"1": 2, "0": 1}


def test_what_is_stated_is_taken(tmp_path: Path) -> None:
    path = write_events(tmp_path / "log.csv", EVENTS, times="german")
    stated = AS_IT_IS.with_changes({"columns": {"user": "os"}, "time_format": "%d.%m.%Y %H:%M"})
    profile = profile_input(str(path), stated)
    assert profile.users == 3
    assert profile.places[0] == ("user", "os", "as stated")


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("user,when,os\nann,soon,ios\nann,later,web\n", "when has times such as 'soon'"),
        ("a,b\n1,2\n3,4\n", "--column time=NAME"),
        ("time,os,os\n2026-01-01,a,b\n", "'os' occurs twice"),
        ("time,pi\n2026-01-01,1.5\n2026-01-02,2.5\n", "--column user=NAME"),
        ("user,time\n", "no usable rows"),
        ("", "names of the columns"),
        ("[1]\n", "names of the columns"),
        ('{"user": 1}\n', "no column of times"),
    ],
)
def test_unusable_input_is_refused_with_a_remedy(tmp_path: Path, text: str, part: str) -> None:
    path = tmp_path / "log.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=r"log\.csv") as raised:
        profile_input(str(path))
    assert part in str(raised.value)
