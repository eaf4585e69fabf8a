"""Attack guarantees that hide a user among others, with freely chosen values of the others.

Each protocol whose stated delta assumes that other users randomize their values is attacked on a
small population. For every pair of neighboring values and every choice of the others' values, the
distribution of the shuffler's output is enumerated, and the largest exact delta is compared with
the stated one. Only the constants come from the accounting.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dpstream.randomizers.accounting.whole_streams import epsilon_of_streams
from dpstream.randomizers.composed import ComposedLaw
from dpstream.randomizers.projective_geometry import (
    ProjectiveGeometryLaw,
    ProjectiveGeometryParameters,
)
from dpstream.randomizers.projective_geometry import calibration as projective_geometry
from dpstream.randomizers.single_message import SingleMessageLaw, SingleMessageParameters
from dpstream.randomizers.single_message import calibration as single_message
from experiments.protocols.count_mean_sketch import CountMeanSketchParameters
from experiments.protocols.count_mean_sketch import calibration as count_mean_sketch
from experiments.protocols.fragments import FragmentsLaw, FragmentsParameters
from experiments.protocols.fragments import calibration as fragments
from experiments.protocols.ldp_sgd import LdpSgdLaw, LdpSgdParameters
from experiments.protocols.ldp_sgd import calibration as ldp_sgd
from tests.support.sources import ROOT

Sent = dict[tuple[int, ...], float]
Items = tuple[int, ...]

ALPHABET = tuple("abcdefghij")


@dataclass(frozen=True)
class Case:
    """A calibrated mechanism, written out from its definition.

    Attributes:
        sent: Distribution of the messages for each value.
        neighbors: Pairs of values that must be indistinguishable.
        users: Minimum number of contributors.
    """

    epsilon: float
    delta: float
    sent: Mapping[Items, Sent]
    neighbors: Sequence[tuple[Items, Items]]
    users: int

    def worst(self) -> float:
        factor = math.exp(self.epsilon)
        return max(float(np.maximum(p - factor * q, 0).sum()) for p, q in self.laws())

    def laws(self) -> Iterator[tuple[NDArray[np.float64], NDArray[np.float64]]]:
        for others in self._others(self.users - 1, list(self.sent)):
            for one, other in self.neighbors:
                p, q = (added(others, self.sent[value]) for value in (one, other))
                yield p, q
                yield q, p

    def _others(self, users: int, values: list[Items]) -> Iterator[NDArray[np.float64]]:
        width = len(next(iter(next(iter(self.sent.values())))))

        def chosen(
            law: NDArray[np.float64], left: int, first: int
        ) -> Iterator[NDArray[np.float64]]:
            if not left:
                yield law
                return
            for index in range(first, len(values)):
                yield from chosen(added(law, self.sent[values[index]]), left - 1, index)

        return chosen(np.ones((1,) * width), users, 0)


def added(law: NDArray[np.float64], sent: Sent) -> NDArray[np.float64]:
    """Return the distribution of counts after one more user, who adds at most 1 to each."""
    grown = np.zeros([size + 1 for size in law.shape])
    for counts, probability in sent.items():
        grown[tuple(slice(n, n + size) for n, size in zip(counts, law.shape, strict=True))] += (
            probability * law
        )
    return grown


def held(items: int, slots: int) -> list[Items]:
    return [each for size in range(slots + 1) for each in combinations(range(items), size)]


def replaced(values: Sequence[Items]) -> list[tuple[Items, Items]]:
    return list(combinations(values, 2))


def removed(values: Sequence[Items]) -> list[tuple[Items, Items]]:
    return [(value, ()) for value in values if value]


def symbol(index: int, size: int) -> tuple[int, ...]:
    return tuple(int(each == index) for each in range(size))


def bits_of(value: Items, size: int, reversed_: float) -> Sent:
    sent: Sent = {}
    for bits in product((0, 1), repeat=size):
        wrong = sum(bit != (index in value) for index, bit in enumerate(bits))
        sent[bits] = reversed_**wrong * (1 - reversed_) ** (size - wrong)
    return sent


def of_responses(law: SingleMessageLaw, users: int) -> Case:
    own, other = law.odds.weights
    values = held(law.items, law.slots)
    sent: dict[Items, Sent] = {}
    for value in values:
        if law.bits:
            vectors = bits_of(value, law.items, other / (own + other))
            numbered = enumerate(vectors.values())
            sent[value] = {symbol(n, len(vectors)): each for n, each in numbered}
        else:
            true = value[0] + 1 if value else 0
            total = own + other * law.items
            sent[value] = {
                symbol(each, law.items + 1): (own if each == true else other) / total
                for each in range(law.items + 1)
            }
    return Case(law.epsilon, law.delta, sent, replaced(values), users)


def of_fragments(law: FragmentsLaw, users: int) -> Case:
    values = held(law.items, law.slots)
    again = float(law.flips.probability)
    before = 0.0 if law.backstop_flips is None else float(law.backstop_flips.probability)
    sent: dict[Items, Sent] = {}
    for value in values:
        sent[value] = {}
        for kept, probability in bits_of(value, law.items, before).items():
            answer = tuple(index for index, bit in enumerate(kept) if bit)
            reports = [bits_of(answer, law.items, again).items() for _ in range(law.reports)]
            for several in product(*reports) if probability else ():
                counts = sum((bits for bits, _ in several), ())
                each = probability * math.prod(likely for _, likely in several)
                sent[value][counts] = sent[value].get(counts, 0.0) + each
    neighbors = (replaced if law.neighbors == "replacement" else removed)(values)
    return Case(law.epsilon, law.delta, sent, neighbors, users)


def of_sketch(law: Any, users: int) -> Case:
    values = held(law.items, 1)
    reversed_, cells = float(law.bits.flips.probability), law.rows * law.buckets
    sent: dict[Items, Sent] = {}
    for value in values:
        sent[value] = {}
        for row in range(law.rows):
            bucket = law.buckets_of(row, np.array(value, np.int64) + 1).tolist()
            for bits, likely in bits_of(tuple(bucket), law.buckets, reversed_).items():
                counts = [0] * cells
                counts[row * law.buckets : (row + 1) * law.buckets] = bits
                key = tuple(counts)
                sent[value][key] = sent[value].get(key, 0.0) + likely / law.rows
    neighbors = (replaced if law.bits.neighbors == "replacement" else removed)(values)
    return Case(law.bits.epsilon, law.delta, sent, neighbors, users)


def of_sets(law: ProjectiveGeometryLaw, users: int) -> Case:
    """Return the case of points with two coordinates, where each item's set has one point."""
    space, (own, other) = law.space, law.odds.weights
    assert (space.coordinates, space.block) == (2, 1)
    values = held(law.items, 1)
    total = own + other * space.outside
    sent = {
        value: {
            symbol(each, space.points): (own if each == number else other) / total
            for each in range(space.points)
        }
        for number, value in enumerate(values)
    }
    return Case(law.shuffled_epsilon, law.shuffled_delta, sent, replaced(values), users)


