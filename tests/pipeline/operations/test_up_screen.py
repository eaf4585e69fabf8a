"""What a run looks like: a table that fits the terminal, and lines everywhere else."""

import io

import pytest
from rich.console import Console

from dpstream.pipeline.devices.truths import CountedTruths
from dpstream.pipeline.operations.up.progress import Progress
from dpstream.pipeline.operations.up.screen import Part, View, render
from tests.support.small_run import EPOCHS, USERS, run_small_job


@pytest.fixture(scope="module")
def view(tmp_path_factory: pytest.TempPathFactory) -> View:
    run = run_small_job(tmp_path_factory.mktemp("run"), silent=frozenset({11}))
    progress = Progress(run.job, CountedTruths(run.truth))
    for role, value in run.records:
        progress.apply(role, value)
    parts = (Part("kafka", "running", "127.0.0.1:1"), Part("shuffle", "starting"))
    return View("small  epsilon 2", "", parts, USERS, progress)


def as_text(view: View, width: int, height: int) -> str:
    console = Console(record=True, width=width, height=height, file=io.StringIO())
    console.print(render(view, width, height))
    return console.export_text()


@pytest.mark.parametrize("width", [80, 99, 100, 160])
@pytest.mark.parametrize("height", [12, 24, 60])
def test_the_screen_fits_the_terminal(view: View, width: int, height: int) -> None:
    lines = as_text(view, width, height).splitlines()
    assert len(lines) <= max(height - 1, 12)
    assert max(map(len, lines)) <= width
    assert any(line.strip().startswith(f"{EPOCHS} ") for line in lines)
    assert not any("…" in line for line in lines[3:])
