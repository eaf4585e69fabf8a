"""Test that the jars match the lock file, however often downloads are disturbed.

A local web server simulates the Maven repository and serves three small "jars".
"""

import hashlib
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from dpstream.pipeline.cli.command_errors import explain
from dpstream.pipeline.errors import FAILED
from dpstream.pipeline.kafka.local_kafka import LocalKafka, LocalKafkaError, jars
from dpstream.pipeline.kafka.local_kafka.jars import Jar, kafka_jars, locked_jars

CONTENTS = {"one": b"1" * 100_000, "two": b"2", "three": b""}


class Repository(ThreadingHTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.requests: Counter[str] = Counter()
        self.cut_short: Counter[str] = Counter()
        self.replaced: dict[str, bytes] = {}


class Answer(BaseHTTPRequestHandler):
    server: Repository

    def do_GET(self) -> None:
        name = self.path.split("/")[-3]
        if not self.path.endswith(f"/org/example/{name}/1.0/{name}-1.0.jar"):
            self.send_error(404)
            return
        self.server.requests[name] += 1
        body = self.server.replaced.get(name, CONTENTS[name])
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.server.cut_short[name] > 0:
            self.server.cut_short[name] -= 1
            body = body[: len(body) // 2]
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Suppress logging."""


@pytest.fixture
def repository(monkeypatch: pytest.MonkeyPatch) -> Iterator[Repository]:
    lock = tuple(
        Jar("org.example", name, "1.0", hashlib.sha256(content).hexdigest())
        for name, content in CONTENTS.items()
    )
    monkeypatch.setattr(jars, "locked_jars", lambda: lock)
    with Repository() as server:
        url = f"http://127.0.0.1:{server.server_port}/maven/"
        monkeypatch.setenv("DPSTREAM_MAVEN_REPOSITORY", url)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def silent(sentence: str) -> None:
    """Ignore progress messages."""


def contents(paths: tuple[Path, ...]) -> list[bytes]:
    return [path.read_bytes() for path in paths]


def test_lock_file_has_a_checksum_for_every_jar() -> None:
    locked = locked_jars()
    versions = {jar.artifact: jar.version for jar in locked}
    assert versions["kafka_2.13"] == versions["kafka-clients"]
    assert len({jar.file_name for jar in locked}) == len(locked) > 40
    assert all(len(bytes.fromhex(jar.sha256)) == 32 for jar in locked)


def test_every_jar_is_fetched_once(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jars, "PROGRESS_STEP", 2)
    steps: list[str] = []
    first = kafka_jars(steps.append, tmp_path)
    assert contents(first) == list(CONTENTS.values())
    assert steps == ["fetching Apache Kafka (only once): 3 files", "fetched 2 of 3 files"]
    assert kafka_jars(pytest.fail, tmp_path) == first
    assert repository.requests == Counter(CONTENTS.keys())
    assert sorted(path.name for path in first[0].parent.iterdir()) == sorted(
        [*(path.name for path in first), "lock"]
    )


def test_damaged_jar_is_fetched_again(repository: Repository, tmp_path: Path) -> None:
    paths = kafka_jars(silent, tmp_path)
    paths[0].write_bytes(paths[0].read_bytes()[:-1])
    paths[1].unlink()
    assert contents(kafka_jars(silent, tmp_path)) == list(CONTENTS.values())
    assert repository.requests == {"one": 2, "two": 2, "three": 1}


def test_broken_connection_is_retried(repository: Repository, tmp_path: Path) -> None:
    repository.cut_short["one"] = jars.ATTEMPTS - 1
    assert contents(kafka_jars(silent, tmp_path)) == list(CONTENTS.values())
    assert repository.requests["one"] == jars.ATTEMPTS


def test_jar_with_a_wrong_checksum_is_rejected(repository: Repository, tmp_path: Path) -> None:
    repository.replaced["two"] = b"malice"
    with pytest.raises(LocalKafkaError, match=r"two-1.0.jar: wrong SHA-256 checksum"):
        kafka_jars(silent, tmp_path)
    assert not list(tmp_path.rglob("two*"))
    del repository.replaced["two"]
    assert contents(kafka_jars(silent, tmp_path)) == list(CONTENTS.values())


def test_interrupted_fetch_resumes(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(sentence: str) -> None:
        if sentence == "fetched 1 of 3 files":
            raise KeyboardInterrupt

    monkeypatch.setattr(jars, "PROGRESS_STEP", 1)
    with pytest.raises(KeyboardInterrupt):
        kafka_jars(interrupt, tmp_path)
    # A kill leaves half a download behind.
    (tmp_path / "jars" / "staging").mkdir()
    (tmp_path / "jars" / "staging" / "one-1.0.jar").write_bytes(b"half")
    assert list((tmp_path / "jars").glob("*.jar")), "fetched files are stored"
    assert contents(kafka_jars(silent, tmp_path)) == list(CONTENTS.values())
    assert repository.requests == Counter(CONTENTS.keys())


def test_concurrent_fetches_download_once(repository: Repository, tmp_path: Path) -> None:
    results: list[tuple[Path, ...]] = []
    threads = [
        threading.Thread(target=lambda: results.append(kafka_jars(silent, tmp_path)))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [contents(result) for result in results] == [list(CONTENTS.values())] * 2
    assert repository.requests == Counter(CONTENTS.keys())


def test_start_on_another_port_is_rejected_while_the_broker_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "server.properties").write_text(
        "advertised.listeners=PLAINTEXT://127.0.0.1:20123\n"
    )
    broker = LocalKafka(tmp_path)
    monkeypatch.setattr(broker, "_serves", lambda timeout: True)
    assert broker.start().bootstrap_servers == "127.0.0.1:20123"
    assert broker.start(port=20123).bootstrap_servers == "127.0.0.1:20123"
    with pytest.raises(
        LocalKafkaError, match="is already running on port 20123: stop it"
    ) as caught:
        broker.start(port=9092)
    known = explain(caught.value)
    assert known is not None
    assert known[1] == FAILED
