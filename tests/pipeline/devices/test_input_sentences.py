"""What is said about an input: who is enrolled, and what its values count."""

from __future__ import annotations

from pathlib import Path

import pytest

from dpstream.pipeline.devices.change_log import load_change_log
from dpstream.pipeline.devices.item_log import load_value_log
from dpstream.pipeline.devices.produce import value_notices
from dpstream.pipeline.values.numbers import NumericDomain
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


def test_numbers_before_the_first_row_are_named(tmp_path: Path) -> None:
    domain = NumericDomain(0, 80, 8, initial=15)
    (tmp_path / "spent.csv").write_text("user,epoch,value\na,1,70\na,2,15\nb,2,30\nc,1,12\n")
    log = load_value_log(tmp_path / "spent.csv", domain=domain)
    (notice,) = value_notices(log, domain)
    assert notice.startswith("2 of 3 users count in 10:20 at the first epoch")
    (tmp_path / "spent.csv").write_text("user,epoch,value\na,1,70\nb,1,30\n")
    assert not list(value_notices(load_value_log(tmp_path / "spent.csv", domain=domain), domain))
    none = NumericDomain(0, 80, 8, optional=True)
    (tmp_path / "spent.csv").write_text("user,epoch,value\na,1,70\nb,2,30\n")
    log = load_value_log(tmp_path / "spent.csv", domain=none)
    assert "first row" not in " ".join(value_notices(log, none))
