"""What a supervisor writes, and what it passes on from its workers."""

from __future__ import annotations

import io
import json

from dpstream.pipeline.operations.supervisor.lines import Lines


def test_lines_of_workers_pass_through_and_others_become_lines() -> None:
    stream = io.StringIO()
    lines = Lines("shuffle", "w1", stream=stream)
    lines.relay("students", "12:00:00 students shuffle w1: partitions: 0")
    lines.relay("students", "error: there is no noise key")
    lines.info(None, "stopped")
    first, second, third = stream.getvalue().splitlines()
    assert first == "12:00:00 students shuffle w1: partitions: 0"
    assert second.endswith(" students shuffle w1: there is no noise key")
    assert third.endswith(" shuffle w1: stopped")


def test_every_line_is_json_whatever_a_worker_prints() -> None:
    stream = io.StringIO()
    lines = Lines("shuffle", "w1", as_json=True, stream=stream)
    lines.relay("students", '{"message": "partitions: 0"}')
    lines.relay("students", "Traceback (most recent call last):")
    lines.warning("students", "the worker has ended")
    lines.info(None, "stopped")
    found = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [line["message"] for line in found] == [
        "partitions: 0",
        "Traceback (most recent call last):",
        "the worker has ended",
        "stopped",
    ]
    assert [line.get("job") for line in found[1:]] == ["students", "students", None]
