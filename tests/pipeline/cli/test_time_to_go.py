"""What a progress bar says of the time that is left."""

from __future__ import annotations

from rich.progress import Progress

from dpstream.pipeline.cli.inputs import TimeToGo


def test_what_is_left_takes_as_long_as_what_is_done() -> None:
    now, column = [0.0], TimeToGo()
    progress = Progress(column, get_time=lambda: now[0], disable=True)
    bar = progress.add_task("steps", total=10.0)

    def told() -> str:
        return column.render(progress.tasks[0]).plain

    progress.start_task(bar)
    now[0] = 5.0
    assert told() == ""
    now[0] = 20.0
    progress.update(bar, advance=2.0)
    assert told() == "about 0:01:20 to go"
    # It goes down during a step, and not below nothing.
    now[0] = 50.0
    assert told() == "about 0:00:50 to go"
    now[0] = 500.0
    assert told() == "about 0:00:00 to go"
