"""How simulated counts of items look: the answers of every epoch, and how far off they are."""

from __future__ import annotations

from collections.abc import Sequence

from dpstream.pipeline.cli.answer_table import AnswerTable
from dpstream.pipeline.cli.estimate_lines import EpochTable
from dpstream.pipeline.cli.output import number, say
from dpstream.pipeline.results.questions import Items
from dpstream.pipeline.simulation.item_accuracy import ItemAccuracy
from dpstream.pipeline.simulation.simulate import Simulation
from dpstream.pipeline.stages.estimate_records import EstimateRecord

_ROWS_SHOWN = 24


def show_accuracies(simulations: Sequence[Simulation]) -> None:
    """Print the answers of the first of several trials, and how accurate it is at every epoch."""
    first = simulations[0]
    epochs = [(record, first.accuracies[record.epoch]) for record in first.records]
    answered = (accuracy.question for _, accuracy in epochs if accuracy.estimates)
    question = next(answered, Items())
    most = max((len(accuracy.estimates) for _, accuracy in epochs), default=0)
    width = first.job.domain.width
    table = AnswerTable(question, deviation=not question.in_values, truth=True, width=width)
    shown = _some(epochs, most)
    EpochTable(first.job, table.columns()).say(
        row for record, accuracy in shown for row in table.rows(record.epoch, accuracy.estimates)
    )
    say()
    recalled = any(accuracy.recall is not None for _, accuracy in epochs)
    recall = [">found of most held"] if recalled else []
    errors = (">reports", ">of a user", ">mean error", ">predicted", ">largest")
    EpochTable(first.job, [*errors, *recall, ""]).say(
        _accuracy_row(record, accuracy, recalled) for record, accuracy in _some(epochs, 1)
    )
    if len(shown) < len(epochs):
        say(f"some of the epochs are shown, --json prints all {len(epochs):,}")


def _some(
    epochs: Sequence[tuple[EstimateRecord, ItemAccuracy]], rows: int
) -> list[tuple[EstimateRecord, ItemAccuracy]]:
    step = -(-len(epochs) * max(rows, 1) // _ROWS_SHOWN)
    return list(epochs[:: -max(step, 1)][::-1])


def _accuracy_row(record: EstimateRecord, accuracy: ItemAccuracy, recall: bool) -> list[str]:
    errors = (accuracy.mean_absolute_error, accuracy.predicted_error, accuracy.max_error)
    return [
        str(record.epoch),
        number(accuracy.reports),
        number(accuracy.messages_per_user),
        *map(number, errors),
        *(["-" if accuracy.recall is None else f"{accuracy.recall:.0%}"] if recall else []),
        ", ".join(record.notes),
    ]
