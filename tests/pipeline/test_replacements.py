"""Test that errors for removed protocols, keys, commands and options name the replacement."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from dpstream.pipeline.cli.commands import COMMANDS
from dpstream.pipeline.jobs.job_files import parse_job
from dpstream.pipeline.jobs.job_problems import JobError
from dpstream.pipeline.protocols.registry import PROTOCOLS
from dpstream.pipeline.replacements import (
    EXPERIMENTS,
    JOB_KEYS,
    JOB_VALUES,
    OPTIONS,
    REMOVED_COMMANDS,
)
from dpstream.pipeline.replacements import PROTOCOLS as REMOVED_PROTOCOLS
from tests.support.commands import Commands

_JOB = """
name: logins
protocol: {protocol}
parameters: {{epsilon: 1, delta: 1e-6{parameters}}}
epochs: {{count: 8}}
{more}
"""


def _rejection(protocol: str, parameters: str = "", more: str = "") -> str:
    with pytest.raises(JobError) as caught:
        parse_job(_JOB.format(protocol=protocol, parameters=parameters, more=more))
    return str(caught.value)


def test_error_for_every_removed_name_suggests_a_replacement() -> None:
    protocols = (
        "balls_into_bins hadamard_stream ldp_sgd range_stream shuffled_item_tree shuffled_tree"
    )
    assert set(REMOVED_PROTOCOLS) == set(protocols.split())
    assert set(JOB_KEYS) == {("crowds",), ("shuffle", "signers"), ("topics", "lanes")}
    assert set(JOB_VALUES) == {(("parameters", "calibration"), "conditional")}
    assert set(REMOVED_COMMANDS) == {"evaluate", "relay", "verify-stage"}
    queried = "--items --median --quantiles --ranges"
    removed = {
        "audit": "--plot",
        "plan": "--devices --every --gateways --jobs",
        "produce": "--group --relay --relay-ca --relay-token",
        "record": "--raw",
        "run": "--attestation --stage-key",
        **dict.fromkeys(("query", "simulate"), queried),
        "estimates": f"{queried} --window",
    }
    assert set(OPTIONS) == {
        (command, option) for command, options in removed.items() for option in options.split()
    }


@pytest.mark.parametrize("name", REMOVED_PROTOCOLS)
def test_error_for_a_removed_protocol_names_its_replacement(name: str) -> None:
    assert name not in PROTOCOLS
    assert f"protocol: {name} was removed: {REMOVED_PROTOCOLS[name]}" in _rejection(name)


def test_error_for_a_protocol_of_the_experiments_states_where_it_is_defined(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = tomllib.loads(Path("experiments/pyproject.toml").read_text())
    for declared in packages["project"]["entry-points"].values():
        assert set(declared) == EXPERIMENTS
    monkeypatch.setitem(vars(PROTOCOLS), "_offered", {})
    for name in EXPERIMENTS:
        monkeypatch.delitem(vars(PROTOCOLS)["_known"], name, raising=False)
        said = f"{name} is an experiment, and not part of this package"
        assert f"protocol: {said}" in _rejection(name)
        assert said in Commands(capsys)("audit", name).errors


@pytest.mark.parametrize("path", JOB_KEYS)
def test_error_for_a_removed_job_key_names_its_replacement(path: tuple[str | int, ...]) -> None:
    keys = list(map(str, path))
    said = _rejection("value_stream", more=f"{': {'.join(keys)}: 2{'}' * (len(keys) - 1)}")
    assert f"{'.'.join(keys)}: was removed: {JOB_KEYS[path]}" in said


@pytest.mark.parametrize("protocol", ["fragments", "shuffled_counts"])
def test_error_for_a_removed_calibration_names_its_replacement(protocol: str) -> None:
    said = _rejection(protocol, ", calibration: conditional", "shuffle: {minimum: 1000}")
    assert (
        f"conditional was removed: {JOB_VALUES[('parameters', 'calibration'), 'conditional']}"
        in said
    )


@pytest.mark.parametrize("name", REMOVED_COMMANDS)
def test_error_for_a_removed_command_names_its_replacement(
    capsys: pytest.CaptureFixture[str], name: str
) -> None:
    assert name not in COMMANDS
    said = Commands(capsys)(name, "logins")
    assert said.code == 2
    assert f"'{name}' was removed: {REMOVED_COMMANDS[name]}" in said.errors


@pytest.mark.parametrize(("command", "option"), OPTIONS)
def test_error_for_a_removed_option_names_its_replacement(
    capsys: pytest.CaptureFixture[str], command: str, option: str
) -> None:
    said = Commands(capsys)(command, "logins", option)
    assert said.code == 2
    assert f"No such option: {option}: {OPTIONS[command, option]}" in said.errors
