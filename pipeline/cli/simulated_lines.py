"""How the answers of simulated estimates are printed, beside the truth."""

from __future__ import annotations

from collections.abc import Sequence

from dpstream.pipeline.cli.answer_lines import answer_rows, answer_table, notes_column
from dpstream.pipeline.cli.estimate_lines import say_epoch_table
from dpstream.pipeline.cli.output import number, plural, say, say_pairs
from dpstream.pipeline.results.questions import Query
from dpstream.pipeline.simulation.query_trials import accuracy
from dpstream.pipeline.simulation.simulate import Simulation

_ROWS_SHOWN = 24


def show_simulations(query: Query, simulations: Sequence[Simulation], expected: str) -> None:
    """Print the answers of the first of several trials, and how accurate all of them are."""
    first = simulations[0]
    table = answer_table(query, truth=True)
    columns = table.columns()
    answered = [
        (record, query.answers(record.estimate, first.truth[record.epoch]))
        for record in first.records
    ]
    most = max((len(answers) for _, answers in answered), default=0)
    step = -(-len(answered) * max(most, 1) // _ROWS_SHOWN)
    say_epoch_table(
        first.job,
        [*columns, notes_column(query)],
        (
            row
            for record, answers in answered[::-step][::-1]
            for row in answer_rows(query, record, [*map(table.cells, answers)], len(columns))
        ),
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
