"""The commands ``dpstream serve`` and ``password``."""

from __future__ import annotations

import asyncio
import re
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from dpstream.pipeline.addresses import networks
from dpstream.pipeline.cli.cluster_and_jobs import cluster_of, local_results, name_of
from dpstream.pipeline.cli.command_errors import UsageProblem
from dpstream.pipeline.cli.inputs import load_ground_truth
from dpstream.pipeline.cli.options import KafkaConfig, Servers, SkipBadRows, TlsCertificate, TlsKey
from dpstream.pipeline.cli.output import print_text, silence, tell
from dpstream.pipeline.cli.server_tls import given_tls, warn_of_readers
from dpstream.pipeline.serve.access import AccessSettings
from dpstream.pipeline.serve.passwords import LONGEST, HashedPassword, write_password
from dpstream.pipeline.serve.security import check_origin
from dpstream.pipeline.serve.server import NoPortError, SiteSettings
from dpstream.pipeline.serve.server import serve as serve_page

PORT = 8765

_HEADER = re.compile(r"[A-Za-z0-9-]{1,100}")


def serve(
    jobs: Annotated[
        list[str] | None,
        typer.Argument(metavar="[JOB]...", help="Jobs to show. Default: all."),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65_535,
            help=f"Port to serve on; 0 for any free port. Default: {PORT}, or a free one if taken.",
        ),
    ] = None,
    address: Annotated[
        str,
        typer.Option(
            metavar="ADDRESS",
            help="Interface to serve on. Anyone who can reach an address other than 127.0.0.1 can "
            "read the page, unless it has a password.",
        ),
    ] = "127.0.0.1",
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-host",
            metavar="NAME[:PORT]",
            help="Additional name under which browsers reach this page, such as that of a reverse "
            "proxy. Addresses and localhost are always allowed.",
        ),
    ] = None,
    tls_cert: TlsCertificate = None,
    tls_key: TlsKey = None,
    password_file: Annotated[
        Path | None,
        typer.Option(
            "--password-file",
            metavar="FILE",
            help="Require a password. The file contains its hash, written by dpstream password.",
        ),
    ] = None,
    trusted_header: Annotated[
        str | None,
        typer.Option(
            "--trusted-header",
            metavar="NAME",
            help="Admit users that a proxy names in this header, such as X-Forwarded-User. Others "
            "need the password.",
        ),
    ] = None,
    trusted_proxy: Annotated[
        list[str] | None,
        typer.Option(
            "--trusted-proxy",
            metavar="ADDRESS",
            help="Address or network from which --trusted-header is accepted. May be repeated. "
            "Default: this machine.",
        ),
    ] = None,
    frame_ancestors: Annotated[
        list[str] | None,
        typer.Option(
            "--frame-ancestor",
            metavar="ORIGIN",
            help="Origin whose pages may embed this page in a frame, such as "
            "https://intranet.example.org. May be repeated.",
        ),
    ] = None,
    ground_truth: Annotated[
        list[str] | None,
        typer.Option(
            "--ground-truth",
            metavar="[JOB=]FILE",
            help="A job's input, from which the page also draws the ground truth, labeled as not "
            "private. For demonstrations.",
        ),
    ] = None,
    users: Annotated[
        Path | None,
        typer.Option(
            "--users",
            metavar="FILE",
            help="(with --ground-truth) User list of the input, as for dpstream produce.",
        ),
    ] = None,
    skip_bad_rows: SkipBadRows = False,
    servers: Servers = None,
    kafka_config: KafkaConfig = None,
) -> None:
    """Serve a live page and a JSON API for all jobs, until Ctrl-C or SIGTERM.

    Both are read-only and use only estimates and manifests. /api documents the API. If the local
    broker has jobs but is stopped, as after dpstream up, it runs meanwhile.
    """
    if not address.strip():
        raise UsageProblem("--address is empty: use 127.0.0.1, or 0.0.0.0 for all interfaces")
    names = tuple(dict.fromkeys(map(name_of, jobs or ())))
    ground_truths = _ground_truths(names, ground_truth or [])
    tls = given_tls(tls_cert, tls_key)
    access = _access(password_file, trusted_header, trusted_proxy or [])
    origins = _origins(frame_ancestors or [])
    silence("asyncio", "aiohttp")
    load = partial(load_ground_truth, users=users, skip_bad_rows=skip_bad_rows)
    settings = SiteSettings(
        address, PORT, names, tuple(allow_host or ()), ground_truths, tls, access, origins
    )
    with local_results(servers, kafka_config):
        with cluster_of(servers, kafka_config) as cluster:
            connection = cluster.connection

        def run(at: int) -> None:
            site = replace(settings, port=at)
            asyncio.run(serve_page(site, connection, load, ready=_ready, notify=tell))

        if port is not None:
            run(port)
            return
        try:
            run(PORT)
        except NoPortError:
            run(0)


def _access(password: Path | None, header: str | None, proxies: list[str]) -> AccessSettings:
    if proxies and header is None:
        raise UsageProblem(
            "--trusted-proxy requires --trusted-header, which is accepted from these addresses"
        )
    if header is not None and not _HEADER.fullmatch(header):
        raise UsageProblem(
            f"--trusted-header: got {header!r}; expected the name of a header, such as "
            "X-Forwarded-User"
        )
    try:
        trusted = networks(proxies)
    except ValueError as error:
        raise UsageProblem(
            f"--trusted-proxy: {error}; expected an address or a network, such as 10.0.0.0/8"
        ) from None
    if password is not None:
        warn_of_readers(password)
    hashed = None if password is None else HashedPassword.read(password)
    known = AccessSettings(hashed, header)
    return replace(known, proxies=trusted) if trusted else known


def _origins(given: list[str]) -> tuple[str, ...]:
    try:
        return tuple(map(check_origin, given))
    except ValueError as error:
        raise UsageProblem(
            f"--frame-ancestor: {error}; expected only scheme and host, such as "
            "https://intranet.example.org"
        ) from None


def _ready(address: str) -> None:
    print_text(f"live page: {address}", whole=True)
    tell("press Ctrl-C to stop")


def _ground_truths(jobs: tuple[str, ...], given: list[str]) -> dict[str, Path]:
    ground_truths: dict[str, Path] = {}
    for text in given:
        name, equals, file = text.partition("=")
        path = Path(file if equals and not Path(text).exists() else text)
        if path == Path(text):
            if len(jobs) != 1:
                raise UsageProblem(
                    f"--ground-truth: got {text}; expected JOB=FILE, such as --ground-truth "
                    f"JOB={text}"
                )
            name = jobs[0]
        if not path.is_file():
            raise UsageProblem(f"--ground-truth: got {text}; file {path} does not exist")
        ground_truths[name] = path
    return ground_truths


def password(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File for the hash.")],
) -> None:
    """Set the password of the live page, for dpstream serve --password-file FILE.

    Prompts twice on a terminal, otherwise reads the first line of standard input. The file contains
    only the hash. To change the password, write the file again and restart the page.
    """
    if sys.stdin.isatty():
        chosen: str = typer.prompt(
            "Password of the page",
            hide_input=True,
            confirmation_prompt="Repeat the password",
            err=True,
        )
    else:
        line = sys.stdin.readline(LONGEST + 2)
        if not line.strip():
            raise UsageProblem("no password received: pass it as the first line of standard input")
        chosen = line.rstrip("\r\n")
    write_password(file, chosen)
    print_text(f"wrote the hash to {file}")
    tell(f"To require this password: 'dpstream serve --password-file {file}'")
