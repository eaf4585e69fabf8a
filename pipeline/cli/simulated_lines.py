"""How the answers of simulated estimates are printed, beside the truth."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from dpstream.pipeline.cli.answer_lines import answer_rows, answer_table, notes_column
from dpstream.pipeline.cli.estimate_lines import EpochTable
from dpstream.pipeline.cli.output import number, plural, say, say_pairs
from dpstream.pipeline.results.questions import Query
from dpstream.pipeline.simulation.query_trials import accuracy
from dpstream.pipeline.simulation.simulate import Simulation

_ROWS_SHOWN = 24


def show_simulations(query: Query, simulations: Sequence[Simulation], expected: str) -> None:
    """Print the answers of the first of several trials, and how accurate all of them are."""
    first = simulations[0]
    table = answer_table(query, truth=True)
    answered = [
        [*answer_rows(query, table, record, first.truth[record.epoch])] for record in first.records
    ]
    step = -(-len(answered) * max(map(len, answered), default=1) // _ROWS_SHOWN)
    EpochTable(first.job, [*table.columns(), notes_column(query)]).say(
        chain.from_iterable(answered[::-step][::-1])
    )
    if step > 1:
        say(f"one epoch in {step} is shown, --json prints all {len(answered):,}")
    measured = accuracy(query, simulations)
    if measured is None:
        return
    unit = "" if query.question.in_values else " users"
    trials = f" of {plural(len(simulations), 'trial')}" if len(simulations) > 1 else ""
    said = "" if measured.predicted is None else f", predicted {number(measured.predicted)}"
    smoothed = ", smoothed" if first.smoothed else ""
    say(f"\nanswers at all epochs{trials}{smoothed}", "bold")
    say_pairs(
        [
            ("root mean squared error", f"{number(measured.rmse)}{unit}{said}"),
            ("intervals that hold the truth", f"{measured.coverage:.1%}; {expected}"),
        ]
    )
    if query.question.selects:
        say("selecting the largest biases them upwards: fewer intervals may hold the truth")
