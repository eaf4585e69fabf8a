"""Replacements for removed names, one sentence each, shown where the old name is rejected."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeAlias

Path: TypeAlias = tuple[str | int, ...]
"""Keys in a job file, from its root."""

PROTOCOLS: Final = {
    "balls_into_bins": "use shuffled_counts, with `cells: balls_into_bins` for items",
    "hadamard_stream": "use hadamard_values",
    "ldp_sgd": (
        "a linear model can be trained in a simulation only, by 'python -m "
        "experiments.learn_mnist' in a clone of the repository"
    ),
    "range_stream": "use range_values",
    "shuffled_item_tree": "use shuffled_counts with a domain of items",
    "shuffled_tree": "use shuffled_counts",
}
"""Replacements for removed protocols in a job file."""

EXPERIMENTS: Final = frozenset(
    {
        "bucket",
        "bun",
        "count_mean_sketch",
        "erlingsson",
        "fragments",
        "hadamard",
        "independent_response",
        "jl_hh",
        "laplace_histogram",
        "memoized_response",
        "sparse_recovery",
        "split_budget",
    }
)
"""Protocols of the package in the folder ``experiments`` of the repository."""

_SIGNED = (
    "stages no longer sign their records; 'dpstream record --verify DIR' checks that a recording "
    "is consistent, which is not evidence of what a stage did"
)
JOB_KEYS: Final[Mapping[Path, str]] = {
    ("crowds",): (
        "declare a public attribute with hide_sizes: {epsilon: x, delta: y}, and name it under 'by'"
    ),
    ("shuffle", "signers"): _SIGNED,
    ("topics", "lanes"): "remove the key; split a very large epoch into several jobs by population",
}
"""Replacements for removed keys in a job file, by path."""

JOB_VALUES: Final[Mapping[tuple[Path, str], str]] = {
    (("parameters", "calibration"), "conditional"): (
        "its delta was not proven and could be exceeded; remove the key to use the default"
    ),
}
"""Replacements for removed values in a job file, by the key's path and the value."""

REMOVED_COMMANDS: Final = {
    "evaluate": "use 'python -m experiments' in a clone of the repository",
    "relay": "send reports of gateways directly to Kafka with 'dpstream produce'",
    "verify-stage": _SIGNED,
}

_FLEET = "plan the accuracy with --users; measure a cluster's capacity with the job itself"
_RELAY = "producers write directly to Kafka: use --bootstrap-servers"
OPTIONS: Final[Mapping[tuple[str, str | None], str]] = {
    ("audit", "--plot"): "use --json",
    ("estimates", "--window"): "use --interval",
    ("plan", "--devices"): _FLEET,
    ("plan", "--every"): _FLEET,
    ("plan", "--gateways"): _FLEET,
    ("plan", "--jobs"): _FLEET,
    ("produce", "--group"): "remove the option: it served jobs that trained a model",
    ("produce", "--relay"): _RELAY,
    ("produce", "--relay-ca"): _RELAY,
    ("produce", "--relay-token"): _RELAY,
    ("record", "--raw"): "'dpstream record' stores released windows, manifests and results",
    ("run", "--attestation"): _SIGNED,
    ("run", "--stage-key"): _SIGNED,
    **{
        (command, option): replacement
        for command in ("estimates", "query", "simulate")
        for option, replacement in (
            ("--items", "use --item X for each item, or --item @FILE"),
            ("--median", "use --quantile 0.5"),
            ("--quantiles", "use --quantile Q for each quantile"),
            ("--ranges", "use --range LOW:HIGH for each range"),
        )
    },
}
"""Replacements for removed options, by command and option name."""


def removed_from_job(values: Mapping[str, Any]) -> dict[Path, str]:
    removed: dict[Path, str] = {
        path: f"was removed: {text}"
        for path, text in JOB_KEYS.items()
        if _at(values, path) is not None
    }
    for (path, value), text in JOB_VALUES.items():
        if _at(values, path) == value:
            removed[path] = f"{value} was removed: {text}"
    if said := missing_protocol(str(values.get("protocol"))):
        removed["protocol",] = said
    return removed


def missing_protocol(name: str) -> str | None:
    """Return where a protocol is or what replaces it, given that no such protocol is installed."""
    if name in PROTOCOLS:
        return f"{name} was removed: {PROTOCOLS[name]}"
    if name in EXPERIMENTS:
        return (
            f"{name} is an experiment, and not part of this package; clone the repository, whose "
            "folder experiments/protocols has it, and run 'make install'"
        )
    return None


def _at(values: object, path: Path) -> object:
    for key in path:
        values = values.get(key) if isinstance(values, Mapping) else None
    return values
