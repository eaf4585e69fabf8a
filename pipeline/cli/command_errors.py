"""Map errors of commands to messages and exit codes.

* 0: success.
* 1: failure, an issue found by ``status``, or a difference found by ``diff``.
* 2: the command line, a job file or the input is wrong.
* 130: interrupted by Ctrl-C.

The traceback of an unexpected error is printed.
"""

from __future__ import annotations

import os
import sqlite3
import sys
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import typer

from dpstream.pipeline.errors import FAILED, INTERRUPTED, WRONG_INPUT, DpstreamError, printable
from dpstream.pipeline.kafka.cluster_errors import ANY_ROLE, AccessError
from dpstream.pipeline.parent_watch import send_reason
from dpstream.pipeline.replacements import OPTIONS, REMOVED_COMMANDS
from dpstream.pipeline.whole_files import NO_ROOM

_OUTPUT = "standard output"
# Typer's messages for text where a number is expected.
_NO_NUMBER = {
    "Input should be a valid number, unable to parse string as a number": (
        "expected a number with a decimal point, such as 1.5"
    ),
    "Input should be a valid integer, unable to parse string as an integer": (
        "expected a whole number in digits, such as 10000"
    ),
}

# Roles that run commands; the operator runs all other commands.
_ROLES = {
    "produce": "producer",
    "collect": "collector",
    "serve": "page",
    "estimates": "analyst",
    # The role that can read windows also reads their counts.
    **dict.fromkeys(("query", "diff", "record", "replay"), "recorder"),
}


def _role_of(arguments: Sequence[str], lacking: str) -> str:
    """Return the role that runs a command; access to the resource `lacking` was denied."""
    command, *rest = arguments or ("",)
    job = lacking.partition(".")[0]
    if command == "run":
        return next((each for each in rest if not each.startswith("-")), ANY_ROLE)
    if command == "estimates" and "--smoothed" in rest:
        command = "query"
    if command == "replay" and job not in [
        each for before, each in pairwise(("", *rest)) if before != "--new-name"
    ]:
        # Access to the topics of the replay, not to the replayed ones.
        return "operator"
    return _ROLES.get(command, "operator")


class UsageProblem(DpstreamError):  # noqa: N818 - named after its cause
    """The command line is invalid; the message states what is allowed."""

    exit_code = WRONG_INPUT


def run_command(
    command: Callable[..., Any], arguments: Sequence[str], program: str = "dpstream"
) -> int:
    """Run a command line with a Typer command, and return the exit code."""
    try:
        code = command(args=list(arguments) or ["--help"], prog_name=program, standalone_mode=False)
        sys.stdout.flush()
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except BrokenPipeError:
        _drop_output()
        return FAILED
    except Exception as error:
        if hasattr(error, "format_message"):  # an error of Typer, whose base class varies
            _complain(_usage(error, arguments))
            return WRONG_INPUT
        lacking = error.name if isinstance(error, AccessError) else ""
        known = explain(error, _role_of(arguments, lacking))
        if known is None:
            raise
        message, code = known
        _complain(message)
        try:
            sys.stdout.flush()
        except OSError:
            _drop_output()
    return code if isinstance(code, int) else 0


def _drop_output() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def explain(error: Exception, role: str = ANY_ROLE) -> tuple[str, int] | None:
    """Return the message and exit code for an error; None if the error is unexpected."""
    if isinstance(error, AccessError) and role != ANY_ROLE:
        return error.asking_for(role), error.exit_code
    if isinstance(error, DpstreamError):
        return str(error), error.exit_code
    return _explain_others(error)


def _explain_others(error: Exception) -> tuple[str, int] | None:
    # Imported only now: few commands need all of them, and Kafka's clients load slowly.
    from concurrent.futures.process import BrokenProcessPool

    from kafka.errors import KafkaError

    from dpstream.aggregators.counts import UnsupportedQueryError

    match error:
        case UnsupportedQueryError():
            return str(error), WRONG_INPUT
        case KafkaError():
            return f"unexpected response from Kafka: {error}. Check that the cluster is up", FAILED
        case sqlite3.Error():
            return f"cannot use a producer's state: {error}", FAILED
        case BrokenProcessPool():
            return "a process that ran trials was killed, possibly because memory ran out", FAILED
        case OSError() if error.filename is not None:
            return f"{error.filename}: {error.strerror or error}", FAILED
        case OSError() if error.errno in NO_ROOM:
            # An error from writing a file contains the file's name; one without a name is from
            # standard output.
            return f"{_OUTPUT}: {error.strerror}; the output is truncated", FAILED
    return None


def _usage(error: Any, arguments: Sequence[str]) -> str:
    context = getattr(error, "ctx", None)
    command = "dpstream" if context is None else context.command_path
    # Typer's prefix for invalid choices.
    message = error.format_message().replace("Value error, ", "")
    for unhelpful, helpful in _NO_NUMBER.items():
        message = message.replace(unhelpful, helpful)
    named, option = next(iter(arguments), ""), getattr(error, "option_name", None)
    if command == "dpstream" and named in REMOVED_COMMANDS:
        message = f"'{named}' was removed: {REMOVED_COMMANDS[named]}"
    elif (named, option) in OPTIONS:
        message = f"No such option: {option}: {OPTIONS[named, option]}"
    return f"{message}\nsee {command} --help"


def _complain(message: str) -> None:
    send_reason(message)
    print(f"error: {printable(message)}", file=sys.stderr)
