"""``dpstream serve``: the live page."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Annotated

import typer

from pipeline.cli.cluster_and_jobs import cluster_of, name_of
from pipeline.cli.errors import UsageProblem
from pipeline.cli.inputs import load_truth
from pipeline.cli.options import KafkaConfig, Servers
from pipeline.cli.output import say, tell
from pipeline.devices.item_log import ValueLog
from pipeline.jobs.deployed_job import DeployedJob
from pipeline.serve.server import NoPortError, SiteSettings
from pipeline.serve.server import serve as serve_page

PORT = 8765


def serve(
    jobs: Annotated[
        list[str] | None,
        typer.Argument(metavar="[JOB]...", help="Jobs to be shown. Default: all that there are."),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65_535,
            help=f"Where to serve; 0 for any port that is free. Default: {PORT}, or any if that "
            "is taken.",
        ),
    ] = None,
    address: Annotated[
        str,
        typer.Option(
            metavar="ADDRESS",
            help="Of the interface. Whoever reaches another one than 127.0.0.1 can read the page: "
            "there is no password.",
        ),
    ] = "127.0.0.1",
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-host",
            metavar="NAME[:PORT]",
            help="A name, besides addresses and localhost, under which browsers know this page, "
            "such as that of a reverse proxy.",
        ),
    ] = None,
    truth: Annotated[
        list[str] | None,
        typer.Option(
            "--truth",
            metavar="[JOB=]FILE",
            help="The input of a job: the true curve is drawn too, labelled as not private. For "
            "demonstrations.",
        ),
    ] = None,
    servers: Servers = None,
    kafka_config: KafkaConfig = None,
) -> None:
    """Serve a live page of all jobs, and a JSON API, until told to stop (Ctrl-C, SIGTERM).

    It is read-only, and made from estimates and manifests alone. /api says how programs ask.
    """
    if not address.strip():
        raise UsageProblem("--address is empty: give 127.0.0.1, or 0.0.0.0 for every interface")
    names = tuple(dict.fromkeys(map(name_of, jobs or ())))
    truths = _truths(names, truth or [])
    # What they have to say is on the page; their logs would say it again, many times.
    for name in ("asyncio", "aiohttp"):
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    with cluster_of(servers, kafka_config) as cluster:
        connection = cluster.connection

    def run(at: int) -> None:
        settings = SiteSettings(address, at, names, tuple(allow_host or ()), truths)
        asyncio.run(serve_page(settings, connection, _load, ready=_ready, notify=tell))

    if port is not None:
        run(port)
        return
    try:
        run(PORT)
    except NoPortError:
        run(0)


def _ready(address: str) -> None:
    say(f"live page: {address}")
    tell("Ctrl-C ends it")


def _load(job: DeployedJob, path: Path) -> ValueLog:
    return load_truth(job, path)


def _truths(jobs: tuple[str, ...], given: list[str]) -> dict[str, Path]:
    """The inputs of jobs, by name."""
    truths: dict[str, Path] = {}
    for text in given:
        name, equals, file = text.partition("=")
        path = Path(file if equals and not Path(text).exists() else text)
        if path == Path(text):
            if len(jobs) != 1:
                raise UsageProblem(f"--truth {text}: of which job? Give --truth JOB={text}")
            name = jobs[0]
        if not path.is_file():
            raise UsageProblem(f"--truth {text}: there is no file {path}")
        truths[name] = path
    return truths
