"""The command ``dpstream collect``."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
import uvloop

from dpstream.pipeline.addresses import Network, networks
from dpstream.pipeline.cli.cluster_and_jobs import cluster_of, name_of
from dpstream.pipeline.cli.command_errors import UsageProblem
from dpstream.pipeline.cli.options import KafkaConfig, LogFormat, Servers, TlsCertificate, TlsKey
from dpstream.pipeline.cli.output import print_text, silence, tell
from dpstream.pipeline.cli.server_tls import given_tls
from dpstream.pipeline.collector.collector import CollectorSettings, raise_file_limit
from dpstream.pipeline.collector.collector import collect as run_collector
from dpstream.pipeline.collector.http_limits import HttpLimits
from dpstream.pipeline.collector.service import Access
from dpstream.pipeline.kafka.workers.monitor import MonitorAddress


def collect(
    job: Annotated[
        list[str] | None,
        typer.Option(
            "--job",
            metavar="NAME",
            help="Accept only reports of this job. May be repeated. Default: all jobs whose job "
            "files have 'devices', including jobs deployed later.",
        ),
    ] = None,
    bind: Annotated[
        str,
        typer.Option(metavar="HOST:PORT", help="Address to listen on; port 0 for any free port."),
    ] = "127.0.0.1:8300",
    collector_key: Annotated[
        Path | None,
        typer.Option(
            "--collector-key",
            metavar="FILE",
            help="Key shared by all collectors of a job. Default: the file made by deploy, on the "
            "same machine.",
        ),
    ] = None,
    tls_cert: TlsCertificate = None,
    tls_key: TlsKey = None,
    allow_origin: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-origin",
            metavar="ORIGIN",
            help="Origin whose pages may report, such as https://app.example.org; '*' for any. May "
            "be repeated. Default: none.",
        ),
    ] = None,
    proxy: Annotated[
        list[str] | None,
        typer.Option(
            "--proxy",
            metavar="NETWORK",
            help="Address or network of proxies, such as 172.28.0.0/16, whose X-Forwarded-For is "
            "trusted. May be repeated.",
        ),
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option(
            min=0.001,
            metavar="N",
            help="Maximum requests and reports per second from one address (IPv6: one network). "
            "Default: unlimited.",
        ),
    ] = None,
    connections: Annotated[
        int,
        typer.Option(min=1, metavar="N", help="Maximum open connections."),
    ] = HttpLimits().connections,
    address_connections: Annotated[
        int | None,
        typer.Option(
            "--address-connections",
            min=1,
            metavar="N",
            help="Maximum open connections from one address (IPv6: one network); a --proxy may "
            "have more. Default: unlimited.",
        ),
    ] = None,
    metrics: Annotated[
        int | None,
        typer.Option(
            "--metrics-port",
            min=1,
            max=65_535,
            metavar="PORT",
            help="Port for /metrics (Prometheus), /healthz and /readyz. Default: none.",
        ),
    ] = None,
    metrics_address: Annotated[
        str,
        typer.Option(metavar="ADDRESS", help="Interface for --metrics-port."),
    ] = "127.0.0.1",
    log_format: Annotated[
        LogFormat,
        typer.Option(help="Format of log lines on standard error, one for each finished epoch."),
    ] = LogFormat.text,
    servers: Servers = None,
    kafka_config: KafkaConfig = None,
) -> None:
    """Receive reports from devices over HTTP and write them to Kafka, until Ctrl-C.

    Any number of collectors can run, on any machines: they store nothing, and share a key.
    """
    host, port = _address(bind)
    tls = given_tls(tls_cert, tls_key)
    names = tuple(dict.fromkeys(map(name_of, job or ())))
    silence("asyncio", "aiokafka")
    settings = CollectorSettings(
        host=host,
        port=port,
        jobs=names,
        key_file=collector_key,
        tls=tls,
        access=Access(frozenset(allow_origin or ()), _proxies(proxy or ())),
        rate=rate,
        limits=replace(
            HttpLimits(),
            connections=raise_file_limit(connections),
            by_address=address_connections,
        ),
        as_json=log_format is LogFormat.json,
        monitor=None if metrics is None else MonitorAddress(metrics, metrics_address),
    )
    with cluster_of(servers, kafka_config) as cluster:
        connection = cluster.connection
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run_collector(settings, connection, _ready))


def _ready(address: str) -> None:
    print_text(f"collector: {address}")
    tell("press Ctrl-C to stop")


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65_535:
        raise UsageProblem(f"--bind: got {text!r}; expected HOST:PORT, such as 0.0.0.0:8300")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _proxies(texts: Sequence[str]) -> tuple[Network, ...]:
    try:
        return networks(map(str.strip, texts))
    except ValueError as error:
        raise UsageProblem(
            f"--proxy: {error}; expected an address, or a network such as 172.28.0.0/16"
        ) from None
