"""Randomness comes from the given generator, which is cryptographic by default."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from randomgen import AESCounter

import dpstream.pipeline.devices.producer
import dpstream.randomizers.randomness
from dpstream.pipeline.devices.producer import Producer
from dpstream.pipeline.jobs.deployed_job import deploy_job
from dpstream.pipeline.jobs.job_files import parse_job
from dpstream.pipeline.kafka.memory import MemoryDriver, MemoryLog
from dpstream.randomizers.randomness import cryptographic_generator
from tests.support.small_run import job_text

ROOT = Path(__file__).parents[2]
MODULES = sorted(
    path.relative_to(ROOT)
    for pattern in (
        "randomizers/**/*.py",
        "aggregators/**/*.py",
        "pipeline/devices/producer*.py",
        "experiments/protocols/**/*.py",
    )
    for path in ROOT.glob(pattern)
)


def test_privacy_modules_use_only_secure_randomness() -> None:
    found = {module: list(other_randomness((ROOT / module).read_text())) for module in MODULES}
    assert {module: names for module, names in found.items() if names} == {}


@pytest.mark.parametrize(
    "code",
    [
        "import random",
        "import random as coins",
        "from random import getrandbits",
        "import numpy.random",
        "from numpy import random",
        "from numpy.random import default_rng",
        "import numpy as np\nnp.random.seed(1)",
        "import numpy\nnumpy.random.default_rng()",
        "import numpy as np\nnp.random.random()",
        "from dpstream.randomizers.randomness import seeded_generator",
        "from dpstream.randomizers import randomness\nrandomness.seeded_generator(1)",
    ],
)
def test_insecure_randomness_is_detected(code: str) -> None:
    assert list(other_randomness(code))


def test_search_for_insecure_randomness_covers_devices_and_protocols() -> None:
    assert {
        Path("randomizers/future_rand/__init__.py"),
        Path("pipeline/devices/producer.py"),
    } <= set(MODULES)


def test_default_generator_is_cryptographic_and_unseeded() -> None:
    one, other = cryptographic_generator(), cryptographic_generator()
    assert isinstance(one.bit_generator, AESCounter)
    assert one.bytes(32) != other.bytes(32)


def test_producer_draws_from_the_default_generator(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def recorded() -> np.random.Generator:
        made.append(dpstream.randomizers.randomness.cryptographic_generator())
        return made[-1]

    monkeypatch.setattr(dpstream.pipeline.devices.producer, "cryptographic_generator", recorded)
    job = deploy_job(parse_job(job_text()), deployed_at=0)
    users = [f"user{number}" for number in range(100)]
    with Producer(job, None, name="gateway", transport=MemoryDriver(MemoryLog())) as producer:
        (generator,) = made
        states = [repr(generator.bit_generator.state)]
        producer.enroll(users)
        states.append(repr(generator.bit_generator.state))
        producer.report(1, dict.fromkeys(users, 1))
        producer.close(1)
        states.append(repr(generator.bit_generator.state))
    assert len(set(states)) == 3


def other_randomness(code: str) -> Iterator[str]:
    """Yield uses of randomness other than numpy's generator type, and of seeds."""
    for node in ast.walk(ast.parse(code)):
        match node:
            case ast.Import(names=names):
                modules = [name.name for name in names]
                yield from (name for name in modules if name in ("random", "numpy.random"))
            case ast.ImportFrom(module="random" | "numpy.random" as module):
                yield module
            case ast.ImportFrom(names=names):
                imported = [name.name for name in names]
                yield from (name for name in imported if name in ("random", "seeded_generator"))
            case ast.Attribute(attr="seeded_generator"):
                yield "seeded_generator"
            case ast.Attribute(value=ast.Attribute(value=ast.Name(), attr="random"), attr=name):
                if name != "Generator":
                    yield f"numpy.random.{name}"
            case ast.Call(func=ast.Name(id="seeded_generator")):
                yield "seeded_generator"