def of_learning(law: LdpSgdLaw, users: int) -> Case:
    """Return the case of two directions, for each of which an example determines the sign."""
    own, other = law.odds.weights
    sent: dict[Items, Sent] = {}
    for signs in product((0, 1), repeat=2):
        sent[signs] = {
            symbol(2 * direction + bit, 4): (own if bit == sign else other) / (own + other) / 2
            for direction, sign in enumerate(signs)
            for bit in (0, 1)
        }
    return Case(law.epsilon, law.delta, sent, replaced(list(sent)), users)


def of_streams(loss: float, delta: float, users: int) -> Case:
    """Return the case of whole streams, as a randomized response over three streams."""
    own = math.exp(loss) / (math.exp(loss) + 2)
    sent: dict[Items, Sent] = {
        (value,): {symbol(n, 3): own if n == value else (1 - own) / 2 for n in range(3)}
        for value in range(3)
    }
    epsilon = epsilon_of_streams(loss, users, delta)
    return Case(epsilon, delta, sent, replaced(list(sent)), users)


@dataclass(frozen=True)
class Protocol:
    parameters: Callable[..., Any]
    calibrate: Callable[..., Any]
    case: Callable[[Any, int], Case]
    epsilon_with: Callable[[Any, int], float]


RESPONSES = Protocol(
    SingleMessageParameters, single_message.calibrate, of_responses, single_message.epsilon_with
)
BITS = Protocol(FragmentsParameters, fragments.calibrate, of_fragments, fragments.epsilon_with)
SKETCH = Protocol(
    CountMeanSketchParameters,
    count_mean_sketch.calibrate,
    of_sketch,
    count_mean_sketch.epsilon_with,
)

