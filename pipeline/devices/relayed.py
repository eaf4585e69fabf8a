"""How a gateway sends through a relay: its records are posted, and all else goes to Kafka.

What the relay has not answered with 202 is sent again, the same bytes; the shuffle stage drops what
came twice. So a relay may be killed, and another take its place, at any time.
"""

from __future__ import annotations

import json
import ssl
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Final, Protocol
from urllib.parse import urlsplit

from pipeline.actions import Action, Append, Flush, Result, Steps, carry_out
from pipeline.errors import DpstreamError
from pipeline.jobs.deployed_job import DeployedJob, takes_bundles
from pipeline.jobs.relay_paths import part_path
from topics.batches import claimed_epoch
from topics.bundles import Bundle, bundled_bytes, encode_bundle, split_records
from topics.frames import PAYLOAD_TARGET
from topics.names import Role

_PATIENCE_SECONDS: Final = 30.0
_GIVE_UP_AFTER: Final = 600.0
_FIRST_WAIT, _LONGEST_WAIT = 0.2, 5.0
# Records that wait for their flush.
_HELD_BYTES: Final = 1 << 20
_ACCEPTED: Final = 202
_AGAIN: Final = frozenset({408, 429})
_SERVER: Final = 500


class RelayRefusalError(DpstreamError):
    """A relay does not take what it is sent, or stayed away for ten minutes; nothing is lost."""


class Driver(Protocol):
    """Carries out actions on Kafka."""

    def carry_out(self, action: Action) -> object:
        """Carry out an action; returns its reply."""


class RelayTransport:
    """Carries out a producer's actions, those on raw reports by a relay.

    Args:
        job: that takes bundles.
        url: of the relay, such as ``https://relay.example.org:8400``.
        driver: carries out all others.
        token: that the relay knows; None: it asks for none.
        context: by which TLS is spoken; None: as the system has it.
        notify: is told once when the relay is away, and once when it is back.
        sleep: seconds, between two attempts.

    Raises:
        RelayRefusalError: the address is none, or the job takes no bundles.
    """

    def __init__(
        self,
        job: DeployedJob,
        url: str,
        driver: Driver,
        *,
        token: str | None = None,
        context: ssl.SSLContext | None = None,
        notify: Callable[[str], None] = lambda message: None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if not takes_bundles(job):
            raise RelayRefusalError(
                f"job {job.name} takes no records from relays: only one that is deployed to wait "
                "for 100 producers or more does; leave --relay out"
            )
        self._job = job
        self._driver = driver
        self._notify = notify
        self._sleep = sleep
        self._url = url
        self._connect = _connector(url, context)
        self._connection: HTTPConnection | None = None
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._waiting: defaultdict[tuple[Role, int | None], list[bytes]] = defaultdict(list)
        self._waiting_bytes = 0

    def run(self, steps: Steps[Result], /) -> Result:
        """Carry out a whole generator; returns what it returns."""
        return carry_out(steps, self.carry_out)

    def carry_out(self, action: Action) -> object:
        """Carry out an action; only `Flush` waits for acknowledgements, unless they are many."""
        if isinstance(action, Append) and action.role in self._job.report_roles:
            self._waiting[action.role, self._lane(action)].append(action.value)
            self._waiting_bytes += bundled_bytes(action.value)
            if self._waiting_bytes > _HELD_BYTES:
                self._post_all()
            return None
        if isinstance(action, Flush):
            self._post_all()
        return self._driver.carry_out(action)

    def _lane(self, action: Append) -> int | None:
        """Of an epoch in lanes, which one a record is for; None of others."""
        epoch = claimed_epoch(action.value) if self._job.lanes > 1 else None
        return None if epoch is None else self._job.part_in(epoch, action.partition)

    def close(self) -> None:
        """Hang up."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _post_all(self) -> None:
        waiting, self._waiting = self._waiting, defaultdict(list)
        self._waiting_bytes = 0
        # What is not taken is kept where it came from, and sent again by whoever goes on.
        for (role, lane), records in waiting.items():
            path = f"/v1/jobs/{self._job.name}/{part_path(role, lane)}"
            for part in split_records(records, PAYLOAD_TARGET):
                value = part[0]
                if len(part) > 1:
                    identity = self._job.fingerprint, self._job.deployment
                    value = encode_bundle(Bundle(*identity, part))
                self._persist(path, value)

    def _persist(self, path: str, body: bytes) -> None:
        """Post until it is taken, or refused for good."""
        begun, wait, told = time.monotonic(), _FIRST_WAIT, False
        while True:
            status, why, seconds = self._post(path, body)
            if status == _ACCEPTED:
                break
            if status is not None and status < _SERVER and status not in _AGAIN:
                raise RelayRefusalError(
                    f"relay {self._url} does not take what producers of job {self._job.name} "
                    f"send, {status}: {why}; it is kept, put that right and run the same again"
                )
            if time.monotonic() - begun > _GIVE_UP_AFTER:
                raise RelayRefusalError(
                    f"relay {self._url} does not take anything: {why}; what was drawn is kept, run "
                    "the same again, or with another --relay"
                )
            if not told:
                self._notify(f"the relay does not take records ({why}); waiting, nothing is lost")
                told = True
            self._sleep(seconds or wait)
            wait = min(2 * wait, _LONGEST_WAIT)
        if told:
            self._notify("the relay takes records again")

    def _post(self, path: str, body: bytes) -> tuple[int | None, str, float]:
        """The status, None without an answer; why; and after how many seconds to try again."""
        # A connection that was idle may have been closed meanwhile: then a new one is tried.
        for fresh in (self._connection is None, True):
            try:
                if self._connection is None:
                    self._connection = self._connect()
                self._connection.request("POST", path, body, self._headers)
                response = self._connection.getresponse()
                content = response.read()
            except (OSError, HTTPException) as error:
                self.close()
                if fresh:
                    return None, str(error) or type(error).__name__, 0.0
            else:
                return response.status, _title(content), _seconds(response)
        raise AssertionError("a fresh connection answers or fails")


def _connector(url: str, context: ssl.SSLContext | None) -> Callable[[], HTTPConnection]:
    with suppress(ValueError):
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
        if host and not parts.path.strip("/") and not parts.query and not parts.username:
            if parts.scheme == "http":
                return lambda: HTTPConnection(host, port, timeout=_PATIENCE_SECONDS)
            if parts.scheme == "https":
                tls = context or ssl.create_default_context()
                return lambda: HTTPSConnection(host, port, timeout=_PATIENCE_SECONDS, context=tls)
    raise RelayRefusalError(
        f"{url!r} is no address of a relay: give one such as https://relay.example.org:8400"
    )


def _title(content: bytes) -> str:
    with suppress(ValueError, AttributeError, RecursionError):
        title = json.loads(content).get("title")
        if isinstance(title, str) and title.isprintable():
            return title[:200]
    return "it does not say why"


def _seconds(response: HTTPResponse) -> float:
    said = response.headers.get("Retry-After", "")
    return min(float(said), _LONGEST_WAIT) if said.isdecimal() else 0.0
