"""Test secrets, code execution and listeners across the whole code base.

Secrets come only from files and the environment; input is never executed; servers listen on
loopback. Tests enumerate all cases, so that new options, modules and listeners are covered, too.
"""

from __future__ import annotations

import ast
import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from dpstream.pipeline.cli.commands import build_command
from dpstream.pipeline.collector.accepting import listen
from dpstream.pipeline.collector.collector import CollectorSettings
from dpstream.pipeline.devices.producer import Producer, ProducerError
from dpstream.pipeline.jobs.deployed_job import deploy_job
from dpstream.pipeline.jobs.descriptions import signing_key_at
from dpstream.pipeline.jobs.job_files import parse_job
from dpstream.pipeline.jobs.key_files import CollectorKey, NoiseKey, WrongKeyError
from dpstream.pipeline.jobs.sealing_keys import make_key_pair, read_private_key
from dpstream.pipeline.kafka.local_kafka.broker import HOST
from dpstream.pipeline.kafka.memory import MemoryDriver, MemoryLog
from dpstream.pipeline.kafka.workers.monitor import MonitorAddress, serve
from dpstream.pipeline.kafka.workers.watchdog import Health
from dpstream.pipeline.state import FolderLock, private_folder
from dpstream.randomizers.client.device_errors import StoreError
from dpstream.randomizers.client.store import FileStore
from tests.support.live_page import live_page
from tests.support.memory_cluster import MemoryCluster
from tests.support.small_run import job_text

ROOT = Path(__file__).parents[2]
PACKAGES = ("aggregators", "docker", "dpstream", "experiments", "pipeline", "randomizers", "topics")
LOOPBACK = {"127.0.0.1", "::1"}
SECRET = re.compile("password|secret|token|sasl|credential|key|auth")
RUNS_WHAT_IT_READS = {"pickle", "cPickle", "dill", "shelve", "marshal", "joblib", "cloudpickle"}
CALLS = {"eval", "exec", "compile", "__import__"}
SHELLS = {"os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput"}
LOADS = {"yaml.load", "yaml.load_all", "yaml.unsafe_load", "yaml.full_load", "yaml.compose"}


def modules() -> list[Path]:
    return [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]


def calls(path: Path) -> Iterator[ast.Call]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            yield node


def problems(tree: ast.Module) -> Iterator[str]:
    safe = {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and "yaml.SafeLoader" in map(ast.unparse, node.bases)
    }
    for node in ast.walk(tree):
        match node:
            case ast.Import(names):
                yield from (each.name for each in names if each.name in RUNS_WHAT_IT_READS)
            case ast.ImportFrom(module=str(module)) if module in RUNS_WHAT_IT_READS:
                yield module
            case ast.Call():
                name = ast.unparse(node.func)
                options = {each.arg: ast.unparse(each.value) for each in node.keywords}
                if name in CALLS | SHELLS or options.get("shell", "False") != "False":
                    yield name
                if name in LOADS and options.get("Loader") not in {"yaml.SafeLoader", *safe}:
                    yield name
                if options.get("allow_pickle", "False") != "False":
                    yield name


def test_input_is_never_executed_as_code() -> None:
    suspicious = re.compile(
        "|".join(
            [*RUNS_WHAT_IT_READS, *CALLS, "system|popen|getoutput", "shell", "yaml", "allow_pickle"]
        )
    )
    looked, found = 0, {}
    for path in modules():
        # Parsing all of them takes ten times as long as reading them.
        if suspicious.search(text := path.read_text()):
            looked += 1
            found[path.relative_to(ROOT).as_posix()] = list(problems(ast.parse(text)))
    assert {path: each for path, each in found.items() if each} == {}
    assert looked > 10


@pytest.mark.parametrize(
    "text",
    [
        *("import pickle", "from marshal import loads", "eval('1')", "exec(x)"),
        *("subprocess.run(x, shell=True)", "os.system('x')", "yaml.load(x)"),
        *("yaml.load(x, Loader=yaml.Loader)", "np.load(x, allow_pickle=True)", "yaml.compose(x)"),
    ],
)
def test_source_scanner_finds_planted_violations(text: str) -> None:
    assert list(problems(ast.parse(text)))


def options(command: Any, path: str = "dpstream") -> Iterator[tuple[str, Any]]:
    loaded = getattr(command, "loaded", command)
    for param in loaded.params:
        if param.param_type_name == "option":
            yield path, param
    for name, child in getattr(loaded, "commands", {}).items():
        yield from options(child, f"{path} {name}")


ALL_OPTIONS = list(options(build_command()))


def test_secrets_are_passed_in_files() -> None:
    """Any local user can list processes and read their command lines."""
    found = {
        (command, option.opts[0]): takes_a_path(option)
        for command, option in ALL_OPTIONS
        if SECRET.search(option.opts[0]) and not option.is_flag
    }
    assert {("dpstream run", "--noise-key"), ("dpstream serve", "--password-file")} <= set(found)
    assert {place for place, in_a_file in found.items() if not in_a_file} == set()


def takes_a_path(option: Any) -> bool:
    kind = getattr(option, "type_descriptor", None) or option.type
    return "path" in str(kind).lower()


