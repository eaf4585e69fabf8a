"""What people are told when a command fails, and its exit code.

0: all is well. 1: it failed, ``status`` found something wrong, or ``diff`` a difference. 2: command
line, job file or input is wrong. 130: interrupted by Ctrl-C. An error that nobody expected keeps
its traceback.
"""

from __future__ import annotations

import os
import sqlite3
import sys
from collections.abc import Sequence
from typing import Any

import typer

from pipeline.printable import printable

FAILED = 1
WRONG_INPUT = 2
INTERRUPTED = 130


class UsageProblem(Exception):  # noqa: N818 - an error is what it leads to
    """The command line asks for something that cannot be; the message says what can."""


def run_command(app: typer.Typer, arguments: Sequence[str]) -> int:
    """Run a command line; returns the exit code."""
    try:
        code = app(args=list(arguments) or ["--help"], prog_name="dpstream", standalone_mode=False)
        sys.stdout.flush()
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except BrokenPipeError:
        # Python flushes once more at its end, and would complain then.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except Exception as error:
        if hasattr(error, "format_message"):  # Typer's, whichever of its bases there is
            _complain(_usage(error))
            return WRONG_INPUT
        known = explain(error)
        if known is None:
            raise
        message, code = known
        _complain(message)
    return code if isinstance(code, int) else 0


def explain(error: Exception) -> tuple[str, int] | None:
    """What to say about an error and the exit code; None for one that nobody expected."""
    # Imported only now: most of them stand beside things that take long to import.
    from concurrent.futures.process import BrokenProcessPool

    from kafka.errors import KafkaError

    from pipeline.budgets import BudgetError
    from pipeline.client_properties import ConnectionSettingsError
    from pipeline.cluster import ClusterError
    from pipeline.connection import NoClusterError
    from pipeline.deployments import DeploymentError
    from pipeline.epoch_counts import NoCountsError
    from pipeline.input.rows import InputError
    from pipeline.job_problems import JobError
    from pipeline.local_kafka import LocalKafkaError
    from pipeline.noise_keys import NoiseKeyError
    from pipeline.producer import ProducerError
    from pipeline.replay.sources import ReplayError
    from pipeline.smoothing import SmoothingError
    from pipeline.state import FolderInUse
    from pipeline.up.processes import ProcessError
    from pipeline.workers.errors import WorkerError
    from topics.recording_index import RecordingError

    if isinstance(
        error, UsageProblem | JobError | InputError | ConnectionSettingsError | NoiseKeyError
    ):
        return str(error), WRONG_INPUT
    if isinstance(
        error,
        ClusterError
        | NoClusterError
        | BudgetError
        | DeploymentError
        | LocalKafkaError
        | NoCountsError
        | ProcessError
        | ProducerError
        | RecordingError
        | ReplayError
        | SmoothingError
        | FolderInUse
        | WorkerError,
    ):
        return str(error), FAILED
    if isinstance(error, KafkaError):
        return f"Kafka does not answer as it should: {error}; is the cluster up?", FAILED
    if isinstance(error, sqlite3.Error):
        return f"cannot use the state of a producer: {error}", FAILED
    if isinstance(error, BrokenProcessPool):
        return "a process that ran trials was killed: is there too little memory?", FAILED
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}", FAILED
    return None


def _usage(error: Any) -> str:
    context = getattr(error, "ctx", None)
    command = "dpstream" if context is None else context.command_path
    # Typer puts it before what is wrong with a choice.
    message = error.format_message().replace("Value error, ", "")
    return f"{message}\nsee {command} --help"


def _complain(message: str) -> None:
    print(f"error: {printable(message)}", file=sys.stderr)
