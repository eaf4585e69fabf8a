"""Commands that look at a deployed job: producers, dead-letters, estimates."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.cli.options import (
    AsJson,
    JobName,
    KafkaConfig,
    Servers,
    cluster_of,
    find_job,
)
from pipeline.cli.output import (
    number,
    plural,
    say,
    say_json,
    say_table,
    tell,
)

if TYPE_CHECKING:
    from pipeline.estimate_records import EstimateRecord
    from topics.records import DeadLetter


def producers(
    job: JobName,
    retire: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="End this producer for good, after the last epoch."),
    ] = None,
    servers: Servers = None,
    kafka_config: KafkaConfig = None,
    as_json: AsJson = False,
) -> None:
    """List who reports to a job, or end a producer for good."""
    from pipeline.registrations import Registrations

    with cluster_of(servers, kafka_config) as cluster:
        registrations = Registrations(cluster, find_job(cluster, job))
        if retire is not None:
            last_epoch = registrations.retire(retire)
    if retire is not None:
        if as_json:
            say_json({"producer": retire, "last_epoch": last_epoch})
        else:
            say(f"producer {retire} is retired: no epoch after {last_epoch} waits for it")
        return
    found = registrations.statuses()
    if as_json:
        say_json([asdict(producer) for producer in found])
    elif not found:
        say("no producer has registered: dpstream produce starts one")
    else:
        say_table(
            ["producer", "state", ">first epoch", ">last epoch", ">last in", ">devices"],
            (
                (
                    producer.name,
                    producer.state,
                    number(producer.first_epoch),
                    number(producer.last_epoch),
                    number(producer.last_in),
                    number(producer.devices),
                )
                for producer in found
            ),
        )


def dead_letters(
    job: JobName,
    limit: Annotated[int, typer.Option(min=1, help="How many, from the latest back.")] = 20,
    save: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="Write the refused records themselves to files in this folder."
        ),
    ] = None,
    servers: Servers = None,
    kafka_config: KafkaConfig = None,
    as_json: AsJson = False,
) -> None:
    """List the records that were refused, and why. What they hold is shown to nobody."""
    from pipeline.dead_letters import read_dead_letters, save_dead_letter

    total = 0
    latest: deque[DeadLetter] = deque(maxlen=limit)
    with cluster_of(servers, kafka_config) as cluster:
        for letter in read_dead_letters(cluster, find_job(cluster, job)):
            total += 1
            latest.append(letter)
    if as_json:
        say_json(
            [
                {
                    "topic": letter.topic,
                    "partition": letter.partition,
                    "offset": letter.offset,
                    "reason": letter.reason.value,
                    "detail": letter.detail,
                    "size": len(letter.value),
                }
                for letter in latest
            ]
        )
    elif not latest:
        say("there are no dead letters")
    else:
        say_table(
            ["topic", ">partition", ">offset", "reason", ">bytes", "detail"],
            (
                (
                    letter.topic.rpartition(".")[2],
                    letter.partition,
                    letter.offset,
                    letter.reason.value,
                    number(len(letter.value)),
                    letter.detail,
                )
                for letter in latest
            ),
        )
        if total > len(latest):
            say(f"{total - len(latest):,} earlier ones: --limit {total} lists them all")
    if save is not None:
        for letter in latest:
            save_dead_letter(letter, save)
        tell(f"{plural(len(latest), 'record')} saved in {save}")


class Format(StrEnum):
    """How estimates are printed."""

    table = "table"
    csv = "csv"
    json = "json"


def estimates(
    job: JobName,
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on with new epochs until the last one.")
    ] = False,
    format: Annotated[
        Format, typer.Option(help="json is one object a line, csv has a header.")
    ] = Format.table,
    servers: Servers = None,
    kafka_config: KafkaConfig = None,
    as_json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
) -> None:
    """Print the published estimates."""
    from pipeline.cli.estimate_lines import LINES
    from pipeline.follow import EstimateReader

    with cluster_of(servers, kafka_config) as cluster:
        reader = EstimateReader(cluster, find_job(cluster, job))
        records: Iterator[EstimateRecord] = reader.follow(tell) if follow else reader.read()
        for line in LINES["json" if as_json else format](records):
            print(line, flush=follow)
