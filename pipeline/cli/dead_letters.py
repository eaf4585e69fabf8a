"""The command ``dpstream dead-letters``."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated

import typer

from dpstream.pipeline.cli.cluster_and_jobs import cluster_of, find_job
from dpstream.pipeline.cli.command_errors import UsageProblem
from dpstream.pipeline.cli.options import AsJson, JobName, KafkaConfig, Servers
from dpstream.pipeline.cli.output import number, plural, print_json, print_table, print_text, tell
from dpstream.pipeline.operations.dead_letter_log import (
    DeadLetterLog,
    LogPosition,
    discard,
    header_of,
    log_position,
    save_dead_letter,
)
from dpstream.pipeline.operations.redrive import Redrive, redrive
from dpstream.topics.records import DeadLetter


def dead_letters(
    job: JobName,
    limit: Annotated[
        int,
        typer.Option("--limit", min=1, metavar="N", help="Number of latest records to list."),
    ] = 20,
    save: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Write the rejected records to files in this folder."),
    ] = None,
    redrive: Annotated[
        bool,
        typer.Option(
            "--redrive",
            help="Requeue every record that is now valid and belongs to an open epoch, and "
            "delete its dead letter. No record is requeued twice.",
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what --redrive would do.")
    ] = False,
    discard: Annotated[
        bool,
        typer.Option(
            "--discard",
            help="Permanently delete all current dead letters and clear the status warning.",
        ),
    ] = False,
    servers: Servers = None,
    kafka_config: KafkaConfig = None,
    as_json: AsJson = False,
) -> None:
    """Count rejected records by reason, and list the latest.

    Lists the type and epoch that each record claims, never its content.
    """
    if dry_run and not redrive:
        raise UsageProblem("--dry-run shows what --redrive would do: add --redrive")
    if redrive + discard + (save is not None) > 1:
        raise UsageProblem("--save, --redrive and --discard are mutually exclusive")
    if redrive:
        _redrive(job, servers, kafka_config, dry_run=dry_run, as_json=as_json)
        return
    if discard:
        _discard(job, servers, kafka_config, as_json=as_json)
        return

    counts: Counter[str] = Counter()
    latest: deque[DeadLetter] = deque(maxlen=limit)
    with cluster_of(servers, kafka_config) as cluster:
        deployed = find_job(cluster, job)
        hidden = deployed.protocol_entry.shuffling is not None
        if hidden and save is not None:
            raise UsageProblem(
                f"job {deployed.name} uses protocol {deployed.protocol}, whose reports are not "
                "private before the shuffle, and --save would store them permanently. Remove "
                "--save"
            )
        log = DeadLetterLog(cluster, deployed)
        for letter in log.read():
            counts[letter.reason.value] += 1
            latest.append(letter)
    if as_json:
        print_json([_as_json(letter, log, hidden=hidden) for letter in latest])
    elif not latest:
        print_text("no dead letters")
    else:
        listed = ", ".join(f"{counts[reason]:,} {reason}" for reason in sorted(counts))
        settled = {"requeued": log.redriven, "discarded": log.discarded - log.redriven}
        of_them = [f"{len(places):,} of them {how}" for how, places in settled.items() if places]
        print_text("; ".join([listed, *of_them]))
        _show(latest, log.redriven, hidden=hidden)
        if (total := counts.total()) > len(latest):
            print_text(
                f"{total - len(latest):,} earlier records are not listed. To list them: --limit "
                f"{total}"
            )
    if save is not None:
        for letter in latest:
            save_dead_letter(letter, save)
        tell(f"{plural(len(latest), 'record')} saved in {save}")


def _as_json(letter: DeadLetter, log: DeadLetterLog, *, hidden: bool) -> dict[str, object]:
    return {
        "topic": letter.topic,
        "partition": letter.partition,
        "offset": letter.offset,
        "reason": letter.reason,
        "detail": letter.detail,
        "size": _size(letter, hidden=hidden),
        "header": header_of(letter),
        "redriven": log_position(letter) in log.redriven,
        "discarded": log_position(letter) in log.discarded,
    }


def _size(letter: DeadLetter, *, hidden: bool) -> int | None:
    return None if hidden else len(letter.value)


def _show(
    letters: Collection[DeadLetter], redriven: Collection[LogPosition], *, hidden: bool
) -> None:
    print_table(
        {
            "topic": lambda letter: letter.topic.rpartition(".")[2],
            ">partition": "partition",
            ">offset": "offset",
            "reason": "reason.value",
            ">bytes": lambda letter: _size(letter, hidden=hidden),
            "record": lambda letter: _kind_and_epoch(header_of(letter)),
            "detail": lambda letter: (
                ("requeued; " if log_position(letter) in redriven else "") + letter.detail
            ),
        },
        letters,
    )


def _kind_and_epoch(header: Mapping[str, str | int] | None) -> str:
    return "-" if header is None else f"{header['kind']} of epoch {header['epoch']}"


def _redrive(
    job: str, servers: str | None, kafka_config: Path | None, *, dry_run: bool, as_json: bool
) -> None:
    with cluster_of(servers, kafka_config) as cluster:
        done = redrive(cluster, find_job(cluster, job), dry_run=dry_run)
    if as_json:
        print_json(done)
        return
    print_text(_summary(done))
    for why, count in sorted(done.kept.items()):
        print_text(f"{plural(count, 'record')} kept: {why}")


def _discard(job: str, servers: str | None, kafka_config: Path | None, *, as_json: bool) -> None:
    with cluster_of(servers, kafka_config) as cluster:
        new = discard(cluster, find_job(cluster, job))
    if as_json:
        print_json({"discarded": new})
    elif new:
        print_text(
            f"{plural(new, 'dead letter')} discarded and deleted; status warns only about "
            "later ones"
        )
    else:
        print_text("no dead letters to discard")


def _summary(done: Redrive) -> str:
    if not done.requeued:
        return "nothing would be requeued" if done.dry_run else "nothing was requeued"
    batches, punctuations = (done.requeued.get(kind, 0) for kind in ("batch", "punctuation"))
    what = f"{number(batches)} batch{'' if batches == 1 else 'es'} and " + plural(
        punctuations, "punctuation"
    )
    would = "would be requeued" if done.dry_run else "requeued"
    return f"{what} of {plural(done.epochs, 'epoch')} {would}"
