"""``dpstream audit``: attacks on the installed code."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from pipeline.audit.audits import FULL, QUICK, Attack, Effort, attacks_on, run_attacks
from pipeline.cli.audit_lines import show_audit
from pipeline.cli.inputs import progress_bar
from pipeline.cli.options import AsJson
from pipeline.cli.output import say_json
from pipeline.errors import FAILED
from pipeline.protocols.registry import PROTOCOLS


def audit(
    subject: Annotated[
        str | None,
        typer.Argument(
            metavar="[JOBFILE|PROTOCOL]",
            help="What is attacked: a protocol by its name, or a job file. Default: all protocols.",
        ),
    ] = None,
    trials: Annotated[
        int | None,
        typer.Option(min=20, help="How many windows are drawn of each input and neighbour."),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="What can be tried of all protocols in a minute.")
    ] = False,
    seed: Annotated[
        int | None, typer.Option(help="Makes the attacks repeatable. Default: new randomness.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Attack the installed code as who sees what a party sees. Exit code 1 if convicted."""
    effort = QUICK if quick else FULL
    if trials is not None:
        effort = replace(effort, trials=trials)
    attacks = _attacks(subject, effort)
    with progress_bar() as progress:
        bar = progress.add_task("attacking", total=len(attacks))

        def show(attack: Attack) -> None:
            progress.update(bar, description=f"{attack.subject}: {attack.name}", advance=1)

        found = run_attacks(attacks, seed=seed, on_attack=show)
    if as_json:
        say_json(found.to_json())
    else:
        show_audit(found)
    if found.convicted:
        raise typer.Exit(FAILED)


def _attacks(subject: str | None, effort: Effort) -> list[Attack]:
    names = list(PROTOCOLS) if subject is None else [subject]
    return [attack for name in names for attack in attacks_on(name, effort)]
