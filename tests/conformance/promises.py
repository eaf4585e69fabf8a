"""Guarantees and constants of many jobs, and the command that writes them to a file.

Each job is planned as by `dpstream plan`. The file contains values that must not change: the
guarantee, the guarantees against each party and with fewer honest users, the constants of devices
and stages, and the RMSE; for a rejected job, the location of the problem in its job file. All
values are functions of the parameters, so the file reveals a calibration or accounting with a
smaller loss. Only this command writes the file::

    python -m tests.conformance.promises
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import islice, product
from pathlib import Path
from typing import Any, Final

from dpstream.pipeline.jobs.job_files import parse_job
from dpstream.pipeline.jobs.job_problems import JobError
from dpstream.pipeline.jobs.marked_yaml import dotted
from dpstream.pipeline.json_values import json_fields
from dpstream.pipeline.planning.job_plan import plan
from dpstream.pipeline.planning.outlook import contributor_curve
from dpstream.pipeline.planning.parties import party_guarantees
from tests.conformance.golden import flattened

FILE: Final = Path(__file__).parent / "promises.json"

_A_PART = 6
_ITEMS = "domain: [a, b, c, d, e, f, g, h]"
_RANGE = "low: 0, high: 100, buckets: 8"
_QUESTIONS = (
    "questions: [{name: active, answer: boolean}, {name: spent, answer: mean, low: 0, high: 10}, "
    "{name: size, answer: labels, labels: [S, M, L], share: 2}]"
)
_GROUPS = "groups: [{attributes: {os: ios}}, {attributes: {os: web}}], by: [[os]]"
_NUMBERS = "domain: {low: 0, high: 64, buckets: 32}"
_BITS = "domain: {bits: 6}"
_STRINGS = "domain: {strings: {bytes: 2}}"
_FEWEST = "shuffle: {minimum: 1000}"
_STREAMS = (
    "epsilon: 1, max_changes: 1",
    "epsilon: 1, max_changes: 4",
    "epsilon: 6, max_changes: 8",
)
_SHUFFLED = ("epsilon: .5, delta: 1.0e-6", "epsilon: 2, delta: 1.0e-6")


def _grid(*axes: tuple[str, ...]) -> tuple[str, ...]:
    """Return all combinations of options, each as the contents of a YAML mapping."""
    return tuple(", ".join(filter(None, each)) for each in product(*axes))


# By protocol: parameters, epochs, and other job file keys.
_JOBS: Final[tuple[tuple[str, tuple[str, ...], int, str], ...]] = (
    ("value_stream", _STREAMS, 24, ""),
    ("future_rand", _grid(_STREAMS, ("", "calibration: published")), 24, ""),
    ("independent_response", _STREAMS, 24, ""),
    ("erlingsson", _grid(_STREAMS, ("", "calibration: full")), 24, ""),
    ("bun", _STREAMS, 24, ""),
    ("hadamard_values", _grid(_STREAMS, (_ITEMS,), ("", "boosted: 2")), 12, ""),
    ("range_values", _grid(_STREAMS, (_RANGE,), ("", "initial: 20, boosted: 2")), 12, ""),
    ("panels", _grid(_STREAMS, (_QUESTIONS,), ("", _GROUPS)), 12, ""),
    ("sampled_panels", _grid(("epsilon: 1", "epsilon: 4"), (_QUESTIONS,), ("", _GROUPS)), 12, ""),
    (
        "projective_geometry",
        _grid(("epsilon: 1", "epsilon: 5"), (_ITEMS,), ("", "items: 3", "delta: 1.0e-3")),
        1,
        _FEWEST,
    ),
    (
        "sampled_response",
        _grid(
            ("epsilon: 1", "epsilon: 4"),
            (
                "",
                "reports: 2",
                _ITEMS,
                f"{_ITEMS}, complete: true",
                f"{_ITEMS}, items: 3",
                "domain: {bits: 10}",
            ),
        ),
        12,
        "",
    ),
    ("split_budget", ("epsilon: 1", "epsilon: 5"), 8, ""),
    (
        "memoized_response",
        _grid(("epsilon: 1", "epsilon: 5"), ("", "first_share: .25"), ("", "calibration: full")),
        8,
        "",
    ),
    (
        "count_min",
        _grid(
            _SHUFFLED,
            (_ITEMS,),
            ("", "calibration: published"),
            (
                "",
                "items: 3",
                "queries: top",
                "queries: ranges",
                "queries: published_ranges",
                "rows: 3, buckets: 7, estimator: median",
                "dummies: negative_binomial",
                "dummies: shuffle",
                "messages_per_user: 40",
                "messages_per_user: 1",
            ),
        ),
        1,
        _FEWEST,
    ),
    (
        "hadamard",
        _grid(
            _SHUFFLED,
            (_ITEMS,),
            ("", "calibration: published"),
            ("", "items: 3", "rows: 8", "dummies: bernoulli", "messages_per_user: 40"),
        ),
        1,
        _FEWEST,
    ),
    (
        "single_message",
        _grid(_SHUFFLED, (_ITEMS,), ("", "items: 3"), ("", "response: rappor")),
        1,
        _FEWEST,
    ),
    (
        "single_message",
        (f"epsilon: 2, delta: 1.0e-3, {_ITEMS}",),
        12,
        "shuffle: {minimum: 200}\n"
        "attributes: {version: {values: [1, 2, 3], public: true, "
        "hide_sizes: {epsilon: 0.5, delta: 1.0e-3}}}\nby: [version]",
    ),
    (
        "fragments",
        _grid(
            _SHUFFLED,
            (_ITEMS,),
            (
                "neighbors: removal",
                "neighbors: removal, items: 3",
                "neighbors: removal, reports: 2",
                "neighbors: removal, calibration: published",
                "neighbors: removal, permanent: true",
                "calibration: published",
            ),
        ),
        4,
        _FEWEST,
    ),
    ("fragments", _grid(_SHUFFLED[1:], (_ITEMS,), ("", "permanent: true")), 2, _FEWEST),
    (
        "count_mean_sketch",
        _grid(_SHUFFLED, (f"{_ITEMS}, rows: 4, buckets: 16",), ("", "neighbors: removal")),
        4,
        _FEWEST,
    ),
    (
        "shuffled_counts",
        _grid(
            _SHUFFLED,
            (
                "max_changes: 1",
                "max_changes: 3",
                "max_changes: 3, boost: 2",
                "max_changes: 3, calibration: exact",
                "max_changes: 1, calibration: exact, boost: 1",
                "max_changes: 1, boost: 1, dummies: negative_binomial",
                "max_changes: 3, dummies: negative_binomial",
                "max_changes: 3, dummies: shuffle",
                "max_changes: 3, messages_per_user: 40",
                f"max_changes: 3, {_ITEMS}",
                f"max_changes: 1, cells: count_min, {_ITEMS}",
                f"max_changes: 3, cells: count_min, {_ITEMS}",
                f"max_changes: 3, cells: balls_into_bins, buckets: 5, {_ITEMS}",
            ),
        ),
        8,
        _FEWEST,
    ),
    ("shuffled_counts", _grid(_SHUFFLED, ("", _ITEMS, f"dummies: shuffle, {_ITEMS}")), 2, _FEWEST),
    (
        "shuffled_counts",
        _grid(
            _SHUFFLED[1:],
            (_NUMBERS,),
            ("", "boost: 2", "dummies: shuffle"),
            ("max_changes: 1", "max_changes: 3"),
        ),
        8,
        _FEWEST,
    ),
    *(
        (protocol, _grid(_SHUFFLED[1:], (_NUMBERS, _BITS, _STRINGS), ("", "items: 2")), 2, _FEWEST)
        for protocol in ("count_min", "hadamard", "single_message")
    ),
    *(
        (protocol, _grid(("epsilon: 2",), (_BITS, _STRINGS)), 2, _FEWEST)
        for protocol in ("projective_geometry", "bucket", "jl_hh")
    ),
    ("hadamard_values", _grid(("epsilon: 2, max_changes: 2",), (_BITS, _STRINGS)), 8, ""),
    *(
        (
            protocol,
            _grid(
                ("epsilon: .5", "epsilon: 2"),
                (_ITEMS,),
                ("calibration: published", "calibration: replacement", "calibration: sampled"),
            ),
            2,
            _FEWEST,
        )
        for protocol in ("laplace_histogram", "jl_hh", "bucket", "sparse_recovery")
    ),
    *(
        (protocol, ("max_changes: 2",), 24, f"central: {{epsilon: 0.5, delta: 1.0e-6}}\n{fewest}")
        for protocol in ("future_rand", "value_stream")
        for fewest in ("shuffle: {minimum: 10000}", "shuffle: {minimum: 300}")
    ),
)


def parts() -> dict[str, dict[str, str]]:
    """Return groups of a few job files of the same protocol, by a text that identifies the job."""
    jobs: dict[str, dict[str, str]] = {}
    for protocol, many, epochs, more in _JOBS:
        for parameters in many:
            title = "; ".join(filter(None, (parameters, f"{epochs} epochs", *more.splitlines())))
            jobs.setdefault(protocol, {})[title] = (
                f"name: job\nprotocol: {protocol}\nparameters: {{{parameters}}}\n"
                f"epochs: {{count: {epochs}}}\n{more}\n"
            )
    return {
        f"{protocol}-{number}": dict(part)
        for protocol, of_protocol in jobs.items()
        for number, part in enumerate(_batched(of_protocol.items()))
    }


def _batched(jobs: Iterable[tuple[str, str]]) -> Iterator[tuple[tuple[str, str], ...]]:
    left = iter(jobs)
    while part := tuple(islice(left, _A_PART)):
        yield part


def promises_of(text: str) -> dict[str, float | str]:
    """Return a job's guarantees and constants by name, or the location of its problem."""
    try:
        job = parse_job(text)
        law = job.calibrate()
    except JobError as error:
        return {"rejected": " ".join(dotted(problem.path) for problem in error.problems)}
    made = plan(job)
    parties = [
        {name: value for name, value in json_fields(each).items() if name not in _WORDS}
        for each in party_guarantees(job, law)
    ]
    guarantee = job.guarantee_of(law).to_json()
    found = {
        "guarantee": {name: each for name, each in guarantee.items() if name not in _WORDS},
        "parties": parties,
        "fewer": [each.epsilon for each in contributor_curve(job.protocol_entry, law)],
        "law": json.loads(json.dumps(law.to_json())),
        "error": made.rmse,
        "reports": made.reports_per_user,
    }
    return {name.removeprefix("/"): _plain(value) for name, value in flattened(found, "")}


_WORDS = {"party", "sees", "neighbors", "assumes", "trust"}


def _plain(value: Any) -> float | str:
    """Return a value as a number; integers of any size, stored as text, are rounded to floats."""
    if isinstance(value, str) and value.isdecimal():
        return float(value)
    return str(value) if isinstance(value, bool | str | None) else float(value)


def main() -> None:
    promises = {
        part: {title: promises_of(text) for title, text in jobs.items()}
        for part, jobs in parts().items()
    }
    FILE.write_text(json.dumps(promises, indent=0) + "\n")


if __name__ == "__main__":
    main()
