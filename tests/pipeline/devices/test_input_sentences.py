"""What is said about an input: who is enrolled, and what its values count."""

from __future__ import annotations

from pathlib import Path

import pytest

from dpstream.pipeline.devices.change_log import load_change_log
from dpstream.pipeline.devices.produce import value_notices
from dpstream.pipeline.values.value_domains import BOOLEAN
from tests.support.commands import Commands

_EXACT = "the number of users who ever had one"
_EVER = "no user's value returns to 0 in the input"


@pytest.mark.parametrize(
    ("rows", "exact", "ever"),
    [
        pytest.param("a,1,1\na,3,1\nb,2,1\n", True, True, id="events"),
        pytest.param("a,1,1\na,2,0\nb,2,1\nb,3,0\n", True, False, id="activity of holders"),
        pytest.param("a,1,1\na,2,0\nb,1,0\n", False, False, id="activity of all"),
        pytest.param("a,2,1\nb,1,0\n", False, True, id="switched on once"),
        pytest.param("a,1,1\nb,1,1\n", True, False, id="one epoch"),
        pytest.param("a,1,0\nb,1,0\n", False, False, id="nobody"),
    ],
)
def test_input_sentences_name_what_is_published_and_counted(
    tmp_path: Path, rows: str, exact: bool, ever: bool
) -> None:
    (tmp_path / "changes.csv").write_text(f"user,epoch,value\n{rows}")
    log = load_change_log(tmp_path / "changes.csv", last_epoch=4)
    said = " ".join(value_notices(log, BOOLEAN))
    assert (_EXACT in said, _EVER in said) == (exact, ever)


def test_population_is_not_of_holders_with_a_user_list(tmp_path: Path) -> None:
    (tmp_path / "changes.csv").write_text("user,epoch,value\na,1,1\n")
    log = load_change_log(tmp_path / "changes.csv", users=("a", "b"))
    assert not list(value_notices(log, BOOLEAN))


def test_simulate_says_what_an_event_log_counts(
    dpstream: Commands, job_file: Path, tmp_path: Path
) -> None:
    (tmp_path / "events.csv").write_text("user,epoch,value\na,1,1\na,3,1\nb,2,1\n")
    said = dpstream("simulate", job_file, "--input", tmp_path / "events.csv")
    text = " ".join(said.output.split())
    assert _EVER in text
    assert _EXACT in text
