"""The commands ``dpstream kafka``, for the local broker."""

from __future__ import annotations

from typing import Annotated

import typer

from dpstream.pipeline.cli.options import AsJson
from dpstream.pipeline.cli.output import print_json, print_line, print_text, tell
from dpstream.pipeline.kafka.local_kafka import LocalKafka
from dpstream.pipeline.state import kafka_folder

app = typer.Typer(
    help="Manage the local broker: a real Apache Kafka, without Docker or Java.",
)


def _local_kafka() -> LocalKafka:
    return LocalKafka(kafka_folder())


@app.command(epilog="Example: dpstream kafka start --port 9092")
def start(
    port: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=65_535,
            help="Port of the broker. Default: the port of the last start, or a free one.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Start the local broker unless it is running."""
    status = _local_kafka().start(port=port, on_progress=tell)
    if as_json:
        print_json(status)
    else:
        print_text(f"Kafka runs at {status.bootstrap_servers} (process {status.pid})")
        print_text(f"data folder: {status.directory}. To stop it: 'dpstream kafka stop'")


@app.command(epilog="Example: dpstream kafka stop")
def stop(as_json: AsJson = False) -> None:
    """Stop the local broker; its data remains."""
    was_running = _local_kafka().stop()
    if as_json:
        print_json({"was_running": was_running})
    else:
        print_text("Kafka is stopped" if was_running else "Kafka was not running")


@app.command(epilog="Example: dpstream kafka status")
def status(as_json: AsJson = False) -> None:
    """Show whether and where the local broker runs. Exits with 1 if it does not."""
    broker = _local_kafka().status()
    if as_json:
        print_json(broker)
    elif broker.running:
        print_text(f"Kafka runs at {broker.bootstrap_servers} (process {broker.pid})")
        print_text(f"data folder: {broker.directory}")
    else:
        print_text("Kafka is not running. To start it: 'dpstream kafka start'")
    if not broker.running:
        raise typer.Exit(1)


@app.command(epilog="Example: dpstream kafka logs --lines 200")
def logs(
    lines: Annotated[int, typer.Option(min=1, help="Number of lines to print, from the end.")] = 50,
    as_json: AsJson = False,
) -> None:
    """Print the end of the broker's log."""
    logged = _local_kafka().logs(lines)
    if as_json:
        print_json(logged)
    else:
        for line in logged:
            print_line(line)
