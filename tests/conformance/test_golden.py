"""Bytes of earlier versions stay readable, and are still written identically."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dpstream.randomizers.counted_messages import written_out
from dpstream.randomizers.randomness import seeded_generator
from dpstream.topics.batches import decode_batch, encode_batch
from tests.conformance.cases import Case, MessageArray, every_case
from tests.conformance.golden import (
    DEVICES,
    batch_of,
    flattened,
    golden_bytes,
    golden_file,
    written_out_bytes,
)

NEAR = 1e-3


@every_case
def test_golden_bytes_are_reproduced(case: Case) -> None:
    """Covers draws and reports of devices, batches and aggregator state, with stored constants."""
    expected = golden(case)
    law = case.protocol.law(case.parameters).from_json(expected["law"])
    written = json.loads(json.dumps(golden_bytes(case, law)))
    assert written.keys() == expected.keys()
    for name in expected:
        assert written[name] == expected[name], name


@every_case
def test_constants_match_golden_values_as_closely_as_searches_allow(case: Case) -> None:
    """Deployed jobs keep their constants. Integers not found by a search must be identical."""
    expected, found = golden(case)["law"], json.loads(json.dumps(case.law.to_json()))
    then, now = (dict(flattened(law, "")) for law in (expected, found))
    assert now.keys() == then.keys()
    for name, constant in then.items():
        if isinstance(constant, float) or "_weights" in name:
            assert now[name] == pytest.approx(constant, rel=NEAR), name
        elif name.split("/")[-4:-2] in (["odds", "weights"], ["backstop", "weights"]):
            # Constants from a search for the loss; integers are written as text.
            assert int(now[name]) == pytest.approx(int(constant), rel=NEAR), name
        else:
            assert now[name] == constant, name


@every_case
def test_devices_stored_by_an_earlier_version_can_continue(case: Case) -> None:
    expected = golden(case)
    law = case.protocol.law(case.parameters).from_json(expected["law"])
    devices = case.protocol.randomizer(law).restored(_arrays(expected["devices"]), 0)
    for epoch, values in enumerate(case.mixed_values(DEVICES), start=1):
        words = written_out(devices.report(epoch, values, None, seeded_generator(epoch)))
        assert words.tobytes().hex() == expected["reports"][epoch - 1]


@every_case
def test_batches_of_an_earlier_version_are_read(case: Case) -> None:
    expected = golden(case)
    for epoch, (batch, reports) in enumerate(
        zip(expected["batches"], expected["reports"], strict=True), start=1
    ):
        decoded = decode_batch(bytes.fromhex(batch))
        assert decoded.epoch == epoch
        assert decoded.words.values.dtype == case.message_format.dtype
        assert written_out_bytes(decoded.words).hex() == reports
        assert encode_batch(batch_of(epoch, decoded.words)).hex() == batch


@every_case
def test_states_of_an_earlier_version_are_read(case: Case) -> None:
    expected = golden(case)
    law = case.protocol.law(case.parameters).from_json(expected["law"])
    counted = case.protocol.aggregation.make(law, case.parameters)
    for epoch, reports in enumerate(expected["reports"], start=1):
        (words,) = case.released([_words(case, reports)], seeded_generator(epoch))
        counted.add(epoch, words, None)
    state = bytes.fromhex(expected["state"])
    assert counted.to_bytes() == state
    assert case.protocol.aggregation.read(law, case.parameters, state).to_bytes() == state


def golden(case: Case) -> Any:
    name = case.protocol.name
    command = f"python -m tests.conformance.golden {name}"
    path = golden_file(name)
    if not path.exists():
        pytest.fail(f"protocol {name} has no golden bytes; to write them: {command}")
    cases = json.loads(path.read_text())
    if case.number >= len(cases):
        pytest.fail(
            f"example {case.number} of {name} has no golden bytes; to write them: {command}"
        )
    return cases[case.number]


def _arrays(described: dict[str, Any]) -> dict[str, NDArray[Any]]:
    return {
        name: np.frombuffer(bytes.fromhex(data), dtype).reshape(shape)
        for name, (dtype, shape, data) in described.items()
    }


def _words(case: Case, reports: str) -> MessageArray:
    flat = np.frombuffer(bytes.fromhex(reports), case.message_format.dtype)
    return flat.reshape(-1, case.message_format.width)
