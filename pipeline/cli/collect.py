"""``dpstream collect``: the collector of device reports."""

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
from dpstream.pipeline.cli.output import say, silence, tell
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
            help="Take reports of this job alone; may be repeated. Default: all whose job files "
            "have devices, as they are deployed, changed and undeployed.",
        ),
    ] = None,
    bind: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where to answer; port 0 for any that is free.")
    ] = "127.0.0.1:8300",
    collector_key: Annotated[
        Path | None,
        typer.Option(
            "--collector-key",
            metavar="FILE",
            help="The key that all collectors of the job share. Default: where deploy has made it, "
            "on the same machine.",
        ),
    ] = None,
    tls_cert: TlsCertificate = None,
    tls_key: TlsKey = None,
    allow_origin: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-origin",
            metavar="ORIGIN",
            help="Pages of this origin may report, such as https://app.example.org; may be "
            "repeated. '*' allows all of them. Default: none.",
        ),
    ] = None,
    proxy: Annotated[
        list[str] | None,
        typer.Option(
            "--proxy",
            metavar="NETWORK",
            help="Address of a proxy, or network of proxies such as 172.28.0.0/16, whose "
            "X-Forwarded-For says for whom they ask; may be repeated.",
        ),
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option(
            min=0.001,
            metavar="N",
            help="Requests and reports a second that one address may send; of IPv6, one network. "
            "Default: as many as it likes.",
        ),
    ] = None,
    connections: Annotated[
        int,
        typer.Option(min=1, metavar="N", help="That may be open at once."),
    ] = HttpLimits().connections,
    address_connections: Annotated[
        int | None,
        typer.Option(
            "--address-connections",
            min=1,
            metavar="N",
            help="Of these, those of one address, or of one network of IPv6; a --proxy may have "
            "more. Default: all.",
        ),
    ] = None,
    metrics: Annotated[
        int | None,
        typer.Option(
            "--metrics-port",
            min=1,
            max=65_535,
            metavar="PORT",
            help="Serve /metrics (for Prometheus), /healthz and /readyz here. Default: nowhere.",
        ),
    ] = None,
    metrics_address: Annotated[
        str,
        typer.Option(metavar="ADDRESS", help="Of the interface on which --metrics-port serves."),
    ] = "127.0.0.1",
    log_format: Annotated[
        LogFormat,
        typer.Option(help="Of the lines on standard error: one for every epoch that is over."),
    ] = LogFormat.text,
    servers: Servers = None,
    kafka_config: KafkaConfig = None,
) -> None:
    """Take reports of devices over HTTP, and write them to Kafka, until told to stop (Ctrl-C).

    Any number of collectors may run, anywhere: they keep nothing, and share a key.
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
    say(f"collector: {address}")
    tell("Ctrl-C ends it")


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65_535:
        raise UsageProblem(f"--bind is {text}: give HOST:PORT, such as 0.0.0.0:8300")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _proxies(texts: Sequence[str]) -> tuple[Network, ...]:
    try:
        return networks(map(str.strip, texts))
    except ValueError as error:
        raise UsageProblem(
            f"--proxy is {error}: give an address, or a network such as 172.28.0.0/16"
        ) from None
