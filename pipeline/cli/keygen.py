"""The command ``dpstream keygen``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from dpstream.pipeline.cli.command_errors import UsageProblem
from dpstream.pipeline.cli.options import AsJson, SealingKeys
from dpstream.pipeline.cli.output import print_json, print_pairs, print_text
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.key_ring import NO_KEYS, KeyRing
from dpstream.pipeline.jobs.sealed import sealing_periods
from dpstream.pipeline.jobs.sealing_keys import PRIVATE_SUFFIX, PUBLIC_SUFFIX, make_key_pair
from dpstream.pipeline.state import sealing_keys_folder
from dpstream.topics.sealing import key_id

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def keygen(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME...",
            help="Names of the key pairs. Each is written as NAME.pub here and NAME.key in --keys.",
        ),
    ],
    keys: SealingKeys = None,
    as_json: AsJson = False,
) -> None:
    """Create key pairs for sealed reports. Run it at the party that opens them.

    The public key, NAME.pub, is written to the current folder, for use in a job file. The private
    key stays with the party that opens the reports: if it is lost, the reports cannot be read; if
    it leaks, others can read them.
    """
    for name in names:
        if not _NAME.fullmatch(name):
            raise UsageProblem(
                f"key name: got {name!r}; expected letters, digits, '.', '-' and '_', starting "
                "with a letter or digit"
            )
    folder = keys or sealing_keys_folder()
    made = {
        name: make_key_pair(folder / f"{name}{PRIVATE_SUFFIX}", Path(f"{name}{PUBLIC_SUFFIX}"))
        for name in names
    }
    if as_json:
        print_json(
            [
                {
                    "name": name,
                    "id": key_id(key),
                    "public": f"{name}{PUBLIC_SUFFIX}",
                    "private": folder / f"{name}{PRIVATE_SUFFIX}",
                }
                for name, key in made.items()
            ]
        )
        return
    for name, key in made.items():
        print_pairs(
            [
                (name, f"key {key_id(key).hex()}"),
                ("public", f"{name}{PUBLIC_SUFFIX}"),
                ("private", str(folder / f"{name}{PRIVATE_SUFFIX}")),
            ]
        )
    print_text("a job file names the public keys:")
    print_text(
        "  sealed: {aggregate: NAME.pub, stages: [NAME.pub]}  # a key for each shuffle stage"
    )
    print_text("  sealed: {shares: [NAME.pub, NAME.pub]}")
    print_text("  devices: {seal: NAME.pub}  # if devices report by themselves")


def key_ring(job: DeployedJob, folder: Path | None) -> KeyRing:
    """Return the private keys that can open a job's reports.

    Raises `WrongKeyError` if a file has no private key, or is accessible to other users.
    """
    if not sealing_periods(job):
        return NO_KEYS
    return KeyRing.of_folder(folder or sealing_keys_folder())
