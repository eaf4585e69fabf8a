"""The registry: every entry is complete, and devices read it without what only servers need."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import pytest

from dpstream.pipeline.protocols.protocol import Protocol
from dpstream.pipeline.protocols.registry import PROTOCOLS


@pytest.mark.parametrize("name", PROTOCOLS)
def test_an_entry_is_complete(name: str) -> None:
    protocol = PROTOCOLS[name]
    assert protocol.name == name
    assert dataclasses.is_dataclass(protocol.parameters)
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(protocol, "name", "other")  # noqa: B010
    assert protocol.forecast is not None, "plan has something to say about every protocol"


def test_entries_compare_and_hash_by_value() -> None:
    future_rand = PROTOCOLS["future_rand"]
    assert dataclasses.replace(future_rand) == future_rand
    assert isinstance(hash(future_rand), int)
    assert isinstance(future_rand, Protocol)


def test_nothing_a_device_runs_imports_the_accounting() -> None:
    check = (
        "import dpstream.pipeline.devices.producer, sys; "
        "found = [m for m in sys.modules if m.startswith(('dpstream.randomizers.accounting', "
        "'scipy'))]; "
        "sys.exit(', '.join(found) or 0)"
    )
    finished = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True)
    assert (finished.returncode, finished.stderr) == (0, "")


def test_only_the_protocol_that_is_asked_for_is_imported() -> None:
    check = (
        "import sys; from dpstream.pipeline.protocols.registry import OWN, PROTOCOLS; "
        "loaded = lambda: [each for each in OWN if f'dpstream.pipeline.protocols.{each}' in "
        "sys.modules]; "
        "assert list(PROTOCOLS)[:len(OWN)] == list(OWN) and 'bun' in PROTOCOLS; "
        "assert not loaded(), loaded(); "
        "assert PROTOCOLS['hadamard'].name == 'hadamard'; "
        "assert loaded() == ['hadamard'], loaded()"
    )
    finished = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True)
    assert (finished.returncode, finished.stderr) == (0, "")