def test_listeners_default_to_loopback() -> None:
    found = {
        (command, option.opts[0]): option.default
        for command, option in ALL_OPTIONS
        if re.search("bind|address|host", option.opts[0]) and option.default is not None
    }
    assert {command for command, _ in found} >= {
        "dpstream run",
        "dpstream serve",
        "dpstream collect",
    }
    for place, default in found.items():
        assert str(default).partition(":")[0] in LOOPBACK, place


LISTENERS = {
    "pipeline/collector/accepting.py",
    "pipeline/demo/devices/visitor_page.py",
    "pipeline/kafka/local_kafka/broker.py",
    "pipeline/kafka/workers/monitor.py",
    "pipeline/operations/supervisor/supervise.py",
    "pipeline/serve/server.py",
}


def test_every_module_that_opens_a_listener_is_tested() -> None:
    listening = re.compile(
        r"(\.create_server|\.start_server|run_app|TCPSite|SockSite|UnixSite|HTTPServer|\.bind)$"
    )
    found = set()
    for path in modules():
        if not re.search(r"server|run_app|Site|HTTPServer|\.bind", text := path.read_text()):
            continue
        tree = ast.parse(text)
        bases = [
            ast.unparse(base)
            for node in ast.walk(tree)
            if isinstance(node, ast.ClassDef)
            for base in node.bases
        ]
        names = [ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)]
        if any(listening.search(name) for name in names + bases):
            found.add(path.relative_to(ROOT).as_posix())
    assert found == LISTENERS


def test_collectors_listen_on_loopback() -> None:
    settings = CollectorSettings()
    sockets = listen(settings.host, 0)
    assert {each.getsockname()[0] for each in sockets} <= LOOPBACK
    for each in sockets:
        each.close()


def test_metrics_are_served_on_loopback() -> None:
    healthy = Health(good=True, line="")
    server = serve(
        MonitorAddress(0), CollectorRegistry(), alive=lambda: healthy, ready=lambda: healthy
    )
    try:
        assert server.socket.getsockname()[0] in LOOPBACK
    finally:
        server.shutdown()
        server.server_close()


def test_web_page_is_served_on_loopback() -> None:
    async def look() -> str:
        async with live_page(MemoryCluster()) as page:
            server = page.site._server
            assert server is not None
            return str(server.sockets[0].getsockname()[0])

    assert asyncio.run(look()) in LOOPBACK


@pytest.mark.parametrize(
    "path",
    [
        "pipeline/operations/supervisor/supervise.py",
        "pipeline/demo/devices/visitor_page.py",
    ],
)
def test_direct_listeners_bind_to_loopback(path: str) -> None:
    for node in calls(ROOT / path):
        name = ast.unparse(node.func)
        if re.search(r"create_server|run_app|\.bind$", name):
            assert "127.0.0.1" in ast.unparse(node), name


def test_local_broker_listens_on_loopback() -> None:
    assert HOST in LOOPBACK
    text = (ROOT / "pipeline/kafka/local_kafka/broker.py").read_text()
    assert not re.search(r"0\.0\.0\.0|PLAINTEXT://:", text)


def opened(make: Any, path: Path, loose: int) -> None:
    make(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o077 == 0
    make(path)
    path.chmod(loose)
    make(path)


@pytest.mark.parametrize("loose", [0o640, 0o604, 0o660])
@pytest.mark.parametrize(
    ("make", "error"),
    [
        (NoiseKey.at, WrongKeyError),
        (CollectorKey.at, WrongKeyError),
        (signing_key_at, WrongKeyError),
        (lambda path: sealing_key(path), WrongKeyError),
        (lambda path: device_state(path), StoreError),
        (lambda path: producer_state(path), ProducerError),
    ],
    ids=["noise", "collector", "signing", "sealing", "device", "producer"],
)
def test_key_and_state_files_accessible_to_others_are_rejected(
    tmp_path: Path, make: Any, error: type[Exception], loose: int
) -> None:
    folder = private_folder(tmp_path / "home")
    path = folder / "producer.sqlite3"
    with pytest.raises(error, match=f"chmod 600 {path}"):
        opened(make, path, loose)


def sealing_key(path: Path) -> None:
    if not path.exists():
        make_key_pair(path, path.with_suffix(".pub"))
    read_private_key(path)


def device_state(path: Path) -> None:
    FileStore(path).read()


def producer_state(path: Path) -> None:
    job = deploy_job(parse_job(job_text()), deployed_at=0, deployment=bytes(16))
    driver = MemoryDriver(MemoryLog())
    with Producer(job, path.parent, name="p", transport=driver) as producer:
        producer.enroll(["u"])
        producer.report_all(1, np.zeros(1, np.int8))


def test_state_folders_and_locks_are_accessible_only_to_the_owner(tmp_path: Path) -> None:
    with FolderLock(tmp_path / "a" / "b", "a test"):
        assert {(tmp_path / part).stat().st_mode & 0o777 for part in ("a", "a/b")} == {0o700}
        assert (tmp_path / "a" / "b" / "lock").stat().st_mode & 0o777 == 0o600
