"""Golden vectors of single devices: random bytes, states and messages, for clients in any language.

They pin what devices in browsers and Python draw from the same bytes. The bytes of a run are the
concatenated SHA-256 digests of the label and an 8-byte little-endian counter, for counters 0, 1,
...; `randomizers/byte_generator.py` defines their use. Each epoch has its value, its messages in
ascending order and the number of consumed bytes; states are as in `OneDevice.state`. Write the
files with::

    python -m tests.randomizers.javascript.vectors [--check]
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np

from dpstream.randomizers.byte_generator import byte_randomness
from dpstream.randomizers.cell_codes.grid import Grid
from dpstream.randomizers.cell_codes.hashed_rows import HashedRows
from dpstream.randomizers.cell_codes.kept_nodes import KeptNodes
from dpstream.randomizers.cell_codes.levels import Levels
from dpstream.randomizers.cell_codes.prefixes import PrefixCells, PrefixLevel
from dpstream.randomizers.cell_noise_law import CellNoiseLaw
from dpstream.randomizers.composed import ComposedLaw
from dpstream.randomizers.count_min import CountMinLaw
from dpstream.randomizers.draws import draw_categories
from dpstream.randomizers.dummies import PoissonDummies
from dpstream.randomizers.future_rand import FutureRandParameters
from dpstream.randomizers.future_rand.calibration import calibrate as future_rand
from dpstream.randomizers.item_domains import Bits, Numbers
from dpstream.randomizers.noise_tables import poisson_table
from dpstream.randomizers.one_device import PROTOCOLS, OneDevice
from dpstream.randomizers.panels import (
    ONE,
    PanelGroup,
    PanelQuestion,
    PanelsLaw,
    PanelsParameters,
    SampledPanelsParameters,
    ShuffledPanelsParameters,
)
from dpstream.randomizers.panels.calibration import calibrate as panels
from dpstream.randomizers.panels.calibration import calibrate_sampled as sampled_panels
from dpstream.randomizers.panels.calibration import calibrate_shuffled as shuffled_panels
from dpstream.randomizers.sampled_response import SampledResponseParameters
from dpstream.randomizers.sampled_response.calibration import calibrate_any as sampled_response
from dpstream.randomizers.shuffled_counts import ShuffledCountsParameters
from dpstream.randomizers.shuffled_counts.calibration import calibrate as shuffled_counts
from dpstream.randomizers.shuffled_counts.shuffled_item_counts import ShuffledItemCountsLaw
from dpstream.randomizers.shuffled_counts.shuffled_item_counts.calibration import (
    calibrate as shuffled_item_counts,
)
from dpstream.randomizers.shuffled_counts.shuffled_level_counts.calibration import (
    calibrate as shuffled_level_counts,
)
from dpstream.randomizers.shuffled_counts.shuffled_value_stream.calibration import (
    calibrate as shuffled_value_stream,
)
from dpstream.randomizers.single_message import SingleMessageLaw
from dpstream.randomizers.value_stream import ValueStreamParameters
from dpstream.randomizers.value_stream.calibration import calibrate as value_stream
from dpstream.randomizers.value_stream.hadamard_values import HadamardValuesParameters
from dpstream.randomizers.value_stream.hadamard_values.calibration import (
    calibrate as hadamard_values,
)
from dpstream.randomizers.value_stream.lattice import weights
from dpstream.randomizers.value_stream.normal import distribution_function
from dpstream.randomizers.value_stream.range_values import RangeValuesParameters
from dpstream.randomizers.value_stream.range_values.calibration import calibrate as range_values

FOLDER: Final = Path(__file__).parents[3] / "randomizers" / "javascript" / "vectors"

RARE: Final = "rare_draws"

_WORD: Final = (1 << 64) - 1

Value: TypeAlias = int | list[int]
Stream: TypeAlias = list[tuple[int, Value]]
"""Epochs with their values; the device is absent at all other epochs."""


class CountedBytes:
    def __init__(self, label: str) -> None:
        self._label, self._rest, self._counter = label.encode(), b"", 0
        self.taken = 0

    def read(self, count: int) -> bytes:
        pieces = [self._rest]
        missing = count - len(self._rest)
        while missing > 0:
            counter = self._counter.to_bytes(8, "little")
            pieces.append(hashlib.sha256(self._label + counter).digest())
            missing -= len(pieces[-1])
            self._counter += 1
        held = b"".join(pieces)
        self._rest = held[count:]
        self.taken += count
        return held[:count]


def recorded(
    protocol: str, law: dict[str, Any], stream: Stream, label: str, group: int | None = None
) -> dict[str, Any]:
    source = CountedBytes(label)
    device = OneDevice(protocol, law)
    device.enroll(source.read, group)
    enrolled, epochs, halfway = [source.taken, device.state()], [], None
    for index, (epoch, value) in enumerate(stream):
        if index == len(stream) // 2:
            halfway = device.state()
        taken = source.taken
        words = device.report(epoch, value, source.read)
        epochs.append([epoch, value, words.ravel().tolist(), source.taken - taken])
    return {
        "label": label,
        **({} if group is None else {"group": group}),
        "enrolled": enrolled,
        "epochs": epochs,
        "halfway": halfway,
        "state": device.state(),
    }


def vectors_of(protocol: str) -> dict[str, Any]:
    cases = []
    for number, (law, streams) in enumerate(CASES[protocol]()):
        body = law.to_json()
        groups = body.get("groups")
        runs = [
            recorded(
                protocol,
                body,
                stream,
                f"{protocol} {number} {index}",
                None if groups is None else index % groups,
            )
            for index, stream in enumerate(streams)
        ]
        guarantee = OneDevice(protocol, body).devices.guarantee
        loss = {name: getattr(guarantee, name) for name in ("epsilon", "delta", "unit")}
        cases.append({"law": body, "loss": loss, "runs": runs})
    return {"protocol": protocol, "cases": cases}


def written(protocol: str) -> str:
    body = vectors_of(protocol)
    text = json.dumps(body, separators=(",", ":"))
    return text.replace('{"law"', '\n{"law"').replace('{"label"', '\n{"label"') + "\n"


def rare_draws() -> dict[str, Any]:
    """List extremely rare draws: random integers at the bounds of tables.

    A draw has a parameter (masses of categories, mean of a Poisson number or rate of dummies), the
    available 64-bit integers, the result, and the number of integers consumed. For symbols, the
    vectors also have the weights and the normal distribution function, exactly.
    """
    cases = []
    masses = [3, 5, 1 << 70, 7]
    cumulated = list(accumulate(masses))
    scale = (1 << 192) // cumulated[-1]
    for bound in [scale * each for each in cumulated]:
        for value in (bound - 1, bound, bound + 1, (1 << 192) - 1):
            words = [value >> 128, value >> 64 & _WORD, value & _WORD, 1 << 63, 5, 9]
            cases.append(_drawn("masses", masses, words))
    table = poisson_table(2.5)
    for bound in table.bounds[:-1]:
        for value in (bound - 1, bound, bound + (1 << 64), bound - (1 << 64)):
            leading, rest = divmod(value % (1 << 128), 1 << 64)
            # The first integer has 16 bits of each draw, the second the next 48 and 16 unused bits.
            words = [leading >> 48, (leading << 16) & _WORD, rest]
            cases.append(_drawn("mean", 2.5, words))
    # Dummies beyond the capacity are redrawn.
    cases.append(_drawn("rate", 2.5, [_WORD] * 6 + [1 << 62] * 2))
    halves = np.arange(-1, 28 * 16) / 32 - 5.5  # halfway between centers, and centers
    return {
        "draws": cases,
        "weights": list(weights()),
        "normal": np.column_stack([halves, distribution_function(halves)]).tolist(),
    }


def _drawn(kind: str, parameter: Any, words: list[int]) -> dict[str, Any]:
    data, taken = b"".join(word.to_bytes(8, "little") for word in words), 0

    def read(count: int) -> bytes:
        nonlocal taken
        taken += count
        return data[taken - count : taken]

    rng = byte_randomness(read)
    if kind == "masses":
        drawn = int(draw_categories(parameter, 1, rng)[0])
    elif kind == "rate":
        drawn = PoissonDummies(parameter).total(1, rng)
    else:
        drawn = int(poisson_table(parameter).draw(1, rng)[0])
    return {kind: parameter, "words": words, "drawn": drawn, "taken": taken // 8}


def every(epochs: int, values: Callable[[int], Value]) -> Stream:
    return [(epoch, values(epoch)) for epoch in range(1, epochs + 1)]


def without(stream: Stream, absent: Callable[[int], bool]) -> Stream:
    return [(epoch, value) for epoch, value in stream if not absent(epoch)]


def of_booleans(epochs: int) -> list[Stream]:
    seldom = every(epochs, lambda epoch: epoch // 7 & 1)
    often = every(epochs, lambda epoch: epoch & 1)
    return [
        every(epochs, lambda epoch: 1),
        seldom,
        often,
        without(seldom, lambda epoch: epoch % 5 in (2, 3)),
        without(often, lambda epoch: epoch < 6 or epoch % 11 == 0),
    ]


def of_items(epochs: int, items: int) -> list[Stream]:
    seldom = every(epochs, lambda epoch: (epoch // 5 * 7) % (items + 1))
    often = every(epochs, lambda epoch: (epoch * epoch * 3 + epoch) % (items + 1))
    return [
        every(epochs, lambda epoch: items),
        seldom,
        without(often, lambda epoch: epoch % 5 in (2, 3)),
        without(often, lambda epoch: epoch < 6),
    ]


def of_sets(epochs: int, size: int, most: int) -> list[Stream]:
    def held(epoch: int) -> list[int]:
        return [1 + epoch * (each + 3) * 7919 % size for each in range(epoch % (most + 1))]

    full = every(epochs, lambda epoch: [size, *range(1, most), size])
    return [full, without(every(epochs, held), lambda epoch: epoch == 2)]


def _future_rand() -> Iterator[tuple[Any, list[Stream]]]:
    for epsilon, changes, epochs in ((1.0, 3, 64), (4.0, 1, 16), (0.5, 40, 256), (8.0, 2, 1)):
        law = future_rand(FutureRandParameters(epsilon, changes), epochs)
        streams = of_booleans(min(epochs, 64))
        yield law, [stream for stream in streams * 2 if stream]
    late: Stream = [((1 << 40) + epoch, epoch & 1) for epoch in range(40)]
    yield future_rand(FutureRandParameters(2.0, 2), 1 << 41), [late] * 6


def _value_stream() -> Iterator[tuple[Any, list[Stream]]]:
    for epsilon, changes, epochs in ((1.0, 2, 170), (4.0, 4, 64), (0.1, 1, 12), (10.0, 30, 365)):
        yield value_stream(ValueStreamParameters(epsilon, changes), epochs), of_booleans(epochs)
    # A squared-norm budget that is used up, which never happens to calibrated constants.
    law = value_stream(ValueStreamParameters(8.0, 2), 40)
    yield replace(law, squared_norm_budget=law.squared_norm_budget / 3), of_booleans(40)
    law = value_stream(ValueStreamParameters(6.0, 3), 1500)
    yield law, [without(every(1500, lambda epoch: epoch // 100 & 1), lambda epoch: epoch % 97 == 5)]


def _hadamard_values() -> Iterator[tuple[Any, list[Stream]]]:
    for epsilon, changes, items, epochs in ((2.0, 3, 5, 32), (1.0, 1, 1000, 8), (8.0, 0, 4096, 1)):
        labels = tuple(f"item {item}" for item in range(items))
        law = hadamard_values(HadamardValuesParameters(epsilon, changes, labels), epochs)
        yield law, [stream for stream in of_items(epochs, items) * 3 if stream]


def _range_values() -> Iterator[tuple[Any, list[Stream]]]:
    for epsilon, changes, buckets, epochs in ((2.0, 4, 16, 32), (1.0, 20, 256, 64)):
        law = range_values(RangeValuesParameters(epsilon, changes, 0, 1, buckets), epochs)
        yield law, of_items(epochs, buckets) * 2


def _panels() -> Iterator[tuple[Any, list[Stream]]]:
    active, paid = PanelQuestion("active", "boolean"), PanelQuestion("paid", "boolean", share=3)
    spent = PanelQuestion("spent", "mean", 0, 10)
    place = PanelQuestion("place", "labels", labels=("home", "work", "road"))
    groups = tuple(PanelGroup({"os": name}) for name in ("ios", "web", "other"))
    for changes, questions, parts in (
        (2, (spent,), ()),
        (2, (place,), ()),
        (300, (active, paid, spent), groups),
        (2, (place, active, spent), groups),
    ):
        law = panels(PanelsParameters(2.0, changes, questions, parts), 400 if changes > 2 else 12)
        yield law, of_answers(law) * (3 if parts else 1)


def _sampled_panels() -> Iterator[tuple[Any, list[Stream]]]:
    active, spent = PanelQuestion("active", "boolean"), PanelQuestion("spent", "mean", 0, 10)
    place = PanelQuestion("place", "labels", labels=("home", "work", "road"))
    cells = PanelQuestion("cell", "labels", labels=tuple(map(str, range(300))))
    groups = tuple(PanelGroup({"os": name}) for name in ("ios", "web"))
    for questions, parts, reports, epochs in (
        ((spent,), (), None, 12),
        ((active, place, spent), groups, 3, 12),
        ((cells, active), groups, 1, 2),
    ):
        law = sampled_panels(SampledPanelsParameters(4.0, questions, parts, (), 1, reports), epochs)
        yield law, of_answers(law)[epochs < 12 :] * (3 if parts else 1)


def _shuffled_panels() -> Iterator[tuple[Any, list[Stream]]]:
    active, spent = PanelQuestion("active", "boolean"), PanelQuestion("spent", "mean", 0, 10)
    groups = tuple(PanelGroup({"os": name}) for name in ("ios", "web"))
    for questions, parts in (((spent,), ()), ((active, spent), groups)):
        requested = ShuffledPanelsParameters(1.0, 2, questions, parts, delta=1e-6)
        law = shuffled_panels(requested, 12, 100)
        # The path of the numbers is longer than two ranges, and ends at both of their ends.
        ends = every(12, lambda epoch: [1, [(epoch * 7919**3) % (ONE + 1), ONE, 0][epoch % 3]])
        own = [(epoch, value[-len(law.questions) :]) for epoch, value in ends]  # type: ignore[index]
        yield law, [*of_answers(law) * (2 if parts else 1), own]


def of_answers(law: PanelsLaw) -> list[Stream]:
    sizes = [question.largest for question in law.questions]
    epochs = min(law.last_epoch, 12)
    stream = every(epochs, lambda epoch: [(epoch // 3 * 7919**3) % (size + 1) for size in sizes])
    return [without(stream, lambda epoch: epoch % 5 == 2), stream]


def _count_min() -> Iterator[tuple[Any, list[Stream]]]:
    poisson = CellNoiseLaw("poisson", 43.7, 1000)
    clusters = CellNoiseLaw("negative_binomial", 61.3, 500, 12.7)
    for code, items, noise, size in (
        (HashedRows.histogram(3), 1, CellNoiseLaw("poisson", 4.4, 1), 3),
        (HashedRows.histogram(40), 4, CellNoiseLaw("bernoulli", 43.7, 100), 40),
        (HashedRows(5000, 3, 60, "a seed"), 3, poisson, 5000),
        (HashedRows(1 << 40, 2, 700, "another"), 2, clusters, 1 << 40),
        (Levels(12, (4, 3)), 1, poisson, 12),
        (KeptNodes(13), 1, clusters, 13),
        (Grid((Levels(4, (2, 2)), KeptNodes(5))), 1, CellNoiseLaw("shuffle", 9.0, 10), 20),
        (PrefixCells((PrefixLevel(4, 16), PrefixLevel(40, 90)), "words"), 2, poisson, 1 << 40),
    ):
        law = CountMinLaw(6, 1.0, 1e-6, 6.0, items, code, noise, "exact")
        yield law, of_sets(6, size, items)


def _single_message() -> Iterator[tuple[Any, list[Stream]]]:
    for size, items, response, own in (
        (5, 1, "randomized_response", 31),
        (1, 1, "randomized_response", 3),
        (70_000, 1, "randomized_response", 10**40),
        (3, 1, "rappor", 7),
        (100, 5, "rappor", 3**90),
    ):
        odds = ComposedLaw((own, 2))
        law = SingleMessageLaw(size, items, response, 100, 20, odds, 1.0, 1e-6, 20.0)  # type: ignore[arg-type]
        yield law, of_sets(20, size, items)


def _shuffled_counts() -> Iterator[tuple[Any, list[Stream]]]:
    booleans = of_booleans(24)
    for requested in (
        ShuffledCountsParameters(1.0, 1e-6),
        ShuffledCountsParameters(1.0, 1e-6, dummies="negative_binomial"),
        ShuffledCountsParameters(1.0, 1e-6, max_changes=2, boost=3),
        ShuffledCountsParameters(1.0, 1e-6, max_changes=2, boost=3, dummies="shuffle"),
    ):
        yield shuffled_counts(requested, 24, 1000), booleans
    summed = ShuffledCountsParameters(1.0, 1e-6, max_changes=3, dummies="shuffle")
    yield shuffled_value_stream(summed, 200, 100), of_booleans(200)
    few = shuffled_value_stream(summed, 40, 100)
    yield replace(few, squared_norm_budget=few.squared_norm_budget // 3), of_booleans(40)
    items = of_items(24, 4)
    for requested in (
        ShuffledCountsParameters(1.0, 1e-6, domain=tuple("abcd"), buckets=3),
        ShuffledCountsParameters(1.0, 1e-6, 2, 2, domain=tuple("abcd"), cells="count_min"),
        ShuffledCountsParameters(1.0, 1e-6, dummies="shuffle", domain=tuple("abcd"), buckets=3),
    ):
        yield shuffled_item_counts(requested, 24, 5000), items
    for requested in (
        ShuffledCountsParameters(1.0, 1e-6, domain=Numbers(0, 80, 4), dummies="shuffle"),
        ShuffledCountsParameters(1.0, 1e-6, 2, 2, domain=Numbers(0, 80, 4)),
    ):
        yield shuffled_level_counts(requested, 24, 5000), items
    # Hashes of two digits, with 8-byte messages, and hashes of five digits.
    for size, buckets in ((1 << 20, 104_729), (200, 3)):
        noise = CellNoiseLaw("poisson", 43.7, 1_000_000)
        law = ShuffledItemCountsLaw(4, size, 1.0, 1e-6, 0, 0, buckets, noise, None)
        yield law, [stream for stream in of_items(4, size) if stream]


def _sampled_response() -> Iterator[tuple[Any, list[Stream]]]:
    for epsilon, reports, epochs in ((1.0, 1, 8), (4.0, 3, 20), (1.0, 3, 7), (6.0, 8, 9)):
        law = sampled_response(SampledResponseParameters(epsilon, reports), epochs)
        yield law, of_booleans(epochs)[1:4]
    # Subsets with and without an answer for no item, single values, and hyperplanes.
    for epsilon, reports, items, complete in (
        (1.0, 1, 5, False),
        (1.0, 1, 6, True),
        (2.0, 2, 3, True),
        (0.5, 1, 20, True),
        (1.0, 1, 100, False),
        (4.0, 1, 1 << 20, False),
        (2.0, 1, 5000, True),
    ):
        domain = Bits(20) if items == 1 << 20 else tuple(map(str, range(items)))
        requested = SampledResponseParameters(epsilon, reports, domain=domain, complete=complete)
        stream = every(2, lambda epoch, items=items: (epoch * 7919 - 7919) % (items + 1))  # type: ignore[misc]
        yield sampled_response(requested, 2), [stream] * 4
    # Sets of items, with subsets and hyperplanes.
    for size, items in ((5, 3), (100, 4)):
        domain = tuple(map(str, range(size)))
        requested = SampledResponseParameters(2.0, domain=domain, items=items)
        yield sampled_response(requested, 2), of_sets(2, size, items)
    # Numbers in a tree without its root, or on one level, and prefixes of large domains.
    numbers = [
        SampledResponseParameters(epsilon, low=0, high=100, buckets=buckets)
        for epsilon, buckets in ((1.0, 64), (2.0, 32), (4.0, 16))
    ]
    words = [SampledResponseParameters(4.0, domain=Bits(48), items=items) for items in (1, 3)]
    for requested in (*numbers, *words):
        law = sampled_response(requested, 2)
        size, items = law.items, requested.items
        stream = every(2, lambda epoch, size=size: (epoch * 7919 - 7919) % (size + 1))  # type: ignore[misc]
        yield law, of_sets(2, size, items) if items > 1 else [stream] * 3


CASES: Final[dict[str, Callable[[], Iterator[tuple[Any, list[Stream]]]]]] = {
    "future_rand": _future_rand,
    "value_stream": _value_stream,
    "hadamard_values": _hadamard_values,
    "range_values": _range_values,
    "panels": _panels,
    "sampled_panels": _sampled_panels,
    "shuffled_panels": _shuffled_panels,
    "count_min": _count_min,
    "single_message": _single_message,
    "shuffled_counts": _shuffled_counts,
    "sampled_response": _sampled_response,
}


def main(arguments: list[str]) -> int:
    differing = []
    files = {protocol: written(protocol) for protocol in PROTOCOLS}
    files[RARE] = json.dumps(rare_draws(), separators=(",", ":")).replace('{"m', '\n{"m') + "\n"
    for name, text in files.items():
        path = FOLDER / f"{name}.json"
        if arguments == ["--check"]:
            differing += [path.name] if path.read_text() != text else []
        else:
            path.write_text(text)
    if differing:
        print(f"not what devices draw now: {', '.join(differing)}", file=sys.stderr)
    return int(bool(differing))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
