"""Test that topic contents cannot control the terminal of any command that prints them."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.text import Text

from dpstream.pipeline.cli.output import PrintableConsole
from dpstream.pipeline.errors import one_line, printable, printable_json
from dpstream.pipeline.jobs.budget_declarations import BudgetDeclaration
from dpstream.pipeline.jobs.budgets import Charge
from dpstream.pipeline.operations.supervisor.supervise import Lines
from dpstream.topics.names import JOBS_TOPIC, Role
from dpstream.topics.records import DeadLetter, Reason
from tests.support.commands import Commands, Result
from tests.support.memory_cluster import MemoryCluster

HOSTILE = "evil\x1b[2J\x07\x9b31m\u202ename\x7f\nerror: all is lost"
ALLOWED = re.compile(r"[\n]|[^\x00-\x1f\x7f-\x9f\u202a-\u202e]")


def expect_harmless(said: Result) -> None:
    for text in (said.output, said.errors):
        assert "".join(ALLOWED.findall(text)) == text, repr(text)
    assert "evil" in said.output + said.errors, "the hostile text must be shown"


def test_names_in_the_jobs_topic_are_escaped(dpstream: Commands, cluster: MemoryCluster) -> None:
    cluster.partitions[JOBS_TOPIC] = 1
    cluster.append(JOBS_TOPIC, b"of another version", key=HOSTILE.encode())
    cluster.append(JOBS_TOPIC, b"no text at all", key=b"\xff\x1b")
    for command in (["list"], ["list", "--json"], ["status"], ["status", "--json"]):
        expect_harmless(dpstream(*command))


@pytest.mark.parametrize("horizons", [1, None])
def test_names_in_charges_and_budget_declarations_are_escaped(
    dpstream: Commands, cluster: MemoryCluster, job_file: Path, horizons: int | None
) -> None:
    cluster.partitions[JOBS_TOPIC] = 1
    charge = Charge("small", HOSTILE, "ab" * 16, 3.0, 0.0, 5, horizons)
    declared = BudgetDeclaration("small", 3.0, 0.0, HOSTILE, HOSTILE, 5)
    for record in (charge, declared):
        cluster.append(JOBS_TOPIC, record.to_bytes(), key=record.key)
    for options in ([], ["--dry-run"], ["--dry-run", "--json"]):
        said = dpstream("deploy", job_file, *options)
        assert said.code == 1
        expect_harmless(said)
        assert "\nerror: all" not in said.errors, "it must not start a new line"


def test_dead_letter_details_are_escaped(
    dpstream: Commands, cluster: MemoryCluster, job_file: Path
) -> None:
    assert dpstream("deploy", job_file).code == 0
    letter = DeadLetter("small.reports", 0, 1, Reason.EPOCH, HOSTILE, b"x")
    value, headers = letter.to_record()
    place = f"small.{Role.DEAD_LETTERS}"
    offset = cluster.append(place, value)
    held = cluster.records[place, 0]
    held[offset] = replace(held[offset], headers=tuple(headers))
    expect_harmless(dpstream("dead-letters", "small"))
    listed = dpstream("dead-letters", "small", "--json")
    expect_harmless(listed)
    assert listed.json[0]["detail"] == HOSTILE, "JSON must contain the original text"


def test_console_writes_its_own_colors_and_escapes_color_codes_in_texts() -> None:
    file = io.StringIO()
    console = PrintableConsole(file=file, force_terminal=True, color_system="standard")
    console.print(Text("evil\x1b[31m\x9b", "bold"))
    assert (
        file.getvalue()
        == "\x1b[1mevil\N{REPLACEMENT CHARACTER}[31m\N{REPLACEMENT CHARACTER}\x1b[0m\n"
    )


def test_supervisor_log_lines_are_escaped() -> None:
    file = io.StringIO()
    lines = Lines("shuffle", "w1", as_json=False, stream=file)
    lines.warning(HOSTILE, f"job {HOSTILE} was deployed by an incompatible version")
    lines.relay("small", f"12:00:00 small shuffle w1: {HOSTILE}")
    for line in file.getvalue().splitlines():
        assert line.isprintable(), repr(line)


def test_escaping_preserves_json_values_and_ordinary_text() -> None:
    for value in (HOSTILE, "\ud800 \U000e0001", "Zürich 東京 👩‍🔬", ""):
        text = json.dumps({"a": value}, ensure_ascii=False)
        assert json.loads(printable_json(text)) == {"a": value}
        assert "".join(ALLOWED.findall(printable_json(text))) == printable_json(text)
        assert printable(value).replace("\n", "").isprintable()
        assert one_line(value).isprintable()
    for text in ("Zürich 東京", "two\nlines"):
        assert printable(text) == text
