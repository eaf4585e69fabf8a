"""The command ``dpstream erase-keys``."""

from __future__ import annotations

from typing import Annotated

import typer

from dpstream.pipeline.cli.cluster_and_jobs import cluster_of
from dpstream.pipeline.cli.options import AsJson, KafkaConfig, SealingKeys, Servers
from dpstream.pipeline.cli.output import plural, print_json, print_table, print_text
from dpstream.pipeline.jobs.key_files import erase_key_file
from dpstream.pipeline.json_values import json_fields
from dpstream.pipeline.operations.key_periods import expired_in_all_jobs, key_periods_on
from dpstream.pipeline.state import sealing_keys_folder


def erase_keys(
    keys: SealingKeys = None,
    yes: Annotated[
        bool,
        typer.Option("--yes", help="Erase the keys. Without this option, they are only listed."),
    ] = (False),
    servers: Servers = None,
    kafka_config: KafkaConfig = None,
    as_json: AsJson = False,
) -> None:
    """Erase expired private keys: reports sealed to them can no longer be opened.

    A key expires when, in every job on this cluster that uses the key, the last epoch sealed to it
    is published. Keys that no job uses are kept. A recording of these epochs can still be read and
    compared, but no longer replayed or verified with --deep. Copies of a key, for example in
    backups, must be erased by their owners.
    """
    folder = keys or sealing_keys_folder()
    with cluster_of(servers, kafka_config) as cluster:
        periods = key_periods_on(cluster, folder)
    expired = expired_in_all_jobs(periods)
    if yes:
        for path in expired:
            erase_key_file(path)
    if as_json:
        print_json(
            {
                "keys": [
                    json_fields(period) | {"expired": period.path in expired} for period in periods
                ],
                "erased": expired if yes else [],
            }
        )
        return
    if not periods:
        print_text(f"no deployed job uses a key whose private part is in {folder}")
        return
    print_table(
        {
            "=key": "path.name",
            "job": "job",
            "party": "party",
            ">last epoch": lambda period: (
                "continues" if period.last_epoch is None else period.last_epoch
            ),
            ">published": "published",
            "period": lambda period: "expired" if period.expired else "needed",
        },
        periods,
    )
    if not expired:
        print_text("no key period has expired: nothing to erase")
    elif yes:
        print_text(f"{plural(len(expired), 'key')} erased")
    else:
        names = ", ".join(path.name for path in expired)
        print_text(
            f"expired: {names}. To erase {'it' if len(expired) == 1 else 'them'}: 'dpstream "
            "erase-keys --yes'"
        )
