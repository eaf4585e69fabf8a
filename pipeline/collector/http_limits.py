"""What clients of a collector may use, and a request as it is handed on."""

from __future__ import annotations

from dataclasses import dataclass, field

from dpstream.topics.envelopes import BODY_MAX


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """What clients may use.

    Attributes:
        connections: accepted at once, those of unfinished TLS handshakes included.
        by_address: connections of one address, or of one network of IPv6; None: as many as come.
        head_bytes: of the head of a request.
        path_bytes: of its path.
        body_bytes: of its body.
        transit_bytes: of all bodies that are not complete, and of requests that have to wait
            because answers before them are not taken.
        unsent_bytes: of answers of one connection that the other side has not taken: with more,
            nothing of it is answered.
        head_seconds: for a head to be complete, from its first byte on, and for a TLS handshake.
        body_seconds: for a body, from the end of its head on.
        idle_seconds: between two requests.
        reading_seconds: for a client to take an answer.
        answer_seconds: for an answer to come about; more than a write to Kafka takes.
        pipelined: requests of one connection that are answered together, or wait.
    """

    connections: int = 10_000
    by_address: int | None = None
    head_bytes: int = 16 << 10
    path_bytes: int = 2_000
    body_bytes: int = BODY_MAX
    transit_bytes: int = 64 << 20
    unsent_bytes: int = 16 << 10
    head_seconds: float = 10.0
    body_seconds: float = 30.0
    idle_seconds: float = 75.0
    reading_seconds: float = 30.0
    answer_seconds: float = 60.0
    pipelined: int = 64


@dataclass(slots=True)
class Request:
    """A request, complete.

    Attributes:
        method: such as POST.
        path: as it was sent, without the query.
        headers: those that are wanted, with names in lower case.
        peer: the address at the other end of the connection.
        body: of the request.
    """

    method: str = ""
    path: bytes = b""
    headers: dict[bytes, bytes] = field(default_factory=dict)
    peer: str = ""
    body: bytes = b""
