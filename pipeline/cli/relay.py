"""``dpstream relay``: bundles what a region's gateways send."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
import uvloop

from pipeline.addresses import is_within, networks
from pipeline.cli.cluster_and_jobs import cluster_of, name_of
from pipeline.cli.collect import address_of
from pipeline.cli.errors import UsageProblem
from pipeline.cli.options import (
    KafkaConfig,
    MetricsAddress,
    MetricsPort,
    Servers,
    TlsCertificate,
    TlsKey,
)
from pipeline.cli.output import say, silence, tell
from pipeline.cli.server_tls import given_tls, warn_of_readers
from pipeline.collector.collector import raise_file_limit
from pipeline.kafka.workers.monitor import MonitorAddress
from pipeline.relay.relay import RelaySettings
from pipeline.relay.relay import relay as run_relay
from pipeline.relay.service import digests_of

_SHORTEST_TOKEN = 16
_LOOPBACK = networks(["127.0.0.0/8", "::1/128"])


def relay(
    job: Annotated[
        list[str] | None,
        typer.Option(
            "--job",
            metavar="NAME",
            help="Take records of this job alone; may be repeated. Default: all that are deployed "
            "to wait for 100 producers or more.",
        ),
    ] = None,
    bind: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where to answer; port 0 for any that is free.")
    ] = "127.0.0.1:8400",
    tokens: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Take records with one of these bearer tokens alone, one a line. Needed at "
            "addresses that other machines reach.",
        ),
    ] = None,
    tls_cert: TlsCertificate = None,
    tls_key: TlsKey = None,
    connections: Annotated[
        int,
        typer.Option(min=1, metavar="N", help="That may be open at once."),
    ] = RelaySettings().limits.connections,
    metrics: MetricsPort = None,
    metrics_address: MetricsAddress = "127.0.0.1",
    servers: Servers = None,
    kafka_config: KafkaConfig = None,
) -> None:
    """Bundle what gateways send, many records to one of Kafka's, until told to stop (Ctrl-C).

    Gateways name it with produce --relay. Any number of relays may run, anywhere: they keep
    nothing, change nothing, and a gateway may send to any of them.
    """
    host, port = address_of(bind)
    known = None if tokens is None else _tokens(tokens)
    if known is None and not _is_own(host):
        raise UsageProblem(
            f"--bind is {bind}, which other machines reach: give --tokens FILE, so that not "
            "everybody can write to Kafka through this relay"
        )
    tls = given_tls(tls_cert, tls_key)
    silence("asyncio", "aiokafka")
    settings = RelaySettings(
        host=host,
        port=port,
        jobs=tuple(dict.fromkeys(map(name_of, job or ()))),
        tokens=known,
        tls=tls,
        limits=replace(RelaySettings().limits, connections=raise_file_limit(connections)),
        monitor=None if metrics is None else MonitorAddress(metrics, metrics_address),
    )
    with cluster_of(servers, kafka_config) as cluster:
        connection = cluster.connection
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run_relay(settings, connection, _ready, tell))


def _ready(address: str) -> None:
    say(f"relay: {address}")
    tell("Ctrl-C ends it")


def _is_own(host: str) -> bool:
    try:
        return host == "localhost" or is_within(host, _LOOPBACK)
    except ValueError:
        return False


def _tokens(path: Path) -> tuple[bytes, ...]:
    warn_of_readers(path)
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise UsageProblem(f"cannot read --tokens {path}: {error.strerror}") from None
    found = [line.strip() for line in lines if line.strip()]
    if not found or any(len(token) < _SHORTEST_TOKEN for token in found):
        raise UsageProblem(
            f"--tokens {path}: needs a token a line, each of {_SHORTEST_TOKEN} characters or more; "
            "openssl rand -hex 32 makes one"
        )
    return digests_of(found)
