"""Test protocols of other packages: found by entry points, loaded on demand, or rejected."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import cast

import pytest

from dpstream.pipeline.jobs.job_files import parse_job
from dpstream.pipeline.jobs.job_problems import JobError
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.kafka.deployed_jobs import find_deployed
from dpstream.pipeline.operations.deployments import deploy
from dpstream.pipeline.protocols.other_packages import ProtocolError, Registry
from dpstream.pipeline.protocols.registry import PROTOCOLS
from dpstream.pipeline.protocols.value_stream import PROTOCOL as VALUE_STREAM
from tests.support import fresh_response
from tests.support.fresh_response.entry import PROTOCOL
from tests.support.memory_cluster import MemoryCluster

ROOT = Path(__file__).parents[3]
GROUP = "dpstream.protocols"
ENTRY = EntryPoint("fresh_response", "tests.support.fresh_response.entry:PROTOCOL", GROUP)
JOB = """
name: logins
protocol: fresh_response
parameters: {epsilon: 8}
epochs: {count: 3}
shuffle: {minimum: 10}
"""
METADATA = "Metadata-Version: 2.1\nName: fresh-response\nVersion: 1.2\n"
ENTRY_POINTS = """
[dpstream.protocols]
fresh_response = fresh_response.entry:PROTOCOL

[dpstream.exact_laws]
fresh_response = fresh_response.exact_law:ExactLaw
"""


def registry(*entries: EntryPoint) -> Registry:
    return Registry(["value_stream"], PROTOCOLS.__getitem__, lambda: entries)


def test_external_protocol_is_registered_like_builtin_protocols() -> None:
    protocols = registry(ENTRY)
    assert (list(protocols), len(protocols)) == (["value_stream", "fresh_response"], 2)
    assert "fresh_response" in protocols
    assert protocols["fresh_response"] is PROTOCOL
    assert protocols.get("fresh_response") is PROTOCOL
    assert (list(protocols), len(protocols)) == (["value_stream", "fresh_response"], 2)
    assert protocols.get("missing") is None
    protocols.check("value_stream")
    protocols.check("missing")


def test_builtin_protocols_load_without_entry_points() -> None:
    def find() -> Iterator[EntryPoint]:
        raise AssertionError

    assert Registry(["value_stream"], PROTOCOLS.__getitem__, find)["value_stream"] is VALUE_STREAM


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("broken", "no.such.module:PROTOCOL", "cannot be imported: ModuleNotFoundError: No module"),
        ("broken", "tests.support.fresh_response.entry:NOTHING", "cannot be imported: Attribute"),
        ("other", ENTRY.value, "has the name fresh_response; expected other"),
        (
            "class",
            "tests.support.fresh_response:FreshResponse",
            "expected dpstream.pipeline.protocols.protocol.Protocol",
        ),
    ],
)
def test_error_mentions_the_broken_package(name: str, value: str, said: str) -> None:
    with pytest.raises(ProtocolError, match=said) as caught:
        registry(EntryPoint(name, value, GROUP))[name]
    assert str(caught.value).startswith(f"protocol {name} of a package, {value}, ")
    assert "\n" not in str(caught.value)


def test_builtin_name_cannot_be_overridden() -> None:
    protocols = registry(EntryPoint("value_stream", ENTRY.value, GROUP))
    assert protocols["value_stream"] is VALUE_STREAM
    assert list(protocols) == ["value_stream"]
    with pytest.raises(
        ProtocolError,
        match=("is a protocol of dpstream itself, but the name is also claimed by a package"),
    ):
        protocols.check("value_stream")


def test_name_claimed_by_two_packages_is_rejected() -> None:
    protocols = registry(ENTRY, EntryPoint("fresh_response", "another:PROTOCOL", GROUP))
    with pytest.raises(ProtocolError, match=r"claimed by a package and by a package\. Uninstall"):
        protocols["fresh_response"]
    once = registry(ENTRY, ENTRY)
    assert once["fresh_response"] is PROTOCOL, "found twice on the path"


def test_broken_protocol_is_reported_with_the_job_file_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entries = [EntryPoint("fresh_response", "no.such.module:PROTOCOL", GROUP)]
    monkeypatch.setitem(vars(PROTOCOLS), "_offered", {"fresh_response": entries})
    with pytest.raises(JobError) as caught:
        parse_job(JOB.strip(), "job.yaml")
    assert str(caught.value).startswith(
        "job.yaml:2: protocol: protocol fresh_response of a package"
    )


def test_job_with_an_external_protocol_round_trips(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(vars(PROTOCOLS), "_offered", {"fresh_response": [ENTRY]})
    cluster = cast(Cluster, MemoryCluster())
    try:
        deployed = deploy(cluster, parse_job(JOB), deployment=bytes(16), now=1)
        found = find_deployed(cluster, "logins")
        assert found == deployed
        assert found.protocol_entry is PROTOCOL
        assert found.guarantee.epsilon <= 8
    finally:
        PROTOCOLS.pop("fresh_response", None)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    package = Path(str(fresh_response.__file__)).parent
    shutil.copytree(
        package, folder / "fresh_response", ignore=shutil.ignore_patterns("__pycache__")
    )
    metadata = folder / "fresh_response-1.2.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(METADATA)
    (metadata / "entry_points.txt").write_text(ENTRY_POINTS)
    return folder


def run(
    site: Path, folder: Path, *command: str, path: Path | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *command],
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(map(str, (site, path or site, ROOT))),
            "DPSTREAM_HOME": str(folder / "home"),
        },
        capture_output=True,
        text=True,
        check=False,
    )


def test_conformance_suite_in_pytest_detects_a_loss_above_epsilon(
    site: Path, tmp_path: Path
) -> None:
    """Run the suite for two packages, one of which states a larger epsilon than requested."""
    greedy = tmp_path / "greedy"
    shutil.copytree(site / "fresh_response", greedy / "greedy_response")
    law, entry = (greedy / "greedy_response" / name for name in ("__init__.py", "entry.py"))
    law.write_text(law.read_text().replace("epsilon=self.law.loss", "epsilon=50 * self.law.loss"))
    entry.write_text(entry.read_text().replace('"fresh_response"', '"greedy_response"'))
    metadata = greedy / "greedy_response-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(METADATA.replace("fresh-response", "greedy-response"))
    (metadata / "entry_points.txt").write_text(ENTRY_POINTS.replace("fresh_", "greedy_"))
    plugin = () if _is_registered() else ("-p", "dpstream.pipeline.conformance.plugin")
    done = run(
        site,
        tmp_path,
        *("pytest", "-q", "-p", "no:cacheprovider", *plugin),
        *("--pyargs", "dpstream.pipeline.conformance.suite", "-k", "requested_epsilon or json"),
        *("--dpstream-protocol", "fresh_response", "--dpstream-protocol", "greedy_response"),
        path=greedy,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "2 failed, 6 passed" in done.stdout
    for number, epsilon in enumerate((1, 4)):
        assert (
            f"greedy_response-{number}: guarantee states epsilon {50 * epsilon} for the whole "
            f"stream; requested: at most {epsilon}\n"
        ) in done.stdout
    assert "Traceback" not in done.stdout


def _is_registered() -> bool:
    """Return whether the plugin is installed; older environments do not have its entry point."""
    return any(each.name == "dpstream" for each in entry_points(group="pytest11"))
