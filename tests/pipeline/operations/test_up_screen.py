"""What a run looks like: a table that fits the terminal, and lines everywhere else."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from dpstream.pipeline.devices.truths import CountedTruths
from dpstream.pipeline.operations.up.outcome import NOT_PRIVATE
from dpstream.pipeline.operations.up.progress import Progress
from dpstream.pipeline.operations.up.screen import (
    LineScreen,
    LiveScreen,
    Part,
    View,
    draw,
    render,
    render_all,
)
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


def test_the_table_shows_estimate_interval_truth_and_reports(view: View) -> None:
    assert view.progress is not None
    text = as_text(view, 100, 40)
    row = view.progress.rows()[-1]
    line = next(line for line in text.splitlines() if line.strip().startswith(f"{EPOCHS} "))
    low, high = row.estimate.low, row.estimate.high
    assert low is not None
    assert high is not None
    for cell in (f"{row.estimate.value:,.0f}", f"{low:,.0f} to {high:,.0f}", "200", "●"):
        assert cell in line
    assert f"{row.reports:,}" in line
    assert f"epoch {EPOCHS} of {EPOCHS}" in text
    assert NOT_PRIVATE in text
    assert "shuffle starting" in text


@pytest.mark.parametrize("width", [80, 99, 100, 160])
@pytest.mark.parametrize("height", [12, 24, 60])
def test_the_screen_fits_the_terminal(view: View, width: int, height: int) -> None:
    lines = as_text(view, width, height).splitlines()
    assert len(lines) <= max(height - 1, 12)
    assert max(map(len, lines)) <= width
    assert any(line.strip().startswith(f"{EPOCHS} ") for line in lines)
    assert not any("…" in line for line in lines[3:])


@pytest.mark.parametrize("state", ["starting", "finished"])
def test_what_the_processes_do_fits_80_columns(view: View, state: str) -> None:
    names = ("shuffle", "aggregate", "publish", "produce")
    parts = tuple(Part(name, state) for name in names)
    line = as_text(replace(view, parts=parts), 80, 24).splitlines()[1]
    assert [line.count(f"{name} {state}") for name in names] == [1, 1, 1, 1]
    behind = (Part("shuffle", "running", "1,234 behind"), Part("publish", "running"))
    line = as_text(replace(view, parts=behind), 80, 24).splitlines()[1]
    assert line.rstrip() == "● shuffle 1,234 behind  ● publish"


def test_an_epoch_without_reports_is_marked(view: View) -> None:
    line = next(
        line for line in as_text(view, 100, 40).splitlines() if line.strip().startswith("11 ")
    )
    assert "empty" in line


def test_before_there_are_estimates_it_says_what_is_done(view: View) -> None:
    early = replace(view, activity="starting Apache Kafka", progress=None)
    assert "starting Apache Kafka" in as_text(early, 80, 24)


def test_lines_name_each_activity_once_and_end_with_the_last_epoch(view: View) -> None:
    output = io.StringIO()
    with LineScreen(Console(file=output, width=80)) as screen:
        for done in range(3):
            screen.show(replace(view, activity=f"fetching: {done} of 3", progress=None))
        screen.show(view)
        screen.show(view)
        screen.say("shuffle has ended")
    lines = output.getvalue().splitlines()
    assert lines[0] == "fetching: 0 of 3"
    assert [line.split()[1] for line in lines[1:-1]] == [str(n) for n in range(1, EPOCHS + 1)]
    assert f"truth ({NOT_PRIVATE}) {USERS}" in lines[-2]
    assert lines[-1] == "shuffle has ended"


def test_a_terminal_is_left_with_the_last_table(view: View) -> None:
    output = io.StringIO()
    console = Console(file=output, width=100, height=30, force_terminal=True)
    with LiveScreen(console) as screen:
        screen.show(replace(view, activity="starting", progress=None))
        screen.say("a word in between")
        screen.show(view)
    text = output.getvalue()
    assert "a word in between" in text
    assert f"epoch {EPOCHS} of {EPOCHS}" in text.rpartition("a word in between")[2]


def test_what_lies_outside_the_picture_is_drawn_at_its_edge() -> None:
    assert draw(low=-5, value=-2, high=20, truth=30, scale=10, width=6) == "●────┊"
    assert draw(low=None, value=None, high=None, truth=5, scale=10, width=3) == " ┊ "
    assert draw(low=0, value=0, high=0, truth=0, scale=0, width=2) == "● "


@pytest.mark.parametrize("height", [24, 40])
def test_two_jobs_stand_one_below_the_other(view: View, height: int) -> None:
    console = Console(record=True, width=100, height=height, file=io.StringIO())
    other = replace(view, title="other  epsilon 1", parts=())
    console.print(render_all([view, other], 100, height))
    text = console.export_text()
    assert len(text.splitlines()) <= max(height, 26)
    assert text.index("small  epsilon 2") < text.index("other  epsilon 1")
    assert text.count(f"epoch {EPOCHS} of {EPOCHS}") == 2


def test_lines_of_two_jobs_begin_with_their_names(view: View) -> None:
    output = io.StringIO()
    other = replace(view, title="other  epsilon 1")
    with LineScreen(Console(file=output, width=80)) as screen:
        screen.show(replace(view, activity="deploying", progress=None), other)
        screen.show(view, other)
    lines = output.getvalue().splitlines()
    assert lines[0] == "small: deploying"
    for name in ("small", "other"):
        epochs = [line for line in lines if line.startswith(f"{name}: epoch ")]
        assert len(epochs) == EPOCHS
