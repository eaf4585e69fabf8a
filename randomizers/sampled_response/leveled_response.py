"""Sampled response about one level of a tree: numbers in ranges, or prefixes of large domains.

Every level divides the items into cells, and has its own set of points for each cell. A device that
is due draws a level, uniformly and independently of its item, and answers about the item's cell
there. The level is public: an answer is the number of the level's first word, plus the point. So
the guarantee is that of one level, and the users who answer about a level are a random sample.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from dpstream.randomizers.cell_codes.codes import CellCode, code_from_json
from dpstream.randomizers.draws import draw_categories
from dpstream.randomizers.guarantee import Guarantee
from dpstream.randomizers.laws import Constants
from dpstream.randomizers.sampled_response import PhasedDevices, SampledResponseLaw
from dpstream.topics.message_formats import MessageFormat, narrowest


@dataclass(frozen=True, slots=True)
class LeveledResponseLaw(Constants):
    """Constants of a sampled_response job with levels.

    Attributes:
        code: Cells of each item on all levels, numbered one level after the other. Cells that all
            items share, such as the root of a tree, come first; no answer is about them.
        levels: Mechanism of one answer about a level, whose items are the level's cells.
    """

    code: CellCode = field(metadata={"read": code_from_json})
    levels: tuple[SampledResponseLaw, ...]

    def __post_init__(self) -> None:
        shared = self.code.shared
        if not self.levels or len(self.levels) != self.code.messages - shared:
            raise ValueError(
                f"got {len(self.levels)} levels; expected {self.code.messages - shared}, at least 1"
            )
        cells = sum(level.items for level in self.levels)
        if cells != self.code.cells - shared:
            raise ValueError(f"levels have {cells} cells; expected {self.code.cells - shared}")
        if any(level.reports != 1 for level in self.levels):
            raise ValueError("'flips' of a level are for several answers; expected one answer")
        shared_constants = {
            (level.last_epoch, level.epsilon, level.complete, level.slots) for level in self.levels
        }
        if len(shared_constants) != 1:
            raise ValueError(
                "levels have different constants; expected the same 'last_epoch', 'epsilon', "
                "'complete' and 'slots'"
            )

    @property
    def last_epoch(self) -> int:
        return self.levels[0].last_epoch

    @property
    def loss(self) -> float:
        return max(level.loss for level in self.levels)

    @property
    def reports(self) -> int:
        return 1

    @property
    def offsets(self) -> tuple[int, ...]:
        return (0,)

    @property
    def items(self) -> int:
        return self.code.size

    @property
    def complete(self) -> bool:
        return self.levels[0].complete

    @property
    def slots(self) -> int:
        return self.levels[0].slots

    @property
    def first_words(self) -> tuple[int, ...]:
        """The first word of each level, then the total number of words."""
        return tuple(accumulate((level.sets.points for level in self.levels), initial=0))

    @property
    def message_format(self) -> MessageFormat:
        return MessageFormat(narrowest(self.first_words[-1]), distinct=self.first_words[-1])

    def cells_of(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return each item's cell on every level, from 1; all are 0 for item 0.

        `numbers` are items from 1, or 0, shape (n,). The result is int64, shape (n, levels).
        """
        ends = self.code.shared + np.cumsum([level.items for level in self.levels])
        starts = np.concatenate([[self.code.shared], ends[:-1]])
        cells = self.code.encode(np.maximum(numbers, 1))[:, self.code.shared :]
        return np.asarray(np.where(numbers[:, None], 1 + cells - starts, 0), np.int64)


class LeveledResponse(PhasedDevices[LeveledResponseLaw]):
    """The devices of one horizon.

    >>> from dpstream.randomizers.cell_codes.levels import Levels
    >>> from dpstream.randomizers.composed import ComposedLaw
    >>> from dpstream.randomizers.randomness import seeded_generator
    >>> from dpstream.randomizers.set_systems import Subsets
    >>> rng, odds = seeded_generator(1), ComposedLaw((10**30, 1))
    >>> levels = [SampledResponseLaw(1, 70.0, odds, Subsets(n, 1), n, True, 1) for n in (2, 4)]
    >>> devices = LeveledResponse(LeveledResponseLaw(Levels(4, (2, 2)), tuple(levels)))
    >>> devices.enroll(1000, rng)
    >>> reports = devices.report(1, np.full(1000, 3), None, rng)
    >>> np.unique(reports)  # the second of two nodes, and the third of four
    array([1, 4], dtype=uint8)
    """

    def __init__(self, law: LeveledResponseLaw) -> None:
        super().__init__(law)
        self._index()

    @property
    def guarantee(self) -> Guarantee:
        return replace(
            super().guarantee,
            trust=(
                "none; it holds against everyone who sees the reports; which devices exist, when "
                "they are asked and report, and the level of each report are public"
            ),
        )

    def _answers(
        self,
        devices: NDArray[np.intp],
        answer: int,
        numbers: NDArray[np.int64],
        rng: np.random.Generator,
    ) -> NDArray[np.unsignedinteger]:
        law, words = self.law, np.empty(len(devices), np.uint32)
        drawn = rng.integers(0, len(law.levels), len(devices))
        cells = law.cells_of(numbers)
        for index, level in enumerate(law.levels):
            here = np.flatnonzero(drawn == index)
            inside = draw_categories(level.masses, len(here), rng) == 0
            points = level.sets.draw(cells[here, index] - level.complete, inside, rng)
            words[here] = np.uint32(law.first_words[index]) + points
        return words


def contrast_variances(level: SampledResponseLaw) -> tuple[float, float]:
    """Return the variance of an answer's estimate of a contrast between cells, in two parts.

    A contrast is a sum of cells with weights c, whose sum is 0. For a user in cell u, the variance
    due to the flip is (first part) * sum of c^2 + (second part) * c_u^2, if every user is in a
    cell. This is exact for subsets. For hyperplanes, it neglects triples with a common line.

    Let A(x) be 1 if the answer is in the set of x, and otherwise 0. The parts follow from the
    variances of A(u) and A(x), and from the covariances of A(u), A(x) and of A(x), A(z), for
    different u, x and z. An estimate is a sum of A, divided by the difference of `probabilities`.
    """
    sets, (own, other) = level.sets, level.probabilities
    joint = own * Fraction(sets.common_to_three, sets.block)
    joint += (1 - own) * Fraction(sets.common - sets.common_to_three, sets.outside)
    of_others = joint - other * other
    with_own = own * Fraction(sets.common, sets.block) - own * other
    spread = other * (1 - other)
    second = own * (1 - own) - spread + 2 * (of_others - with_own)
    gap = (own - other) ** 2
    return float((spread - of_others) / gap), float(second / gap)


def node_variance(level: SampledResponseLaw) -> float:
    """Return the variance of one answer's estimate of a cell, for contrasts of equally full cells.

    It is due to the flip, and to the sampling of one of many users.
    """
    first, second = contrast_variances(level)
    return first + (1 + second) / level.items
