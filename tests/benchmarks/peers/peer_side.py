"""Measure other libraries in their environment; print a line of JSON for each EPSILON.

    PYTHON peer_side.py oracle LIBRARY ORACLE EPSILON,... ITEMS HELD.npy
    PYTHON peer_side.py search ALGORITHM SKETCH EPSILON,... MOST WORDS.txt

`oracle` estimates the number of users of each of ITEMS items, numbered from 0. HELD contains the
item of each user. `search` finds the most frequent words. WORDS contains the word of each user,
padded to the same length. This module does not import dpstream, and uses libraries as documented.
Times are processor times. Estimates are unbiased: multi-freq-ldpy's clipping at zero and scaling is
omitted, because both are applied afterwards to the estimates of all libraries.
"""

from __future__ import annotations

import json
import math
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

ALPHABET = list("abcdefghijklmnopqrstuvwxyz'.")
"""Letters of words; the last one is padding."""

TOGETHER = 10_000
"""Number of users whose reports are in memory at once."""

HASHES = 1_000
"""Number of FastLH hashes; 1,000 or more add little error (Cormode, Maddock, Maple 2021)."""

SKETCH = {"k": 32, "m": 1024}
"""Rows and buckets of a sketch, as in the library's experiments."""

PREFIX_STEP = 2
"""Letters added per level, as in the library's experiments."""


def multi_freq(
    oracle: str, epsilon: float, items: int
) -> tuple[Callable[[int], Any], Callable[[Sequence[Any]], Any], int]:
    """Return a value's randomizer, the estimator of frequencies, and the minimum report size."""
    module = import_module(
        f"multi_freq_ldpy.pure_frequency_oracles.{'UE' if oracle == 'OUE' else oracle}"
    )
    # This library's estimators clip at zero and scale the result to a sum of 1.
    module.MI = lambda counts, n, p, q: (np.asarray(counts) / n - q) / (p - q)  # type: ignore[attr-defined]
    if oracle == "OUE":
        return (
            lambda value: module.UE_Client(value, items, epsilon, True),
            lambda reports: module.UE_Aggregator_MI(reports, epsilon, True),
            math.ceil(items / 8),
        )
    client = getattr(module, f"{oracle}_Client")
    aggregator = getattr(module, f"{oracle}_Aggregator_MI")
    number = number_bytes(items)
    size = number
    if oracle == "SS":
        size = min(math.ceil(items / 8), number * max(1, round(items / (math.exp(epsilon) + 1))))
    return (
        lambda value: client(value, items, epsilon),
        lambda reports: aggregator(reports, items, epsilon),
        size,
    )


def pure_ldp(oracle: str, epsilon: float, items: int) -> tuple[Any, Any, int]:
    """Return the client, the server, and the minimum report size in bytes."""
    oracles = import_module("pure_ldp.frequency_oracles")
    index = {"index_mapper": lambda item: item}
    number = number_bytes(items)
    if oracle == "GRR":
        return (
            oracles.DEClient(epsilon, items, **index),
            oracles.DEServer(epsilon, items, **index),
            number,
        )
    if oracle == "OUE":
        return (
            oracles.UEClient(epsilon, items, use_oue=True, **index),
            oracles.UEServer(epsilon, items, use_oue=True, **index),
            math.ceil(items / 8),
        )
    answer = number_bytes(round(math.exp(epsilon)) + 1)
    if oracle == "OLH":
        return (
            oracles.LHClient(epsilon, items, use_olh=True, **index),
            oracles.LHServer(epsilon, items, use_olh=True, **index),
            8 + answer,
        )
    if oracle == "FastLH":
        return (
            oracles.FastLHClient(epsilon, items, HASHES, use_olh=True, **index),
            oracles.FastLHServer(epsilon, items, HASHES, use_olh=True, **index),
            number_bytes(HASHES) + answer,
        )
    if oracle == "HR":
        server = oracles.HadamardResponseServer(epsilon, items, **index)
        client = oracles.HadamardResponseClient(epsilon, items, server.get_hash_funcs(), **index)
        return client, server, number_bytes(4 * items)
    raise ValueError(f"unknown oracle {oracle}")