LAWS: dict[str, tuple[Protocol, float, float, int, int, dict[str, Any]]] = {
    "one item": (RESPONSES, 1.0, 0.02, 1, 30, {"response": "randomized_response"}),
    "two items": (RESPONSES, 0.5, 0.02, 2, 14, {"response": "randomized_response"}),
    "three items": (RESPONSES, 1.0, 0.1, 3, 7, {"response": "randomized_response"}),
    "rappor": (RESPONSES, 1.0, 0.1, 2, 16, {"response": "rappor"}),
    "rappor of sets": (RESPONSES, 1.0, 0.3, 2, 9, {"response": "rappor", "items": 2}),
    "fragments": (BITS, 1.0, 0.02, 2, 18, {}),
    "fragments of few": (BITS, 0.5, 0.1, 2, 9, {}),
    "fragments of three": (BITS, 1.0, 0.05, 3, 7, {}),
    "fragments of sets": (BITS, 1.0, 0.05, 2, 12, {"items": 2}),
    "fragments removed": (BITS, 1.0, 0.02, 2, 18, {"neighbors": "removal"}),
    "fragments as published": (
        BITS,
        *(1.0, 0.02, 1, 200),
        {"neighbors": "removal", "calibration": "published"},
    ),
    "several reports": (BITS, 1.0, 0.1, 1, 30, {"reports": 2}),
    "sketch": (SKETCH, 1.0, 0.05, 2, 12, {"rows": 1, "buckets": 2}),
    "sketch of two rows": (SKETCH, 1.0, 0.2, 1, 24, {"rows": 2, "buckets": 2}),
    "sketch removed": (
        SKETCH,
        *(1.0, 0.05, 2, 12),
        {"rows": 1, "buckets": 2, "neighbors": "removal"},
    ),
}
TIGHT = {
    *("one item", "fragments", "fragments of few", "fragments of three", "fragments of sets"),
    *("fragments removed", "sketch removed"),
}
"""Cases whose worst delta exceeds half of the stated one, so less noise would be detected."""


def law_of(name: str, last_epoch: int = 1) -> tuple[Protocol, Any, int]:
    protocol, epsilon, delta, size, users, more = LAWS[name]
    requested = protocol.parameters(epsilon, delta, ALPHABET[:size], **more)
    return protocol, protocol.calibrate(requested, last_epoch, users), users


@pytest.mark.parametrize("name", LAWS)
def test_stated_delta_holds_whatever_values_other_users_have(name: str) -> None:
    protocol, law, users = law_of(name)
    case = protocol.case(law, users)
    worst = case.worst()
    assert worst <= case.delta
    if name in TIGHT:
        assert worst > case.delta / 2
    factor = 2 if name in TIGHT else 30
    assert protocol.case(quieter(law, factor), users).worst() > case.delta


