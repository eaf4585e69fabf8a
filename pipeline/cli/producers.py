"""The command ``dpstream producers``."""

from __future__ import annotations

from typing import Annotated

import typer

from dpstream.pipeline.cli.cluster_and_jobs import cluster_of, find_job
from dpstream.pipeline.cli.options import AsJson, JobName, KafkaConfig, Servers
from dpstream.pipeline.cli.output import print_json, print_table, print_text
from dpstream.pipeline.kafka.deployed_jobs import check_has_producers
from dpstream.pipeline.operations.registrations import Registrations


def producers(
    job: JobName,
    retire: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Retire this producer permanently, after the last epoch."
        ),
    ] = None,
    servers: Servers = None,
    kafka_config: KafkaConfig = None,
    as_json: AsJson = False,
) -> None:
    """List the producers of a job, or retire one permanently."""
    with cluster_of(servers, kafka_config) as cluster:
        deployed = find_job(cluster, job)
        check_has_producers(deployed)
        registrations = Registrations(cluster, deployed)
        if retire is not None:
            last_epoch = registrations.retire(retire)
    if retire is not None:
        if as_json:
            print_json({"producer": retire, "last_epoch": last_epoch})
        else:
            print_text(
                f"producer {retire} is retired: epochs after {last_epoch} do not wait for it"
            )
        return
    registered = registrations.statuses()
    if as_json:
        print_json(registered)
    elif not registered:
        print_text("no producer has registered. To start one: 'dpstream produce'")
    else:
        print_table(
            {
                "producer": "name",
                "state": "state",
                ">first epoch": "first_epoch",
                ">last epoch": "last_epoch",
                ">last included": "last_in",
                ">devices": "devices",
            },
            registered,
        )
