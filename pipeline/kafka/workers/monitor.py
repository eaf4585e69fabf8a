"""Serve a worker's metrics and health over HTTP, from threads that see a blocked event loop."""

from __future__ import annotations

import socket
import socketserver
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from dpstream.pipeline.kafka.cluster_errors import WorkerError
from dpstream.pipeline.kafka.workers.watchdog import Health
from dpstream.pipeline.kafka.workers.worker_facts import JobFacts, PublishedNumbers

# Timeout for a client in seconds.
_REQUEST_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class MonitorAddress:
    """Address and contents of the metrics server; port 0 means any free port.

    `estimates` returns the latest estimates of a worker that publishes. `descriptor` is the file
    descriptor of a listening socket, used instead of port and address.
    """

    port: int
    address: str = "127.0.0.1"
    hides_messages: bool = True
    facts: JobFacts | None = None
    estimates: Callable[[], PublishedNumbers | None] = lambda: None
    descriptor: int | None = None


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(
        self,
        where: MonitorAddress,
        registry: CollectorRegistry,
        checks: Mapping[str, Callable[[], Health]],
    ) -> None:
        self.registry = registry
        self.checks = checks
        self.address_family = socket.AF_INET6 if ":" in where.address else socket.AF_INET
        super().__init__((where.address, where.port), _Handler, where.descriptor is None)
        if where.descriptor is not None:
            self.socket.close()
            self.socket = socket.socket(fileno=where.descriptor)

    def server_bind(self) -> None:
        """Bind without looking up the host name on the network."""
        socketserver.TCPServer.server_bind(self)

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore clients that disconnect."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = _REQUEST_SECONDS
    server_version = "dpstream"
    sys_version = ""

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        check = self.server.checks.get(path)
        if path == "/metrics":
            encode, kind = choose_encoder(self.headers.get("Accept", ""))
            self._answer(200, kind, encode(self.server.registry))
        elif check is not None:
            health = check()
            self._respond(200 if health.good else 503, health.line)
        else:
            self._respond(404, "available: /metrics, /healthz and /readyz")

    def log_message(self, format: str, *args: object) -> None: ...

    def _respond(self, status: int, line: str) -> None:
        self._answer(status, "text/plain; charset=utf-8", f"{line}\n".encode())

    def _answer(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def serve(
    where: MonitorAddress,
    registry: CollectorRegistry,
    *,
    alive: Callable[[], Health],
    ready: Callable[[], Health],
    look_seconds: float = 0.5,
) -> ThreadingHTTPServer:
    """Start a server, which ends with the process, or by its `shutdown` and `server_close`.

    `alive` answers ``/healthz``, `ready` answers ``/readyz``. `shutdown` takes effect within
    `look_seconds`. Raises WorkerError if the address is unavailable.
    """
    try:
        server = _Server(where, registry, {"/healthz": alive, "/readyz": ready})
    except OSError as error:
        raise WorkerError(
            f"cannot serve metrics at {where.address}:{where.port} ({error.strerror}): choose "
            "another address with --metrics and --metrics-address"
        ) from None
    threading.Thread(
        target=server.serve_forever, args=(look_seconds,), name="monitor", daemon=True
    ).start()
    return server
