"""The command ``dpstream budget``."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from dpstream.pipeline.cli.cluster_and_jobs import cluster_of
from dpstream.pipeline.cli.command_errors import UsageProblem
from dpstream.pipeline.cli.options import AsJson, KafkaConfig, Servers, Yes, ask
from dpstream.pipeline.cli.output import now, print_json, print_pairs, print_text
from dpstream.pipeline.cli.population_lines import population_json, population_pairs
from dpstream.pipeline.jobs.budget_declarations import BY_COMMAND, BudgetDeclaration, binding_budget
from dpstream.pipeline.ledger.ledger_topic import read_spending, write_with_receipt
from dpstream.pipeline.ledger.spending import Spending
from dpstream.pipeline.ledger.writing import of_budget
from dpstream.pipeline.values.durations import parse_duration

_COMMAND = "dpstream budget"


def budget(
    population: Annotated[
        str, typer.Argument(metavar="POPULATION", help="Population, as named in job files.")
    ],
    epsilon: Annotated[
        float | None,
        typer.Option("--epsilon", metavar="E", help="New limit on total epsilon."),
    ] = None,
    delta: Annotated[
        float | None,
        typer.Option("--delta", metavar="D", help="New limit on total delta. Default: unchanged."),
    ] = None,
    composed: Annotated[
        bool,
        typer.Option(
            "--compose",
            help="Compose charges with a privacy filter if the result is below their sum, as "
            "with many small charges. Reserves half of the delta.",
        ),
    ] = False,
    per: Annotated[
        str | None,
        typer.Option(
            "--per",
            metavar="PERIOD",
            help="Limit charges within any period this long, such as P1Y, instead of over all "
            "time. A recurring job of sampled_response then counts the horizons that a period "
            "can overlap; other charges count in full.",
        ),
    ] = None,
    remove: Annotated[
        bool,
        typer.Option("--remove", help="Remove the budget: any job may charge this population."),
    ] = False,
    reason: Annotated[
        str | None,
        typer.Option(
            "--reason", metavar="TEXT", help="Reason, such as an approval; recorded in the ledger."
        ),
    ] = None,
    yes: Yes = False,
    servers: Servers = None,
    kafka_config: KafkaConfig = None,
    as_json: AsJson = False,
) -> None:
    """Show, set or remove the limit on a population's total privacy charges.

    A limit set here replaces all earlier ones from job files or operators, for all jobs, and is
    recorded in the ledger with its reason. If a job file later declares a smaller limit, that limit
    applies.
    """
    change = _change(population, epsilon, delta, composed, per, remove, reason)
    with cluster_of(servers, kafka_config) as cluster:
        state = read_spending(cluster)
        if change is not None:
            change = _with_delta(change, state)
            if not yes:
                ask(_in_words(change, state), "nothing is changed")
            draft = of_budget(change, change.at)
            write_with_receipt(cluster, draft, change.at, declared=[change])
            state = read_spending(cluster)
    if as_json:
        print_json(population_json(state, population))
        return
    if change is not None:
        print_text(f"{_in_words(change, state)}: recorded in the ledger")
    print_text(f"population {population}", "bold")
    print_pairs(population_pairs(state, population))


def _change(
    population: str,
    epsilon: float | None,
    delta: float | None,
    composed: bool,
    per: str | None,
    remove: bool,
    reason: str | None,
) -> BudgetDeclaration | None:
    if epsilon is None and not remove:
        given = {"--delta": delta, "--reason": reason, "--compose": composed or None}
        given["--per"] = per
        for option, value in given.items():
            if value is not None:
                raise UsageProblem(f"{option} requires --epsilon, which sets a budget, or --remove")
        return None
    if remove and (epsilon is not None or delta is not None or composed or per):
        raise UsageProblem(
            "--remove cannot be combined with --epsilon, --delta, --compose or --per"
        )
    if per is not None and composed:
        raise UsageProblem("--per excludes --compose: charges within a period are always summed")
    try:
        period = None if per is None else str(parse_duration(per))
    except ValueError as error:
        raise UsageProblem(f"--per: {error}") from None
    if epsilon is not None and not 0 < epsilon < float("inf"):
        raise UsageProblem(f"--epsilon: got {epsilon:g}; expected a number above 0")
    if delta is not None and not 0 <= delta < 1:
        raise UsageProblem(f"--delta: got {delta:g}; expected a number of at least 0 and below 1")
    if reason is None or not reason.strip():
        raise UsageProblem("--reason is required: the ledger permanently records it")
    return BudgetDeclaration(
        population=population,
        epsilon=epsilon,
        delta=delta,
        job=_COMMAND,
        deployment=BY_COMMAND,
        at=now(),
        operator=True,
        reason=reason.strip(),
        composed=composed,
        per=period,
    )


def _with_delta(change: BudgetDeclaration, state: Spending) -> BudgetDeclaration:
    if change.epsilon is not None and change.delta is None:
        before = binding_budget(change.population, state.declared).get("delta")
        change = replace(change, delta=0.0 if before is None else before.delta)
    if change.composed and not change.delta:
        raise UsageProblem(
            "--compose requires a delta above 0, because composition uses delta: add --delta, for "
            "example 1e-6"
        )
    return change


def _in_words(change: BudgetDeclaration, state: Spending) -> str:
    people = f"population {change.population}"
    if change.epsilon is None:
        return f"the budget of {people} is removed, for all jobs"
    how = ", with charges composed" if change.composed else ""
    how += f", in {parse_duration(change.per).any_period()}" if change.per else ""
    known = {each.population for each in state.charges} | {
        each.population for each in state.declared
    }
    unknown = "" if change.population in known else " (no charges under this name yet)"
    return (
        f"the budget of {people}{unknown} is epsilon {change.epsilon:g}, delta {change.delta:g}"
        f"{how}, for all jobs"
    )
