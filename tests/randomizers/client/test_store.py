"""Test the state file of a device, and its requirements on the platform."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import nullcontext
from itertools import chain, repeat
from pathlib import Path
from types import SimpleNamespace

import pytest

from dpstream.randomizers.client import (
    FileStore,
    HttpTransport,
    ServerResponse,
    StoreError,
    UnreachableError,
)
from tests.support.small_collector import (
    SIGNER,
    START,
    SmallCollector,
    deployed,
)
from tests.support.small_server import served

ROOT = Path(__file__).parents[3]
DEVICE = """
import sys
for name in ("cryptography", "randomgen", "scipy", "pydantic", "crc32c", "yaml", "aiohttp",
             "dpstream.pipeline", "dpstream.aggregators"):
    sys.modules[name] = None
from dpstream.randomizers.client import Device, Limit
url, path, signer, now = sys.argv[1:]
device = Device(url, "logins", signers=[signer], limit=Limit.of(2), path=path,
                now=lambda: int(now))
device.join()
print(device.report(True).drawn, device.report(False).drawn, device.account().spent)
"""


def test_concurrent_processes_act_as_one_device_and_import_only_numpy(tmp_path: Path) -> None:
    collector = SmallCollector(deployed())
    path = tmp_path / "device"
    with served(collector.request) as url:
        command = [sys.executable, "-c", DEVICE, url, str(path), SIGNER, str(START)]
        running = [
            subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(3)
        ]
        said = [process.communicate()[0].split() for process in running]
    assert sorted(words[0] for words in said) == ["False", "False", "True"]
    assert {tuple(words[1:]) for words in said} == {("False", "epsilon", "1")}
    assert len(collector.drawn) == 1
    assert len(set().union(*collector.drawn.values())) == 1
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_file_store_returns_the_text_saved_last(tmp_path: Path) -> None:
    store, other = FileStore(tmp_path / "device"), FileStore(tmp_path / "device")
    assert store.read() == (0, None)
    assert store.replace(0, "one")
    assert not other.replace(0, "two")
    assert other.read() == (1, "one")
    assert other.replace(1, "two")
    assert not store.replace(1, "three")
    assert store.read() == (2, "two")
    data = (tmp_path / "device").read_bytes()
    assert b"two" in data
    assert b"one" not in data


def test_replaced_content_is_erased_from_the_file(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "device")
    secret = "a value to be erased " * 1000
    assert store.replace(0, secret)
    assert store.replace(1, "gone")
    assert secret[:31].encode() not in (tmp_path / "device").read_bytes()


def test_file_readable_by_other_users_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "device"
    path.touch(0o644)
    path.chmod(0o644)
    with pytest.raises(StoreError, match="chmod 600"):
        FileStore(path)
    with pytest.raises(StoreError, match="No such file"):
        FileStore(tmp_path / "missing" / "device")


def test_damaged_file_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "device"
    path.write_bytes(b"nothing of SQLite" * 100)
    path.chmod(0o600)
    with pytest.raises(StoreError, match="cannot use the device state"):
        FileStore(path).read()
    assert path.read_bytes() == b"nothing of SQLite" * 100


def test_transport_returns_responses_of_any_status() -> None:
    collector = SmallCollector(deployed())
    with served(collector.request) as url:
        transport = HttpTransport(url)
        assert transport.request("GET", "/v1/jobs/logins", None, {}).status == 200
        missing = transport.request("GET", "/v1/jobs/other", None, {})
        assert (missing.status, json.loads(missing.body)["type"]) == (404, "/problems/unknown-job")
    with pytest.raises(UnreachableError, match=r"no response .* \(\w+\): try again") as error:
        transport.request("GET", "/v1/jobs/logins", None, {})
    assert "127.0.0.1" not in str(error.value)


def test_redirects_are_not_followed() -> None:
    elsewhere = ServerResponse(307, b"", {"location": "/v1/jobs/logins"})
    with served(lambda *_: elsewhere) as url:
        assert HttpTransport(url).request("POST", "/v1/jobs/logins/reports", b"", {}).status == 307


def test_endless_response_is_rejected() -> None:
    endless = ServerResponse(200, b"x" * (8 * 1024 * 1024 + 1))
    with (
        served(lambda *_: endless) as url,
        pytest.raises(UnreachableError, match="is too long"),
    ):
        HttpTransport(url).request("GET", "/", None, {})


def test_slow_response_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bytes arrive one by one, each within the timeout."""
    with served(SmallCollector(deployed()).request) as url:
        late = pytest.raises(UnreachableError, match="took too long")
        for taken, expected in ((29.0, nullcontext()), (31.0, late)):
            clock = SimpleNamespace(monotonic=chain([100.0], repeat(100.0 + taken)).__next__)
            monkeypatch.setattr("dpstream.randomizers.client.transport.time", clock)
            with expected:
                HttpTransport(url).request("GET", "/v1/jobs/logins", None, {})
