"""Run ``dpstream`` in a process that kills itself during or after its first write of a window.

Arguments: number of actions of the write before the kill, or -1 for all; then the arguments of
``dpstream``.
"""

from __future__ import annotations

import os
import signal
import sys

import pytest

from dpstream.pipeline.actions import Steps
from dpstream.pipeline.cli import main
from dpstream.pipeline.stages.decision_log import Decision
from dpstream.pipeline.stages.multisets import MessageMultiset
from dpstream.pipeline.stages.window_writer import WindowWriter


def die_after(actions: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kill this process during its first write of a window."""
    write = WindowWriter.write

    def write_and_die(
        writer: WindowWriter, decision: Decision, words: MessageMultiset
    ) -> Steps[None]:
        steps, reply, left = write(writer, decision, words), None, actions
        while left:
            try:
                reply = yield steps.send(reply)
            except StopIteration:
                break
            left -= 1
        os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(WindowWriter, "write", write_and_die)


if __name__ == "__main__":
    with pytest.MonkeyPatch.context() as patched:
        die_after(int(sys.argv[1]), patched)
        sys.exit(main(sys.argv[2:]))
