"""Test exit codes of errors that end a command, and the list of errors handled earlier."""

from __future__ import annotations

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

OF_PACKAGES_WITHOUT_A_COMMAND_LINE: dict[type[Exception], int] = {
    UnsupportedQueryError: WRONG_INPUT
}
HANDLED_BEFORE = {
    "dpstream.aggregators.counts.NoValuesError": (
        "becomes a QueryError; of published epochs, no answer"
    ),
    "dpstream.topics.frames.CodecError": (
        "readers of topics skip such a record or send it to dead letters"
    ),
    "dpstream.topics.frames.OversizedError": "as CodecError",
    "dpstream.topics.frames.VersionError": "as CodecError",
    "dpstream.pipeline.devices.bounded_lines.EndlessLineError": (
        "becomes an InputError that names the file"
    ),
    "dpstream.pipeline.jobs.marked_yaml.YamlError": "becomes a JobError that names the file",
    "dpstream.pipeline.kafka.memory.DeletedError": ("topics in memory delete only what was read"),
    "dpstream.pipeline.serve.api.ProblemError": "answered over HTTP, with its status",
    "dpstream.pipeline.serve.query_strings.InvalidQueryError": (
        "answered over HTTP, with status 400"
    ),
    "dpstream.pipeline.results.series.SeriesError": "answered over HTTP, with status 400",
    "dpstream.pipeline.serve.sockets.BlockedError": "ends the connection of one viewer",
    "dpstream.pipeline.operations.signals.SignaledError": (
        "`up` ends with 128 and the number of the signal"
    ),
    "dpstream.pipeline.kafka.topic_spread.TopicSpreadError": (
        "becomes a ClusterError that says what to do"
    ),
    "dpstream.pipeline.kafka.cluster._UnansweredError": (
        "topics are looked for; becomes a ClusterError"
    ),
    "dpstream.pipeline.whole_files.WholeFileError": (
        "an OSError with the name of a file, reported as those are"
    ),
    "dpstream.pipeline.stages.windows.PunctuationError": (
        "the stage sends the record to dead letters"
    ),
    "dpstream.pipeline.kafka.cluster_errors.AbandonedError": (
        "a worker continues with its next assignment"
    ),
    "dpstream.pipeline.collector.batch_writer.WriteError": "answered over HTTP, with status 503",
    "dpstream.pipeline.collector.tokens.TokenError": "answered over HTTP, with status 401",
    "dpstream.topics.envelopes.EnvelopeError": "answered over HTTP, with status 400",
    "dpstream.randomizers.client.device_errors.DeviceError": "reported to the app, as all of these",
    "dpstream.randomizers.client.device_errors.StatementError": "as DeviceError",
    "dpstream.randomizers.client.device_errors.LimitError": "as DeviceError",
    "dpstream.randomizers.client.device_errors.NotJoinedError": "as DeviceError",
    "dpstream.randomizers.client.device_errors.ClosedError": "as DeviceError",
    "dpstream.randomizers.client.device_errors.ValueRejectedError": "as DeviceError",
    "dpstream.randomizers.client.device_errors.StoreError": "as DeviceError",
    "dpstream.randomizers.client.device_errors.UnreachableError": "as DeviceError",
}


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


def test_every_exception_has_an_exit_code_or_is_handled() -> None:
    others = {
        name_of(each)
        for each in exceptions()
        if not issubclass(each, DpstreamError) and each not in OF_PACKAGES_WITHOUT_A_COMMAND_LINE
    }
    assert others == set(HANDLED_BEFORE)


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
