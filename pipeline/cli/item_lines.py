"""How simulated counts of items look: the answers of every epoch, and how far off they are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pipeline.cli.output import number, say, say_table
from pipeline.results.questions import Answer
from pipeline.simulation.item_accuracy import ItemAccuracy
from pipeline.simulation.simulate import Simulation
from pipeline.stages.estimate_records import EstimateRecord

_ROWS_SHOWN = 24


def show_accuracies(simulations: Sequence[Simulation]) -> None:
    """Print the answers of the first of several trials, and how accurate it is at every epoch."""
    first = simulations[0]
    epochs = [(record, first.accuracies[record.epoch]) for record in first.records]
    kind = next((found.kind for _, found in epochs if found.estimates), "item")
    most = max((len(found.estimates) for _, found in epochs), default=0)
    spread = [] if kind == "quantile" else [">± sd"]
    shown = _some(epochs, most)
    say_table(
        [">epoch", kind, ">estimate", *spread, ">95 % low", ">high", ">truth"],
        (row for record, found in shown for row in _answer_rows(record, found, bool(spread))),
    )
    say()
    recall = [">found of most held"] if any(found.recall is not None for _, found in epochs) else []
    say_table(
        [
            *(">epoch", ">reports", ">of a user", ">mean error", ">predicted", ">largest"),
            *(*recall, ""),
        ],
        (_accuracy_row(record, found, bool(recall)) for record, found in _some(epochs, 1)),
    )
    if len(shown) < len(epochs):
        say(f"some of the epochs are shown, --json prints all {len(epochs):,}")


def _some(
    epochs: Sequence[tuple[EstimateRecord, ItemAccuracy]], rows: int
) -> list[tuple[EstimateRecord, ItemAccuracy]]:
    """As many of them as there is room for, with so many rows each; the last one is among them."""
    step = -(-len(epochs) * max(rows, 1) // _ROWS_SHOWN)
    return list(epochs[:: -max(step, 1)][::-1])


def _answer_rows(record: EstimateRecord, found: ItemAccuracy, spread: bool) -> Iterator[list[str]]:
    epoch = str(record.epoch)
    for answer in found.estimates:
        yield [epoch, *_cells(answer, spread)]
        epoch = ""
    if not found.estimates:
        yield [epoch, *["-"] * (6 if spread else 5)]


def _cells(answer: Answer, spread: bool) -> list[str]:
    values = [answer.value, answer.low, answer.high, answer.truth]
    if not spread:
        return [answer.name, *("-" if value is None else f"{value:.6g}" for value in values)]
    values.insert(1, answer.standard_deviation)
    return [answer.name, *map(number, values[:-1]), f"{answer.truth or 0:,.0f}"]


def _accuracy_row(record: EstimateRecord, found: ItemAccuracy, recall: bool) -> list[str]:
    errors = (found.mean_absolute_error, found.predicted_error, found.max_error)
    return [
        str(record.epoch),
        number(found.reports),
        number(found.messages_per_user),
        *map(number, errors),
        *(["-" if found.recall is None else f"{found.recall:.0%}"] if recall else []),
        ", ".join(record.notes),
    ]
