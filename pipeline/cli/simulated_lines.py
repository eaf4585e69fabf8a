"""Print simulations: answers alongside the ground truth, and their accuracy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TypeVar

from dpstream.aggregators.cell_window import FOUND
from dpstream.pipeline.cli.answer_lines import AnswerTable, epoch_lines
from dpstream.pipeline.cli.output import (
    guarantee_pairs,
    number,
    plural,
    print_lines,
    print_pairs,
    print_text,
)
from dpstream.pipeline.devices.item_log import ValueLog
from dpstream.pipeline.devices.producer_input import enrollment, value_warnings
from dpstream.pipeline.results.counts_queries import Items, Query
from dpstream.pipeline.results.coverage import (
    coverage_lines,
    coverage_over_time,
    expected_coverage,
)
from dpstream.pipeline.results.expected_errors import depends_on_share
from dpstream.pipeline.results.kinds import kind_of
from dpstream.pipeline.results.phrases import flag_words
from dpstream.pipeline.results.smoothing import BIASED, WITHOUT_INTERVALS
from dpstream.pipeline.simulation.item_accuracy import ItemAccuracy, mean_accuracy
from dpstream.pipeline.simulation.simulated_job import (
    Simulation,
    column_errors,
    coverage,
    errors_by_measure,
    root_mean_square,
)
from dpstream.pipeline.simulation.trials import accuracy
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.pipeline.values.numeric_values import relative_error_lines
from dpstream.randomizers.row_errors import OTHERS, TOP_ITEMS
from dpstream.topics.manifests import WindowStatus

_ROWS_SHOWN = 24

Shown = TypeVar("Shown")


def show_simulations(query: Query, simulations: Sequence[Simulation], log: ValueLog) -> None:
    answering = [each.smoothed_copy() for each in simulations]
    first = answering[0]
    answered = []
    for record in first.records:
        ground_truth = first.ground_truth[record.epoch]
        answered.append(
            (record, query.answers(record.estimate, ground_truth if ground_truth.size else None))
        )
    shown = _some(answered, max((len(answers) for _, answers in answered), default=0))
    value = "smoothed" if first.smoothed else "estimate"
    print_lines(AnswerTable(query, value, ground_truth=True).lines(first.job, shown))
    _print_omitted(len(shown), len(answered))
    if query.counts_query.column is not None:
        _show_answer_accuracy(query, answering, log)
    _show_trials(simulations, log)


def show_item_simulations(simulations: Sequence[Simulation], log: ValueLog) -> None:
    first = simulations[0]
    epochs = [(record, first.accuracies[record.epoch]) for record in first.records]
    counts_queries = (accuracy.counts_query for _, accuracy in epochs if accuracy.estimates)
    query = Query(first.job.domain, next(counts_queries, Items()))
    shown = _some(epochs, max((len(accuracy.estimates) for _, accuracy in epochs), default=0))
    answered = ((record, accuracy.estimates) for record, accuracy in shown)
    print_lines(AnswerTable(query, ground_truth=True).lines(first.job, answered))
    print_text()
    recalled = any(accuracy.recall is not None for _, accuracy in epochs)
    recall = [">top items found"] if recalled else []
    errors = (">  reports", ">of a user", ">mean error", ">predicted", ">  largest")
    rows = (_accuracy_row(record, accuracy, recalled) for record, accuracy in _some(epochs, 1))
    print_lines(epoch_lines(first.job, [*errors, *recall, ""], rows))
    _print_omitted(len(shown), len(epochs))
    _show_trials(simulations, log)


def _some(epochs: Sequence[Shown], rows: int) -> list[Shown]:
    step = -(-len(epochs) * max(rows, 1) // _ROWS_SHOWN)
    return list(epochs[:: -max(step, 1)][::-1])


def _print_omitted(shown: int, epochs: int) -> None:
    if shown < epochs:
        print_text(f"only some epochs are shown; --json prints all {epochs:,}")


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


def _show_answer_accuracy(query: Query, answering: Sequence[Simulation], log: ValueLog) -> None:
    measured = accuracy(query, answering)
    if measured is None:
        return
    first = answering[0]
    means, rows = len(query.domain.means), query.domain.size - 1
    unit = "" if query.counts_query.in_values or means == rows else " users"
    compared = " of numbers of users" if 0 < means < rows else ""
    trials = f" of {plural(len(answering), 'trial')}" if len(answering) > 1 else ""
    error, predicted = (
        None if each is None else f"{each:,.3g}" if means == rows else number(each)
        for each in (measured.rmse, measured.predicted)
    )
    prediction = "" if predicted is None else f", predicted {predicted}"
    smoothed = ", smoothed" if first.smoothed else ""
    expected = expected_coverage(first.job, log, len(answering))
    of = "largest items" if query.counts_query.selects else "answers"
    print_text(f"\n{of} at all epochs{trials}{smoothed}", "bold")
    print_pairs(
        [
            (f"root mean squared error{compared}", f"{error}{unit}{prediction}"),
            ("intervals that contain the ground truth", f"{measured.coverage:.1%}; {expected}"),
        ]
    )
    if query.counts_query.selects:
        print_text(
            "selecting the largest items biases their estimates upwards: fewer intervals may "
            "contain the ground truth"
        )


def _show_trials(simulations: Sequence[Simulation], log: ValueLog) -> None:
    first, users = simulations[0], len(log.users)
    trials = f", {len(simulations):,} trials, the first one above" if len(simulations) > 1 else ""
    epochs = plural(len(first.records), "epoch")
    print_text(f"\n{first.job.name}: {plural(users, 'user')}, {epochs}{trials}", "bold")
    print_pairs(_summary(simulations, log))
    flags = sorted({flag for record in first.records for flag in record.flags})
    explained = (f"{flag} means: {flag_words(first.job, flag)}" for flag in flags)
    for warning in (*explained, *value_warnings(log, first.job)):
        print_text(f"\nnote: {warning}")
    print_text("\nprivacy", "bold")
    print_pairs([*guarantee_pairs(first.job.guarantee), ("enrolled", enrollment(log))])


def _summary(simulations: Sequence[Simulation], log: ValueLog) -> Iterator[tuple[str, str]]:
    first, users = simulations[0], len(log.users)
    error, covered = root_mean_square(simulations), coverage(simulations)
    if first.accuracies:
        yield from _item_summary(simulations, users)
    by_measure = errors_by_measure(simulations)
    for each in by_measure:
        of_users = f" users ({each.rmse / users:.1%})"
        yield (
            f"root mean squared error of {each.name}",
            f"{each.rmse:,.3g}" if each.is_mean else f"{number(each.rmse)}{of_users}",
        )
    if error is not None and covered is not None and not by_measure:
        column = kind_of(first.job.domain).everything(first.job.domain).column
        of = "" if column is None else f", every {column}"
        yield f"root mean squared error{of}", f"{number(error)} users ({error / users:.1%})"
        if column is None or not depends_on_share(first.job):
            yield from relative_error_lines(error, users)
        if first.smoothed:
            for name, other in column_errors(simulations).items():
                if name != "online":
                    label = " (biased)" if name in BIASED else ""
                    yield f"  {name}{label}", f"{number(other)} users ({other / users:.1%})"
            yield "", WITHOUT_INTERVALS
    if covered is not None:
        expected = expected_coverage(first.job, log, len(simulations))
        yield "intervals that contain the ground truth", f"{covered:.1%}; {expected}"
        by_epoch = chain.from_iterable(each.covered_by_epoch() for each in simulations)
        yield from coverage_lines(first.job, coverage_over_time(by_epoch), log)
    if first.exhausted and first.job.change_limit is not None:
        yield "devices that dropped changes", f"{first.exhausted:,} ({first.exhausted / users:.1%})"
    suppressed = sum(record.window_status is not WindowStatus.RELEASED for record in first.records)
    if suppressed:
        minimum = first.job.shuffle.minimum
        yield (
            "suppressed windows",
            f"{suppressed:,} (fewer than shuffle.minimum = {plural(minimum, 'device')})",
        )


def _item_summary(simulations: Sequence[Simulation], users: int) -> Iterator[tuple[str, str]]:
    mean = mean_accuracy([each.accuracies for each in simulations])
    if mean.mean_absolute_error is None:
        return
    yield "scope", f"the {TOP_ITEMS} most frequent items and {OTHERS} others, in every epoch"
    share = f"{mean.mean_absolute_error / users:.2%}"
    predicted = number(mean.predicted_error)
    yield (
        "mean absolute error, clipped at 0",
        f"{number(mean.mean_absolute_error)} users ({share}), predicted {predicted}",
    )
    yield "  with negative estimates", f"{number(mean.unclipped_error)} users"
    yield "largest error", f"{number(mean.max_error)} users"
    if mean.recall is not None:
        yield (
            "top items found",
            f"{mean.recall:.1%} of the top {FOUND}, or of all if there are fewer",
        )
