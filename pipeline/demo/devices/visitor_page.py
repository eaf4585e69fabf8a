"""The visitors' page: every browser that opens it becomes a device, whose value no server sees.

``python -m dpstream.pipeline.demo.devices.visitor_page PORT SETTINGS [--bootstrap-servers ...]``.
The page reports to the collectors directly. This server provides its files, the client for
browsers, and the published estimates.
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Final

from aiohttp import web

from dpstream.pipeline.demo.devices.fleet import have_it_on
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.kafka.connection import Connection, find_cluster
from dpstream.pipeline.kafka.deployed_jobs import find_deployed
from dpstream.pipeline.parent_watch import follow
from dpstream.pipeline.results.follow import EstimateReader
from dpstream.pipeline.results.phrases import assumption
from dpstream.pipeline.stages.estimate_records import EstimateRecord

_TYPES: Final = {
    ".html": "text/html",
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
}
_READ_SECONDS: Final = 0.5


class PublishedReader:
    def __init__(self, connection: Connection, job: str) -> None:
        self._connection = connection
        self._job = job
        self._epochs: dict[int, dict[str, Any]] = {}
        threading.Thread(target=self._follow, name="published", daemon=True).start()

    def epochs(self, ground_truth: Path) -> list[dict[str, Any]]:
        """Return all epochs in order: estimates, and the ground truth, which is known only here."""
        known = {}
        for line in ground_truth.read_text().splitlines():
            reply = json.loads(line)
            known[reply["epoch"]] = reply["true"]
        return [
            {**record, "true": known.get(epoch)} for epoch, record in sorted(self._epochs.items())
        ]

    def _follow(self) -> None:
        with Cluster(self._connection) as cluster:
            job = find_deployed(cluster, self._job)
            reader = EstimateReader(cluster, job)
            while True:
                for record in reader.read():
                    self._epochs[record.epoch] = epoch_body(job, record)
                time.sleep(_READ_SECONDS)


def epoch_body(job: DeployedJob, record: EstimateRecord) -> dict[str, Any]:
    return {
        "epoch": record.epoch,
        "value": record.summary.value,
        "ci95_low": record.summary.ci95_low,
        "ci95_high": record.summary.ci95_high,
        "description": have_it_on(record),
        **assumption(job, record.flags),
    }


def application(settings: dict[str, Any], published: PublishedReader) -> web.Application:
    sources = " ".join(settings["collectors"])
    headers = {
        "Content-Security-Policy": (
            f"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
            f"connect-src 'self' {sources}; base-uri 'none'; form-action 'none'"
        ),
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-cache",
    }
    files = {
        f"/static/{path}": content
        for path, content in _files("dpstream.pipeline.demo.devices.static")
    }
    files |= {
        f"/device/{path}": content
        for path, content in _files("dpstream.randomizers.javascript.src")
    }
    files["/"] = files["/static/index.html"]
    public = {key: settings[key] for key in ("job", "collectors", "signer", "operators", "devices")}

    async def file(request: web.Request) -> web.Response:
        found = files.get(request.path)
        if found is None:
            raise web.HTTPNotFound
        content, kind = found
        return web.Response(body=content, content_type=kind, charset="utf-8", headers=headers)

    async def config(request: web.Request) -> web.Response:
        return web.json_response(public, headers=headers)

    async def estimates(request: web.Request) -> web.Response:
        return web.json_response(published.epochs(Path(settings["ground_truth"])), headers=headers)

    app = web.Application()
    app.router.add_get("/config.json", config)
    app.router.add_get("/estimates.json", estimates)
    app.router.add_get("/{path:.*}", file)
    return app


def _files(package: str) -> list[tuple[str, tuple[bytes, str]]]:
    found = []

    def walk(folder: Traversable, prefix: str) -> None:
        for each in folder.iterdir():
            ending = f".{each.name.rpartition('.')[2]}"
            if each.is_dir():
                walk(each, f"{prefix}{each.name}/")
            elif ending in _TYPES:
                found.append((f"{prefix}{each.name}", (each.read_bytes(), _TYPES[ending])))

    parent, _, name = package.rpartition(".")
    walk(resources.files(parent).joinpath(name), "")
    return found


def main() -> None:
    follow()
    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int)
    parser.add_argument("settings", type=json.loads)
    parser.add_argument("--bootstrap-servers")
    parser.add_argument("--kafka-config", type=Path)
    options = parser.parse_args()
    connection = find_cluster(options.bootstrap_servers, options.kafka_config)
    published = PublishedReader(connection, options.settings["job"])
    web.run_app(
        application(options.settings, published),
        host="127.0.0.1",
        port=options.port,
        access_log=None,
        print=None,
    )


if __name__ == "__main__":
    main()
