"""Test exit codes of errors that end a command, and that all others are handled."""

from __future__ import annotations

import ast
import importlib
import inspect
import pickle
import pkgutil
from collections.abc import Iterator

import pytest

import dpstream.aggregators
import dpstream.pipeline
import dpstream.randomizers
import dpstream.topics
from dpstream.aggregators.counts import UnsupportedQueryError
from dpstream.pipeline.cli.command_errors import explain
from dpstream.pipeline.errors import FAILED, WRONG_INPUT, DpstreamError
from dpstream.pipeline.jobs.job_problems import JobError, Problem
from dpstream.randomizers.client.device_errors import DeviceError

OF_PACKAGES_WITHOUT_A_COMMAND_LINE: dict[type[Exception], int] = {
    UnsupportedQueryError: WRONG_INPUT
}
NEVER_NAMED = {
    "dpstream.pipeline.kafka.memory.DeletedError": "topics in memory delete only what was read",
    "dpstream.pipeline.serve.sockets.BlockedError": "ends the connection of one viewer",
}
"""Exceptions that no handler names."""


def modules() -> Iterator[str]:
    for package in (dpstream.aggregators, dpstream.pipeline, dpstream.randomizers, dpstream.topics):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith("__main__"):
                yield module.name


def exceptions() -> list[type[Exception]]:
    return [
        defined
        for name in modules()
        for _, defined in inspect.getmembers(importlib.import_module(name), inspect.isclass)
        if issubclass(defined, Exception) and defined.__module__ == name
    ]


def name_of(error: type[Exception]) -> str:
    return f"{error.__module__}.{error.__qualname__}"


def handled() -> set[str]:
    """Return the names of all exceptions that a handler of the packages names."""
    return {
        each.id
        for name in modules()
        for node in ast.walk(ast.parse(inspect.getsource(importlib.import_module(name))))
        if isinstance(node, ast.ExceptHandler) and node.type is not None
        for each in ast.walk(node.type)
        if isinstance(each, ast.Name)
    }


def test_every_exception_has_an_exit_code_or_is_handled() -> None:
    known = handled()
    others = {
        name_of(each)
        for each in exceptions()
        if not issubclass(each, (DpstreamError, DeviceError))  # Apps handle errors of devices.
        and each not in OF_PACKAGES_WITHOUT_A_COMMAND_LINE
        and each.__name__ not in known
    }
    assert others == set(NEVER_NAMED)


@pytest.mark.parametrize(
    "error", [each for each in exceptions() if issubclass(each, DpstreamError)], ids=name_of
)
def test_error_ends_a_command_with_message_and_exit_code(error: type[DpstreamError]) -> None:
    raised = error.__new__(error)
    raised.args = ("what, where, what to do",)
    assert explain(raised) == ("what, where, what to do", error.exit_code)
    assert error.exit_code in (FAILED, WRONG_INPUT)


@pytest.mark.parametrize("error", OF_PACKAGES_WITHOUT_A_COMMAND_LINE)
def test_errors_of_lower_packages_have_exit_codes(
    error: type[Exception],
) -> None:
    code = OF_PACKAGES_WITHOUT_A_COMMAND_LINE[error]
    assert explain(error("what, where")) == ("what, where", code)


def test_packages_below_the_pipeline_do_not_import_its_errors() -> None:
    below = ("dpstream.aggregators.", "dpstream.randomizers.", "dpstream.topics.")
    assert not [
        each
        for each in exceptions()
        if each.__module__.startswith(below) and issubclass(each, DpstreamError)
    ]


@pytest.mark.parametrize(
    "kind", [each for each in exceptions() if issubclass(each, DpstreamError)], ids=name_of
)
def test_pickled_error_has_the_same_type_and_message_and_attributes(kind: type[Exception]) -> None:
    error = kind.__new__(kind, "file.yaml:3: a sentence")
    error.where = "there"  # type: ignore[attr-defined]
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again)) == (kind, "file.yaml:3: a sentence")
    assert vars(again) == {"where": "there"}


def test_job_error_round_trips_through_pickle() -> None:
    problem = Problem(("parameters", "epsilon"), "is -1, must be more", "job.yaml:3")
    again = pickle.loads(pickle.dumps(JobError([problem])))
    assert str(again) == "job.yaml:3: parameters.epsilon: is -1, must be more"
    assert again.problems == (problem,)