def quieter(law: Any, factor: int) -> Any:
    if hasattr(law, "bits") and isinstance(law.bits, FragmentsLaw):
        return replace(law, bits=quieter(law.bits, factor))
    own, other = law.odds.weights
    return replace(law, odds=ComposedLaw((factor * own + (factor - 1) * other, other)))


def test_worst_delta_depends_on_the_values_of_other_users() -> None:
    protocol, law, users = law_of("fragments")
    case = protocol.case(law, users)
    others = next(case._others(users - 1, [()]))
    p, q = (added(others, case.sent[value]) for value in ((0,), (1,)))
    if_empty = float(np.maximum(p - math.exp(case.epsilon) * q, 0).sum())
    assert case.worst() > 1.5 * if_empty


@pytest.mark.parametrize("name", LAWS)
def test_epsilon_for_fewer_users_holds_whatever_values_other_users_have(name: str) -> None:
    protocol, law, users = law_of(name)
    fewer = max(2, users // 2)
    epsilon = protocol.epsilon_with(law, fewer)
    case = replace(protocol.case(law, fewer), epsilon=epsilon)
    assert case.worst() <= case.delta


@pytest.mark.parametrize("name", ["one item", "fragments of few"])
def test_delta_for_two_epochs_holds_whatever_values_other_users_have(name: str) -> None:
    users = 6
    protocol, epsilon, delta, _, _, more = LAWS[name]
    requested = protocol.parameters(epsilon, 5 * delta, ALPHABET[:1], **more)
    law = protocol.calibrate(requested, 2, users)
    case = protocol.case(law, users)
    assert law.stream_epsilon > law.epsilon
    factor = math.exp(law.stream_epsilon)
    for (p, q), (r, s) in product(list(case.laws()), repeat=2):
        over = np.multiply.outer(p, r) - factor * np.multiply.outer(q, s)
        assert np.maximum(over, 0).sum() <= case.delta


@pytest.mark.parametrize(("epsilon", "users"), [(3.0, 14), (2.0, 8)])
def test_projective_delta_holds_whatever_values_other_users_have(
    epsilon: float, users: int
) -> None:
    requested = ProjectiveGeometryParameters(epsilon, ALPHABET[:2], delta=0.1)
    case = of_sets(projective_geometry.calibrate(requested, 1, users), users)
    assert case.epsilon < epsilon
    assert case.delta / 5 < case.worst() <= case.delta


@pytest.mark.parametrize("users", [4, 9])
def test_ldp_sgd_delta_holds_whatever_values_other_users_have(users: int) -> None:
    requested = LdpSgdParameters(1.5, 0.05, features=2, classes=2)
    case = of_learning(ldp_sgd.calibrate(requested, 1, users), users)
    assert case.epsilon < 1.5
    assert 0 < case.worst() <= case.delta


@pytest.mark.parametrize(("loss", "users"), [(1.0, 6), (2.0, 20)])
def test_stream_delta_holds_whatever_values_other_users_have(loss: float, users: int) -> None:
    case = of_streams(loss, 0.05, users)
    assert case.epsilon < loss
    assert 0 < case.worst() <= case.delta


def test_every_calibration_that_relies_on_other_users_is_attacked() -> None:
    """Calibrations that hide a user among others import one of two modules."""
    hiding = re.compile(r"accounting\.amplification|fragments\.calibration")
    found = {
        path.relative_to(folder).as_posix()
        for folder in (ROOT / "randomizers", ROOT / "experiments" / "protocols")
        for path in folder.rglob("*.py")
        if hiding.search(path.read_text())
    }
    assert found == {
        "accounting/__init__.py",  # a list of modules
        "accounting/whole_streams.py",
        "count_mean_sketch/calibration.py",
        "fragments/calibration.py",
        "fragments/entry.py",  # an import of the calibration
        "ldp_sgd/calibration.py",
        "projective_geometry/calibration.py",
        "sampled_response/calibration.py",  # in test_sampled_response
        "single_message/calibration.py",
    }
