"""Test one device, created from a protocol's name and JSON constants, with only numpy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpstream.pipeline.protocols.registry import PROTOCOLS as ALL_PROTOCOLS
from dpstream.randomizers.byte_generator import byte_randomness
from dpstream.randomizers.counted_messages import written_out
from dpstream.randomizers.one_device import PROTOCOLS, OneDevice
from dpstream.randomizers.single_message import SingleMessageParameters
from tests.conformance.golden import golden_file

SETS = ("count_min", "single_message")

RUN_ALL = """
import sys
for name in ("randomgen", "scipy", "dp_accounting", "cryptography", "pydantic", "crc32c", "yaml",
             "dpstream.pipeline", "dpstream.aggregators"):
    sys.modules[name] = None
import json, os
from dpstream.randomizers.one_device import PROTOCOLS, OneDevice
laws = json.load(sys.stdin)
assert sorted(laws) == sorted(PROTOCOLS)
for protocol, bodies in laws.items():
    for law, value in bodies:
        device = OneDevice(protocol, law)
        device.enroll(os.urandom, 0 if "groups" in law else None)
        device.report(1, value, os.urandom)
        OneDevice.restore(protocol, law, json.loads(json.dumps(device.state())))
        device.devices.guarantee
print("ran", sum(map(len, laws.values())))
"""


def laws_of(protocol: str) -> list[dict[str, Any]]:
    return [case["law"] for case in json.loads(golden_file(protocol).read_text())]


def value_of(protocol: str, law: dict[str, Any]) -> int | list[int]:
    if "questions" in law:
        return [1] * len(law["questions"])
    return [1] if protocol in SETS or law.get("slots", 1) > 1 else 1


def test_devices_of_all_protocols_need_only_numpy() -> None:
    laws = {
        protocol: [(law, value_of(protocol, law)) for law in laws_of(protocol)]
        for protocol in PROTOCOLS
    }
    ran = subprocess.run(
        [sys.executable, "-c", RUN_ALL],
        input=json.dumps(laws),
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        check=False,
    )
    assert ran.stderr == ""
    assert ran.stdout.split() == ["ran", str(sum(map(len, laws.values())))]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_single_device_reports_the_same_as_a_population_of_one(protocol: str) -> None:
    for law in laws_of(protocol):
        data = os.urandom(1 << 16)
        device = OneDevice(protocol, law)
        group = 0 if "groups" in law else None
        device.enroll(reader(data), group)
        population = device._class(device._law)
        groups = {} if group is None else {"group": np.array([group])}
        population.enroll(1, byte_randomness(reader(data)), groups)
        value = value_of(protocol, law)
        sent = device.report(1, value, reader(data))
        rng = byte_randomness(reader(data))
        expected = written_out(population.report(1, np.array([value]), None, rng))
        assert sent.dtype == expected.dtype
        assert sorted(sent.tolist()) == sorted(expected.tolist()) == sent.tolist()
        arrays = population.state_arrays()
        restored = OneDevice.restore(protocol, law, json.loads(json.dumps(device.state())))
        assert restored.epoch == device.epoch == 1
        for name, array in restored.devices.state_arrays().items():
            np.testing.assert_array_equal(array, arrays[name], strict=True)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_device_parses_constants_like_the_protocol(protocol: str) -> None:
    for law in laws_of(protocol):
        device = OneDevice(protocol, law)
        assert device._law.to_json() == law
        assert type(device.devices) is type(ALL_PROTOCOLS[protocol].randomizer(device._law))


def reader(data: bytes) -> Any:
    pieces = iter(range(len(data)))

    def read(count: int) -> bytes:
        return bytes(data[next(pieces)] for _ in range(count))

    return read


def test_device_rejects_invalid_calls_with_clear_messages() -> None:
    law = laws_of("future_rand")[0]
    with pytest.raises(
        ValueError, match="'bun' does not support single devices; expected one of: future_rand"
    ):
        OneDevice("bun", law)
    with pytest.raises(
        ValueError, match="invalid constants for value_stream: the mechanism is unknown"
    ):
        OneDevice("value_stream", law)
    with pytest.raises(ValueError, match="invalid constants for future_rand"):
        OneDevice("future_rand", [])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="invalid constants for future_rand"):
        OneDevice("future_rand", {**law, "laws": 3})
    device = OneDevice("future_rand", law)
    with pytest.raises(
        ValueError, match=("the device is not enrolled: call enroll once, before reporting")
    ):
        device.report(1, 1, os.urandom)
    device.enroll(os.urandom)
    with pytest.raises(ValueError, match="enrolled: enrolling again would cost privacy again"):
        device.enroll(os.urandom)
    for value in ([1], "1", 1.0, -1, None, 1 << 64):
        with pytest.raises(ValueError, match=r"expected an integer from 0 to 2\^62 - 1"):
            device.report(1, value, os.urandom)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"device 0 has value 2 at epoch 1; expected 0 or 1"):
        device.report(1, 2, os.urandom)
    with pytest.raises(ValueError, match="expected an integer from 1 to 2"):
        device.report(1.5, 1, os.urandom)  # type: ignore[arg-type]
    assert device.epoch == 0
    sets = OneDevice("count_min", laws_of("count_min")[0])
    sets.enroll(os.urandom)
    for wrong in (1, [1.5], [1, 1.5], ["1", 1], "1", [-1], [1 << 64], [1 << 62]):
        with pytest.raises(ValueError, match=r"expected a list of items from 0 to 2\^62 - 1"):
            sets.report(1, wrong, os.urandom)  # type: ignore[arg-type]


def test_last_item_of_a_large_domain_is_reported() -> None:
    parameters = SingleMessageParameters(4.0, 1e-6, tuple(map(str, range(1000))))
    law = ALL_PROTOCOLS["single_message"].calibrate(parameters, 1, 10_000)
    device = OneDevice("single_message", law.to_json())
    device.enroll(os.urandom)
    assert len(device.report(1, [1000], os.urandom)) == 1


@pytest.mark.parametrize("protocol", ["sampled_response", "value_stream"])
def test_next_horizon_draws_all_state_again_except_for_lasting_state(protocol: str) -> None:
    """A phase drawn again would let two answers follow each other, at twice the epsilon."""
    law = next(iter(laws_of(protocol)))
    differ: set[str] = set()
    for _ in range(60):
        first = OneDevice(protocol, law)
        first.enroll(os.urandom)
        second = OneDevice.renewed(protocol, law, first.state(), os.urandom)
        assert second.epoch == 0
        arrays = zip(
            *(each.devices.state_arrays().items() for each in (first, second)), strict=True
        )
        differ |= {name for (name, one), (_, other) in arrays if not np.array_equal(one, other)}
    lasting = set(first.devices.lasting)
    assert differ
    assert not differ & lasting
    assert lasting == ({"phase"} if protocol == "sampled_response" else set())
