"""What viewers of the live page may use of its server."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """What viewers may use.

    Attributes:
        connections: how many may be open at once.
        viewers: how many WebSockets of them.
        head_seconds: for a request to be complete.
        idle_seconds: between two requests of a connection.
        heartbeat_seconds: between two heartbeats of a WebSocket.
        news_seconds: between two messages about pipelines and the list of jobs.
        blocked_seconds: after which a viewer that takes nothing is dropped.
        downloads: how many there may be at once.
    """

    connections: int = 3_000
    viewers: int = 2_000
    head_seconds: float = 10.0
    idle_seconds: float = 60.0
    heartbeat_seconds: float = 10.0
    news_seconds: float = 1.0
    blocked_seconds: float = 2.0
    downloads: int = 4