def number_bytes(values: int) -> int:
    """Return the size of the smallest unsigned integer with this number of values."""
    return max(1, math.ceil(math.log2(values) / 8))


def run_oracle(library: str, oracle: str, epsilon: float, items: int, held: Any) -> dict[str, Any]:
    values = held.tolist()
    randomizing = server_side = 0.0
    if library == "multi-freq-ldpy":
        randomize, estimate, size = multi_freq(oracle, epsilon, items)
        estimate([randomize(value) for value in values[:100]])  # compiles
        total = np.zeros(items)
        for start in range(0, len(values), TOGETHER):
            some = values[start : start + TOGETHER]
            before = time.process_time()
            reports = [randomize(value) for value in some]
            between = time.process_time()
            total += np.asarray(estimate(reports)) * len(some)
            randomizing += between - before
            server_side += time.process_time() - between
        estimates = total
    else:
        client, server, size = pure_ldp(oracle, epsilon, items)
        for start in range(0, len(values), TOGETHER):
            before = time.process_time()
            reports = [client.privatize(value) for value in values[start : start + TOGETHER]]
            between = time.process_time()
            server.aggregate_all(reports)
            randomizing += between - before
            server_side += time.process_time() - between
        before = time.process_time()
        estimates = np.asarray(server.estimate_all(range(items), suppress_warnings=True))
        server_side += time.process_time() - before
    return {
        "estimates": estimates.tolist(),
        "bytes": size,
        "randomizing_seconds": randomizing,
        "server_seconds": server_side,
    }


def run_search(
    algorithm: str, sketch: str, epsilon: float, most: int, words: Sequence[str]
) -> dict[str, Any]:
    creators = import_module("pure_ldp.core.fo_creator")
    hitters = import_module("pure_ldp.heavy_hitters")
    # TreeHist splits epsilon evenly between prefixes and whole words.
    requested: dict[str, Any] = {"epsilon": epsilon, **SKETCH}
    more: dict[str, Any]
    if sketch == "hcms":
        oracle, more = "cms", {"is_hadamard": True}
    else:
        oracle, more = "SketchResponse", {"lh_k": 500, "count_sketch": False, "sketch_method": 3}
    server_oracle = creators.create_fo_server_instance(oracle, {**requested, **more})
    hash_functions = {"hash_funcs": server_oracle.get_hash_funcs()}
    client_oracle = creators.create_fo_client_instance(
        oracle, {**requested, **more, **hash_functions}
    )
    length = len(words[0])
    shape = {
        "epsilon": epsilon,
        "max_string_length": length,
        "fragment_length": PREFIX_STEP,
        "alphabet": ALPHABET,
        "index_mapper": lambda word: word,
    }
    if algorithm == "PEM":
        shape["start_length"] = PREFIX_STEP
        client = hitters.PEMClient(**shape, fo_client=client_oracle)
        server = hitters.PEMServer(**shape, fo_server=server_oracle)
    else:
        client = hitters.TreeHistClient(**shape, fo_client=client_oracle)
        server = hitters.TreeHistServer(**shape, fo_server=server_oracle)
    randomizing = server_side = 0.0
    for start in range(0, len(words), TOGETHER):
        before = time.process_time()
        reports = [client.privatize(word) for word in words[start : start + TOGETHER]]
        between = time.process_time()
        for report in reports:
            server.aggregate(report)
        randomizing += between - before
        server_side += time.process_time() - between
    before = time.process_time()
    found, estimates = server.find_heavy_hitters(k=most)
    return {
        "found": list(found),
        "estimates": [float(each) for each in estimates],
        "randomizing_seconds": randomizing,
        "adding_seconds": server_side,
        "searching_seconds": time.process_time() - before,
    }


def main(arguments: Sequence[str]) -> None:
    warnings.simplefilter("ignore")
    kind, first, second, epsilons, number, path = arguments
    held = np.load(path) if kind == "oracle" else None
    words = Path(path).read_text("ascii").split() if kind == "search" else []
    for epsilon in map(float, epsilons.split(",")):
        if kind == "oracle":
            done = run_oracle(first, second, epsilon, int(number), held)
        else:
            done = run_search(first, second, epsilon, int(number), words)
        print(json.dumps(done), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
