"""How soon windows close of ten thousand gateways that send through a relay.

``python -m tests.benchmarks.relayed_gateways [GATEWAYS [EPOCHS [SECONDS]]]``

On the local broker, with a relay and a worker of each stage, all on this machine. Each gateway has
a connection of its own, and posts a batch and its punctuation at every epoch, at a random moment of
it. Prints `Windows`.
"""

from __future__ import annotations

import asyncio
import json
import re
import secrets
import sys
import time
from collections import deque
from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict, dataclass
from http import HTTPStatus
from http.client import HTTPConnection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, cast

import numpy as np

from pipeline.collector.collector import raise_file_limit
from pipeline.jobs.deployed_job import DeployedJob
from pipeline.jobs.job_files import make_job
from pipeline.kafka.cluster import Cluster
from pipeline.kafka.connection import Connection
from pipeline.kafka.local_kafka import LocalKafka
from pipeline.operations.deployments import deploy, undeploy
from pipeline.operations.processes import dpstream_command
from pipeline.operations.restarted_processes import RestartedProcesses
from pipeline.state import kafka_folder
from tests.benchmarks.end_to_end import STAGES, BenchmarkError, local_broker
from tests.benchmarks.measuring import busy_seconds, peak_megabytes, processor_seconds
from topics.batches import Batch, Punctuation, batch_id, encode_batch, encode_punctuation
from topics.bundles import Bundle, encode_bundle
from topics.manifests import read_head
from topics.names import Role
from topics.records import Registration
from topics.words import Words

REPORTS: Final = 16
"""Of each gateway at an epoch."""
_PATIENCE_SECONDS = 120.0
_ACCEPTED = b"HTTP/1.1 202 "
_ENDS_ANSWER = b"\r\n\r\n{}"


@dataclass(frozen=True, slots=True)
class Windows:
    """What was seen; moments are by this machine's clock, which is the broker's, too.

    Attributes:
        gateways: of the job.
        epoch_seconds: in which each of them sends once.
        decided: of each epoch, seconds from its last request to its manifest.
        published: the same, to its estimate.
        answered: seconds to an answer of the relay: half of them, and the longest.
        bundles: records of Kafka's that an epoch took.
        missing: gateways that were not in a window, of all epochs together.
        processor: seconds of the processor an epoch, by process.
        others: the same, of everything else on the machine.
        peak_megabytes: of memory, by process.
    """

    gateways: int
    epoch_seconds: float
    decided: tuple[float, ...]
    published: tuple[float, ...]
    answered: tuple[float, float]
    bundles: float
    missing: int
    processor: Mapping[str, float]
    others: float
    peak_megabytes: Mapping[str, float]


