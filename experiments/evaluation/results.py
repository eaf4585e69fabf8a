"""Results of an experiment: a tidy table of trials, and a summary over the seeds."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from dpstream.pipeline.whole_files import replaced_whole
from experiments.evaluation.columns import messages_per_user
from experiments.evaluation.counted import added_up_at_once
from experiments.evaluation.data import ChangeLogFile
from experiments.evaluation.drawn_items import DrawnItems, SelectionSets
from experiments.evaluation.experiment import Case
from experiments.evaluation.trial import Accuracy, Trial


@dataclass(frozen=True, slots=True, eq=False)
class Finished:
    case: Case
    seed: int
    trial: Trial


CSV_COLUMNS = (
    *("experiment", "data", "label", "protocol", "parameters"),
    *("epsilon", "epsilon_stream", "delta", "n", "d", "k", "seed", "estimate"),
    *(field.name for field in fields(Accuracy)),
    *("exhausted", "messages", "selected"),
)


def write_csv(experiment: str, finished: Sequence[Finished], path: Path) -> None:
    """Write `CSV_COLUMNS` with a row for each trial and kind of estimate; unknown cells are empty.

    Identical trials give identical bytes. The file is replaced atomically.
    """
    text = io.StringIO()
    writer = csv.DictWriter(text, CSV_COLUMNS, lineterminator="\n")
    writer.writeheader()
    for one in finished:
        case, trial = one.case, one.trial
        shared = {
            "experiment": experiment,
            "data": case.data,
            "label": case.label,
            "protocol": case.job.protocol,
            "parameters": json.dumps(shortened(case.parameters), separators=(",", ":")),
            "epsilon": case.epsilon,
            "epsilon_stream": trial.epsilon_stream,
            "delta": trial.delta,
            "n": trial.users,
            "d": case.job.epochs.count,
            "k": case.max_changes,
            "seed": one.seed,
            "exhausted": trial.exhausted,
            "messages": trial.messages,
            "selected": None if trial.selected is None else int(trial.selected),
        }
        writer.writerows(
            {**shared, "estimate": name, **asdict(accuracy)}
            for name, accuracy in trial.accuracies.items()
        )
    with replaced_whole(path) as part:
        part.write_text(text.getvalue(), "utf-8")


@dataclass(frozen=True, slots=True, eq=False)
class Line:
    """One kind of estimate for one case, over all seeds.

    Other fields average those of `Trial` and `Accuracy` over the trials.

    Attributes:
        estimate: Name of the estimate's column.
        trials: Number of trials, one per seed.
        rmse: RMSE over all epochs of all trials, in users.
        standard_error: Standard error of `rmse`; None for a single trial.
        mean_rmse: Mean of the RMSEs of single trials, in users. It is lower than `rmse`; the
            difference grows with the correlation of errors within a trial.
        predicted_rmse: RMSE predicted before the trials.
        max_error: Largest error in any trial.
        selected: Fraction of trials that identified the most frequent item, or None.
        predicted_selected: Expected value of `selected`.
        through_topics: True if reports passed through codec and stages; False if there were too
            many, so that devices reported directly to the aggregator.
    """

    case: Case
    users: int
    epsilon_stream: float | None
    estimate: str
    trials: int
    rmse: float
    standard_error: float | None
    mean_rmse: float
    predicted_rmse: float | None
    mean_abs_error: float
    max_error: float
    bias: float
    coverage: float | None
    exhausted: float
    messages: float | None = None
    predicted_messages: float | None = None
    selected: float | None = None
    predicted_selected: float | None = None
    references: Mapping[str, float] = field(default_factory=dict)
    through_topics: bool = True

    def to_json(self) -> dict[str, Any]:
        case = self.case
        values = {field.name: getattr(self, field.name) for field in fields(self)[1:]}
        return {
            "data": case.data,
            "label": case.label,
            "protocol": case.job.protocol,
            "parameters": shortened(case.parameters),
            "epsilon": case.epsilon,
            "epochs": case.job.epochs.count,
            "max_changes": case.max_changes,
            **values,
        }


def shortened(parameters: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: f"{len(value):,} values"
        if isinstance(value, list) and len(value) > _LONG_LIST
        else value
        for key, value in parameters.items()
    }


_LONG_LIST = 100


def summarize(finished: Sequence[Finished]) -> list[Line]:
    return [line for trials in _by_case(finished) for line in _lines(trials)]


def _by_case(finished: Sequence[Finished]) -> list[list[Finished]]:
    groups: dict[int, list[Finished]] = {}
    for one in finished:
        groups.setdefault(id(one.case), []).append(one)
    return list(groups.values())


def _lines(finished: Sequence[Finished]) -> Iterator[Line]:
    case, trials = finished[0].case, [one.trial for one in finished]
    for name in dict.fromkeys(name for trial in trials for name in trial.accuracies):
        found = [trial.accuracies[name] for trial in trials if name in trial.accuracies]
        errors = np.array([one.rmse for one in found])
        squares = np.square(errors)
        rmse = float(np.sqrt(squares.mean()))
        coverages = [one.coverage for one in found if one.coverage is not None]
        yield Line(
            case=case,
            users=trials[0].users,
            epsilon_stream=trials[0].epsilon_stream,
            estimate=name,
            trials=len(found),
            rmse=rmse,
            standard_error=(
                float(squares.std(ddof=1) / np.sqrt(len(found)) / (2 * rmse))
                if len(found) > 1 and rmse
                else None
            ),
            mean_rmse=float(errors.mean()),
            predicted_rmse=found[0].predicted_rmse,
            mean_abs_error=float(np.mean([one.mean_abs_error for one in found])),
            max_error=max(one.max_error for one in found),
            bias=float(np.mean([one.bias for one in found])),
            coverage=float(np.mean(coverages)) if coverages else None,
            exhausted=float(np.mean([trial.exhausted for trial in trials])),
            messages=_mean(trial.messages for trial in trials),
            predicted_messages=_predicted_messages(case),
            selected=_mean(trial.selected for trial in trials),
            predicted_selected=_chance(case, found[0].predicted_rmse),
            references={
                column: numbers[name]
                for column, numbers in case.references.items()
                if name in numbers
            },
            through_topics=_through_topics(case, trials[0].users),
        )


def _mean(found: Iterable[float | None]) -> float | None:
    known = [each for each in found if each is not None]
    return float(np.mean(known)) if known else None


def _predicted_messages(case: Case) -> float | None:
    single_query = case.of_sets or isinstance(case.source, DrawnItems)
    return messages_per_user(case.job) if single_query else None


def _through_topics(case: Case, users: int) -> bool:
    unnamed = isinstance(case.source, ChangeLogFile) and case.source.is_image
    return not (case.of_sets and unnamed and added_up_at_once(case.job, users))


def _chance(case: Case, predicted: float | None) -> float | None:
    if not isinstance(case.source, SelectionSets) or predicted is None:
        return None
    return case.source.chance(case.job, predicted)


def loss_differs_from_request(line: Line) -> bool:
    """Return whether the exact loss of a whole stream differs from the requested epsilon."""
    requested, spent = line.case.epsilon, line.epsilon_stream
    return requested is not None and (spent is None or not 0.999 < spent / requested < 1.001)


def variables(lines: Sequence[Line]) -> list[dict[str, Any]]:
    """Return, for each line, the parameters that vary between lines, by name.

    Epsilon and the numbers k, n and d have these names; other parameters keep their own.
    """
    every = [_identity(line) for line in lines]
    names = dict.fromkeys(name for each in every for name in each)
    varying = [
        name
        for name in names
        if len(_values(name, every)) > 1 and (name in _TOLD or not _told_by_label(name, every))
    ]
    return [{name: each[name] for name in varying if name in each} for each in every]


_TOLD = ("data", "label", "epsilon", "k", "n", "d", "estimate")


def _values(name: str, every: Sequence[dict[str, Any]]) -> set[str]:
    return {json.dumps(each.get(name), sort_keys=True) for each in every}


def _told_by_label(name: str, every: Sequence[dict[str, Any]]) -> bool:
    """Return whether a line's label determines this value."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for each in every:
        groups.setdefault(each["label"], []).append(each)
    return all(len(_values(name, group)) == 1 for group in groups.values())


def _identity(line: Line) -> dict[str, Any]:
    case = line.case
    others = {
        key: value
        for key, value in case.parameters.items()
        if key not in ("epsilon", "max_changes")
    }
    numbers = {
        "epsilon": case.epsilon,
        "k": case.max_changes,
        "n": line.users,
        "d": case.job.epochs.count,
    }
    return {
        "data": case.data,
        "label": case.label,
        **others,
        **{name: value for name, value in numbers.items() if value is not None},
        "estimate": line.estimate,
    }
