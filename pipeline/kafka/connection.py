"""Connect to a Kafka cluster, with settings for each of the clients used here.

A cluster is selected by ``--bootstrap-servers``, by ``$DPSTREAM_BOOTSTRAP_SERVERS``, or by a
client.properties file (``--kafka-config``). By default, the local broker is used.
"""

from __future__ import annotations

import os
import re
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpstream.pipeline.errors import WRONG_INPUT, DpstreamError
from dpstream.pipeline.kafka.silent_peers import socket_options
from dpstream.pipeline.state import kafka_folder

if TYPE_CHECKING:
    from dpstream.pipeline.kafka.local_kafka.jars import Progress

SERVERS_VARIABLE = "DPSTREAM_BOOTSTRAP_SERVERS"

# By default, kafka-python waits up to 30 s between attempts to reach a broker, which would delay it
# after each broker restart.
RECONNECT_BACKOFF_MAX_MS = 1_000

_LAST_PORT = 65_535
_SERVER = re.compile(r"(?:\[[0-9a-fA-F:.]+\]|[\w.-]+):\d{1,5}")


class ConnectionSettingsError(DpstreamError, ValueError):
    exit_code = WRONG_INPUT


@dataclass(frozen=True, slots=True)
class Login:
    mechanism: str
    username: str
    password: str = field(repr=False)


class NoClusterError(DpstreamError):
    pass


@dataclass(frozen=True, slots=True, eq=False)
class Connection:
    """A cluster, and the credentials for connecting to it.

    ``tls`` is None without TLS, and ``login`` without SASL. ``config`` is the settings file, if
    any.

    >>> Connection(("127.0.0.1:9092",)).aiokafka()["security_protocol"]
    'PLAINTEXT'
    """

    bootstrap_servers: tuple[str, ...]
    tls: ssl.SSLContext | None = None
    login: Login | None = None
    client_id: str | None = None
    warnings: tuple[str, ...] = ()
    config: Path | None = None

    @property
    def security_protocol(self) -> str:
        return ("SASL_" if self.login else "") + ("SSL" if self.tls else "PLAINTEXT")

    @property
    def principal(self) -> str | None:
        """The login's name in the cluster's ACLs; None for certificates and without a login."""
        return None if self.login is None else f"User:{self.login.username}"

    def kafka_python(self) -> dict[str, Any]:
        return {
            **self._settings(),
            "reconnect_backoff_max_ms": RECONNECT_BACKOFF_MAX_MS,
            "socket_options": list(socket_options()),
        }

    def aiokafka(self) -> dict[str, Any]:
        return self._settings()

    def faust(self) -> dict[str, Any]:
        from faust import SASLCredentials, SSLCredentials

        settings: dict[str, Any] = {
            "broker": ";".join(f"kafka://{server}" for server in self.bootstrap_servers)
        }
        if self.login:
            settings["broker_credentials"] = SASLCredentials(
                mechanism=self.login.mechanism,
                username=self.login.username,
                password=self.login.password,
                ssl_context=self.tls,
            )
        elif self.tls:
            settings["broker_credentials"] = SSLCredentials(self.tls)
        if self.client_id:
            settings["broker_client_id"] = self.client_id
        return settings

    def arguments(self) -> list[str]:
        """Return command-line options that select this cluster in another dpstream process."""
        options = ["--bootstrap-servers", ",".join(self.bootstrap_servers)]
        return options + (["--kafka-config", str(self.config)] if self.config else [])

    def _settings(self) -> dict[str, Any]:
        settings: dict[str, Any] = {
            "bootstrap_servers": list(self.bootstrap_servers),
            "security_protocol": self.security_protocol,
        }
        if self.tls:
            settings["ssl_context"] = self.tls
        if self.login:
            settings["sasl_mechanism"] = self.login.mechanism
            settings["sasl_plain_username"] = self.login.username
            settings["sasl_plain_password"] = self.login.password
        if self.client_id:
            settings["client_id"] = self.client_id
        return settings


def parse_servers(text: str, what: str) -> tuple[str, ...]:
    servers = tuple(server.strip() for server in text.split(",") if server.strip())
    wrong = [server for server in servers if not _SERVER.fullmatch(server)]
    if wrong or not servers:
        raise ConnectionSettingsError(
            f"{what}: got {repr(wrong[0]) if wrong else 'an empty value'}; expected "
            "HOST:PORT[,HOST:PORT...]"
        )
    for server in servers:
        if not 1 <= int(server.rpartition(":")[2]) <= _LAST_PORT:
            raise ConnectionSettingsError(
                f"{what}: got {server}; expected a port from 1 to {_LAST_PORT}"
            )
    return servers


def find_cluster(
    bootstrap_servers: str | None = None,
    kafka_config: Path | None = None,
    *,
    start_if_missing: bool = False,
    on_progress: Progress = lambda sentence: None,
) -> Connection:
    """Return the connection to the cluster that the user selects.

    ``bootstrap_servers`` takes precedence over the environment variable, and the variable over the
    file ``kafka_config``. If none is given, the local broker is used, or started if
    ``start_if_missing``. Raises `ConnectionSettingsError`, `NoClusterError` or `LocalKafkaError`.
    """
    servers = bootstrap_servers or os.environ.get(SERVERS_VARIABLE) or None
    named = parse_servers(servers, "bootstrap servers") if servers else ()
    if kafka_config is not None:
        from dpstream.pipeline.kafka.client_properties import read_client_properties

        properties = read_client_properties(kafka_config)
        if not named and not properties.bootstrap_servers:
            raise ConnectionSettingsError(
                f"{kafka_config}: bootstrap.servers is missing; add it, or use --bootstrap-servers"
            )
        return Connection(
            bootstrap_servers=named or properties.bootstrap_servers,
            tls=properties.tls,
            login=properties.login,
            client_id=properties.client_id,
            warnings=properties.warnings,
            config=kafka_config.absolute(),
        )
    if named:
        return Connection(named)
    # Import on demand: not needed if the user selects a cluster.
    from dpstream.pipeline.kafka.local_kafka import LocalKafka

    broker = LocalKafka(kafka_folder())
    status = broker.start(on_progress=on_progress) if start_if_missing else broker.status()
    if not status.running or status.bootstrap_servers is None:
        raise NoClusterError(
            "no local Kafka is running: start it with 'dpstream kafka start', or select "
            "a cluster with --bootstrap-servers"
        )
    return Connection((status.bootstrap_servers,))