class _Gateway(asyncio.Protocol):
    """One connection, which posts and waits for 202."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._answer = b""
        self._begun = 0.0
        self._next: deque[tuple[int, bytes]] = deque()
        self.waits = False
        self.problem = ""
        self.sent: dict[int, float] = {}
        self.seconds: list[float] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        self.problem = self.problem or f"hung up: {error}"

    def data_received(self, data: bytes) -> None:
        self._answer += data
        if self._answer.endswith(_ENDS_ANSWER):
            if not self._answer.startswith(_ACCEPTED):
                self.problem = self._answer.decode("latin-1")
            self.seconds.append(time.monotonic() - self._begun)
            self._answer, self.waits = b"", False
            self._go_on()

    async def begin(self, port: int, epoch: int, request: bytes) -> None:
        """Connect, and send the first request."""
        self.waits = True
        await asyncio.get_running_loop().create_connection(lambda: self, "127.0.0.1", port)
        self.waits = False
        self.post(epoch, request)

    def post(self, epoch: int, request: bytes) -> None:
        """Send a request, as soon as the one before has been answered."""
        self._next.append((epoch, request))
        self._go_on()

    def _go_on(self) -> None:
        if not self._next or self.waits or self._transport is None:
            return
        epoch, request = self._next.popleft()
        self._begun, self.sent[epoch], self.waits = time.monotonic(), time.time(), True
        self._transport.write(request)

    def close(self) -> None:
        """Hang up."""
        if self._transport is not None:
            self._transport.abort()


def gateways_job(gateways: int, epochs: int) -> dict[str, object]:
    """A job file whose windows close by completeness alone."""
    return {
        "name": f"bench-{secrets.token_hex(4)}",
        "protocol": "future_rand",
        "parameters": {"epsilon": 1, "changes": 1},
        "epochs": {"count": epochs},
        "shuffle": {"minimum": 1, "producers": gateways, "grace": "1h"},
        "topics": {"partitions": 2},
    }


def measure(connection: Connection, gateways: int, epochs: int, seconds: float) -> Windows:
    """Deploy a job, run it to its last estimate, and delete it."""
    with (
        Cluster(connection) as cluster,
        TemporaryDirectory() as folder,
        RestartedProcesses(_unexpected) as processes,
    ):
        now = time.time_ns() // 10**6
        file = make_job(gateways_job(gateways, epochs))
        job = deploy(cluster, file, deployment=secrets.token_bytes(16), now=now)
        try:
            enrolments = _register(cluster, job, gateways)
            lines: list[str] = []
            commands = {
                "relay": ["relay", "--bind", "127.0.0.1:0", "--job", job.name],
                **{stage: ["run", stage, job.name, "--name", "bench"] for stage in STAGES},
            }
            logs = Path(folder)
            for name, command in commands.items():
                processes.start(
                    name,
                    dpstream_command(*command, *connection.arguments()),
                    logs / f"{name}.log",
                    on_line=lines.append,
                )
            port = _wait_for_all(cluster, job, lines)
            broker = LocalKafka(kafka_folder()).status().pid
            assert broker is not None
            pids = {"broker": broker, **{c.name: c.process.pid for c in processes.children}}
            before = {name: processor_seconds(pid) for name, pid in pids.items()}
            everything, own = busy_seconds(), time.process_time()
            last, answered = asyncio.run(_send(job, enrolments, port, epochs, seconds))
            published = _published(cluster, job, epochs)
            spent = {name: processor_seconds(pid) - before[name] for name, pid in pids.items()}
            spent["gateways"] = time.process_time() - own
            others = max(0.0, busy_seconds() - everything - sum(spent.values()))
            peaks = {name: round(peak_megabytes(pid), 1) for name, pid in pids.items()}
            decided, missing = _decided(cluster, job, gateways)
            bundles = sum(cluster.end_offsets(job.topic(Role.REPORTS)))
        finally:
            undeploy(cluster, job.name, delete_topics=True)
    return Windows(
        gateways,
        seconds,
        tuple(round(decided[epoch] - last[epoch], 2) for epoch in sorted(last)),
        tuple(round(published[epoch] - last[epoch], 2) for epoch in sorted(last)),
        (round(float(np.median(answered)), 3), round(max(answered), 3)),
        round(bundles / epochs, 1),
        missing,
        {name: round(each / epochs, 2) for name, each in spent.items()},
        round(others / epochs, 2),
        peaks,
    )


def _register(cluster: Cluster, job: DeployedJob, gateways: int) -> list[bytes]:
    enrolments = [secrets.token_bytes(16) for _ in range(gateways)]
    for number, enrolment in enumerate(enrolments):
        record = Registration(job.deployment, f"gateway {number}", enrolment, 1)
        cluster.producer.send(job.topic(Role.PRODUCERS), record.to_bytes(), partition=0)
    cluster.producer.flush()
    return enrolments


def _wait_for_all(cluster: Cluster, job: DeployedJob, lines: list[str]) -> int:
    """Until all stages have partitions, and the relay takes the job; returns its port."""
    begun, position, stages = time.monotonic(), 0, set[str]()
    while time.monotonic() - begun < _PATIENCE_SECONDS:
        for record in cluster.read(job.topic(Role.STATUS), 0, position):
            position = record.offset + 1
            said = json.loads(record.value)
            stages |= {said["stage"]} if said["partitions"] else set()
        text = "\n".join(lines)
        port = re.search(r"http://127\.0\.0\.1:(\d+)", text)
        if stages == set(STAGES) and port is not None and _is_ready(int(port[1])):
            return int(port[1])
        time.sleep(0.1)
    raise BenchmarkError("not everybody is there:\n" + "\n".join(lines))


def _is_ready(port: int) -> bool:
    connection = HTTPConnection("127.0.0.1", port, timeout=_PATIENCE_SECONDS)
    with closing(connection):
        connection.request("GET", "/readyz")
        return connection.getresponse().status == HTTPStatus.OK


async def _send(
    job: DeployedJob, enrolments: list[bytes], port: int, epochs: int, seconds: float
) -> tuple[dict[int, float], list[float]]:
    """Send all epochs; returns when the last request of each was sent, and times of answers."""
    loop = asyncio.get_running_loop()
    raise_file_limit(len(enrolments))
    gateways = [_Gateway() for _ in enrolments]
    connecting: set[asyncio.Task[None]] = set()
    rng = np.random.default_rng(1)
    begin = loop.time() + 0.5
    for epoch in range(1, epochs + 1):
        moments = np.sort(rng.random(len(gateways))) * seconds
        order = rng.permutation(len(gateways)).tolist()
        for place, number in enumerate(order):
            # Made as they are sent: of all at once, those of ten thousand would take a second.
            request = _request(job, enrolments[number], epoch)
            delay = begin + float(moments[place]) - loop.time()
            if delay > 0:
                await asyncio.sleep(delay)
            elif place % 20 == 0:
                await asyncio.sleep(0)
            if epoch > 1:
                gateways[number].post(epoch, request)
                continue
            task = loop.create_task(gateways[number].begin(port, epoch, request))
            connecting.add(task)
            task.add_done_callback(connecting.discard)
        begin = max(begin + seconds, loop.time())
    await asyncio.gather(*connecting)
    deadline = loop.time() + _PATIENCE_SECONDS
    while any(each.waits for each in gateways):
        _check(gateways, late=loop.time() > deadline)
        await asyncio.sleep(0.02)
    _check(gateways, late=False)
    for each in gateways:
        each.close()
    last = {epoch: max(each.sent[epoch] for each in gateways) for epoch in range(1, epochs + 1)}
    return last, [second for each in gateways for second in each.seconds]


def _check(gateways: list[_Gateway], *, late: bool) -> None:
    problem = next((each.problem for each in gateways if each.problem), "")
    if problem or late:
        raise BenchmarkError(f"the relay does not answer as it should: {problem or 'too late'}")


def _request(job: DeployedJob, enrolment: bytes, epoch: int) -> bytes:
    words = Words(np.zeros((REPORTS, job.word_form.width), job.word_form.dtype))
    identity, drawing = (job.fingerprint, job.deployment), secrets.token_bytes(8)
    batch = Batch(*identity, batch_id(drawing, 0), enrolment, epoch, words)
    said = Punctuation(*identity, enrolment, epoch, 1, REPORTS, REPORTS, drawing)
    body = encode_bundle(Bundle(*identity, (encode_batch(batch), encode_punctuation(said))))
    head = f"POST /v1/jobs/{job.name}/reports HTTP/1.1\r\nHost: relay\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def _published(cluster: Cluster, job: DeployedJob, epochs: int) -> dict[int, float]:
    """When the estimate of each epoch was written."""
    begun, found, position = time.monotonic(), dict[int, float](), 0
    while len(found) < epochs:
        if time.monotonic() - begun > _PATIENCE_SECONDS:
            raise BenchmarkError(f"{len(found)} of {epochs} epochs are published, and no more")
        for record in cluster.read(job.topic(Role.ESTIMATES), 0, position):
            position = record.offset + 1
            found.setdefault(json.loads(record.value)["epoch"], record.timestamp / 1000)
        time.sleep(0.05)
    return found


def _decided(cluster: Cluster, job: DeployedJob, gateways: int) -> tuple[dict[int, float], int]:
    """When each epoch was decided, and how many gateways were not in, of all together."""
    moments: dict[int, float] = {}
    missing = 0
    for record in cluster.read(job.topic(Role.MANIFESTS)):
        head = read_head(record.value)
        if head.epoch not in moments:
            moments[head.epoch] = record.timestamp / 1000
            missing += gateways - sum(map(head.has, range(gateways)))
    return moments, missing


def _unexpected(sentence: str) -> None:
    raise BenchmarkError(sentence)


def main() -> None:
    """Measure so many gateways."""
    given = [*sys.argv[1:], *["1000", "4", "5"][len(sys.argv) - 1 :]]
    with local_broker(lambda line: print(line, file=sys.stderr)) as connection:
        windows = measure(connection, int(given[0]), int(given[1]), float(given[2]))
    print(json.dumps(asdict(windows)))


if __name__ == "__main__":
    main()
