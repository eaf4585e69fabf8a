"""Test input format flags, which override the job file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import Commands
from tests.support.small_run import job_text, write_changes


@pytest.fixture
def changes(tmp_path: Path) -> Path:
    return write_changes(tmp_path / "changes.csv")


@pytest.fixture
def foreign(changes: Path) -> Path:
    text = changes.read_text().replace("user,epoch,value", "Matrikel,Woche,Stand")
    path = changes.with_name("foreign.csv")
    path.write_bytes(text.replace(",1\n", ",ja\n").replace(",", ";").encode("utf-16"))
    return path


FLAGS = ["--separator", ";", "--column", "user=Matrikel", "--column", "epoch=woche"]
SECTION = "input: {columns: {value: Stand, user: nobody}, true: [ja], separator: tab}\n"


def epochs_of(result: Any) -> list[dict[str, Any]]:
    assert result.code == 0, result.errors
    epochs: list[dict[str, Any]] = result.json["epochs"]
    return epochs


def test_flags_override_the_input_section(
    dpstream: Commands, job_file: Path, changes: Path, foreign: Path
) -> None:
    seeded = ("--seed", 7, "--json")
    plain = epochs_of(dpstream("simulate", job_file, "--input", changes, *seeded))
    job_file.write_text(job_text() + SECTION)
    result = dpstream("simulate", job_file, "--input", foreign, *seeded, *FLAGS)
    assert epochs_of(result) == plain
    assert result.errors == f"{foreign}: read as UTF-16, according to its byte order mark\n"
    result = dpstream("simulate", job_file, "--input", foreign, *seeded)
    assert result.code == 2
    assert "Use --separator ';'" in result.errors


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--separator", ""], '--separator: "" is not allowed; expected one character, such as'),
        (["--column", "wer=x"], "--column: unknown key; allowed: user, value, epoch, time"),
        (["--time-format", "x"], '--time-format: "x" is not allowed; expected iso, unix (seconds)'),
        (["--duplicates", "x"], '--duplicates: "x" is not allowed; expected first, last, largest'),
        (["--clamp"], "input: clamp requires numbers with a range, but"),
    ],
)
def test_invalid_flag_is_rejected(
    dpstream: Commands, job_file: Path, changes: Path, flags: list[str], message: str
) -> None:
    result = dpstream("simulate", job_file, "--input", changes, *flags)
    assert (result.code, result.output) == (2, "")
    assert message in result.errors
