"""Test that whole devices in Python and JavaScript match the golden vectors."""

from __future__ import annotations

import base64
import json

import pytest

from dpstream.randomizers.client.events import PANELS
from dpstream.randomizers.one_device import PROTOCOLS
from tests.randomizers.javascript.client_vectors import (
    FILE,
    JOBS,
    client_vectors,
    opened,
)

VECTORS = json.loads(FILE.read_text())


def test_devices_reproduce_reports_and_states_of_test_vectors() -> None:
    assert json.loads(json.dumps(client_vectors(VECTORS))) == VECTORS


def test_every_protocol_has_a_device() -> None:
    # Devices in panels compute their answers from events.
    assert {name.partition(" ")[0] for name in JOBS} == set(PROTOCOLS) - set(PANELS)
    labels = [scenario["label"] for scenario in VECTORS["scenarios"]]
    assert set(labels) >= {f"client {protocol}" for protocol in PROTOCOLS}


def test_vectors_contain_every_error_and_status() -> None:
    steps = [step for scenario in VECTORS["scenarios"] for step in scenario["steps"]]
    errors = {step["error"] for step in steps if "error" in step}
    assert errors == {"closed", "limit", "not-joined", "statement", "unreachable", "value"}
    statuses = {each.get("status") for step in steps for each in step["requests"]}
    assert statuses >= {None, 200, 202, 409, 410, 429, 503}


@pytest.mark.parametrize("language", ["body", "javascript"])
def test_sealed_reports_of_both_languages_can_be_decrypted(language: str) -> None:
    told = VECTORS["sealed"]
    body = base64.b64decode(told[language])
    content = opened(body)
    assert content is not None
    assert content.hex() == told["content"]
    for place in (8, 24, 41, 72, len(body) - 1):
        changed = bytearray(body)
        changed[place] ^= 1
        assert opened(bytes(changed)) is None
