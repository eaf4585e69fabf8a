"""Learning a linear model from one bit a report, server side.

Of n reports of a step, each a direction v and a sign b, the sum of b v over n estimates the mean
clipped gradient, once it is multiplied by

    L sqrt(pi / 2) (e^epsilon + 1) / (e^epsilon - 1) / UNIT.

The state are these sums, whole numbers, for every step. Models are a pure function of them: a step
goes from theta to the projection of theta - eta g, beginning with 0 everywhere.
"""

from __future__ import annotations

import math
from typing import Self

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.estimate import NORMAL_95, Attendance, Estimate
from dpstream.aggregators.law_aggregator import LawAggregator, check_form
from dpstream.randomizers.labelled_examples import FEATURE_UNIT, unpacked_examples
from dpstream.randomizers.ldp_sgd import LdpSgdLaw, LdpSgdParameters
from dpstream.randomizers.ldp_sgd.gradient_directions import UNIT, directions


def scores(
    model: NDArray[np.float64], examples: NDArray[np.integer], classes: int
) -> NDArray[np.float64]:
    """The score of every class, shape (n, classes).

    Args:
        model: float64, shape (numbers,): a row of features for every class, one after the other.
        examples: shape (n, 1 + features), as `dpstream.randomizers.labelled_examples` has them.
        classes: how many there are.
    """
    found: NDArray[np.float64] = examples[:, 1:] / FEATURE_UNIT @ model.reshape(classes, -1).T
    return found


def accuracy(model: NDArray[np.float64], examples: NDArray[np.integer], classes: int) -> float:
    """The share of examples whose class has the largest score; arguments as of `scores`."""
    decided = scores(model, examples, classes).argmax(axis=1)
    return float(np.mean(decided == examples[:, 0] - 1))


def losses(
    model: NDArray[np.float64], examples: NDArray[np.integer], classes: int
) -> NDArray[np.float64]:
    """The loss of each example, -ln softmax(scores) at its class, shape (n,); as of `scores`."""
    found = scores(model, examples, classes)
    largest = found.max(axis=1)
    total = np.log(np.exp(found - largest[:, None]).sum(axis=1)) + largest
    lost: NDArray[np.float64] = total - found[np.arange(len(examples)), examples[:, 0] - 1]
    return lost


_COUNT_CAP = 2**40
_HEADER_BYTES = 16
# Coordinates of directions that are expanded at a time.
_AT_ONCE = 1 << 20


class LdpSgdAggregator(LawAggregator[LdpSgdLaw]):
    """For every step the number of reports, and the sum of their directions, each with its sign.

    Args:
        law: the constants of the job.
        parameters: of the job: the test set is among them.
    """

    def __init__(self, law: LdpSgdLaw, parameters: LdpSgdParameters) -> None:
        super().__init__(law)
        self._test_set = (
            None
            if parameters.test_set is None
            else unpacked_examples(parameters.test_set, law.features, law.classes)
        )
        self._reports: dict[int, int] = {}
        self._sums: dict[int, NDArray[np.int64]] = {}
        self._start_over()

    def _start_over(self) -> None:
        self._learned, self._model = 0, np.zeros(self.law.dimensions)

    def check_words(self, epoch: int, words: NDArray[np.unsignedinteger]) -> None:
        """See that words can be reports of an epoch.

        Raises:
            ValueError: the epoch lies outside the horizon, the array has another dtype or shape
                than (reports, bytes), or a seed or sign is none.
        """
        law = self.law
        check_form(epoch, law.last_epoch, words, law.word_form.dtype, law.word_form.width)
        if not len(words):
            return
        largest = (1 << (law.seed_bits - 8 * (law.seed_bytes - 1))) - 1
        if int(words[:, -2].max()) > largest or int(words[:, -1].max()) > 1:
            raise ValueError(
                f"a report of epoch {epoch} has a seed of more than {law.seed_bits} bits, or a "
                "sign that is neither 0 nor 1"
            )

    def _count(
        self,
        epoch: int,
        words: NDArray[np.unsignedinteger],
        counts: NDArray[np.unsignedinteger] | None,
    ) -> None:
        law = self.law
        times = np.ones(len(words), np.int64) if counts is None else counts.astype(np.int64)
        signs = (2 * words[:, -1].astype(np.int64) - 1) * times
        total = np.zeros(law.dimensions, np.int64)
        rows = max(1, _AT_ONCE // law.dimensions)
        for start in range(0, len(words), rows):
            part = slice(start, start + rows)
            vectors = directions(words[part, :-1].astype(np.uint8), law.dimensions)
            total += signs[part] @ vectors.astype(np.int64)
        self._add(epoch, int(times.sum()), total)

    def _merge(self, other: Self) -> None:
        for epoch, total in other._sums.items():
            self._add(epoch, other._reports[epoch], total)

    def _add(self, epoch: int, reports: int, total: NDArray[np.int64]) -> None:
        self._reports[epoch] = self._reports.get(epoch, 0) + reports
        self._sums[epoch] = self._sums.get(epoch, 0) + total
        if epoch <= self._learned:
            self._start_over()

    def to_bytes(self) -> bytes:
        """Of every step with reports: epoch (u8), reports (u8) and the sums (i8); ascending."""
        return b"".join(
            epoch.to_bytes(8, "little")
            + self._reports[epoch].to_bytes(8, "little")
            + self._sums[epoch].astype("<i8").tobytes()
            for epoch in sorted(self._sums)
        )

    @classmethod
    def from_bytes(cls, law: LdpSgdLaw, parameters: LdpSgdParameters, data: bytes) -> Self:
        """Read `to_bytes`.

        Raises:
            ValueError: the bytes are no sums of this law.
        """
        aggregator = cls(law, parameters)
        size = _HEADER_BYTES + 8 * law.dimensions
        if len(data) % size:
            raise ValueError(f"sums of {len(data)} bytes, must be {size} for each step")
        before = 0
        for start in range(0, len(data), size):
            epoch, reports = (
                int.from_bytes(data[at : at + 8], "little") for at in (start, start + 8)
            )
            total = np.frombuffer(data, "<i8", law.dimensions, start + _HEADER_BYTES)
            if not before < epoch <= law.last_epoch:
                raise ValueError(f"sums of epoch {epoch} after those of epoch {before}")
            # No coordinate of a direction exceeds 2^15.
            if not 1 <= reports <= _COUNT_CAP or np.abs(total).max() > reports << 15:
                raise ValueError(f"sums of epoch {epoch} that {reports} reports do not make")
            aggregator._add(epoch, reports, total.astype(np.int64))
            before = epoch
        return aggregator

    def gradient(self, epoch: int) -> NDArray[np.float64] | None:
        """The estimate of the mean clipped gradient of a step, shape (dimensions,).

        None without reports.
        """
        if epoch not in self._sums:
            return None
        sums = self._sums[epoch].astype(np.float64)
        return gradient_scale(self.law) / self._reports[epoch] * sums

    def model(self, epoch: int) -> NDArray[np.float64]:
        """The model after the step of an epoch, shape (dimensions,); at 0, that to begin with.

        In IEEE 754's basic operations, in a fixed order: the same bits from the same reports.
        """
        if epoch < self._learned:
            self._start_over()
        for step in range(self._learned + 1, epoch + 1):
            found = self.gradient(step)
            if found is not None:
                self._model = projected(self._model - self.law.rate * found, self.law.radius)
        self._learned = epoch
        return self._model.copy()

    def estimate(self, epoch: int, attendance: Attendance) -> Estimate | None:
        """The share of the test set that the model after a step classifies rightly, in percent.

        Its standard deviation is that of a share of so many examples drawn at random. Without a
        test set: the length of the mean clipped gradient, less what noise adds on average, in
        percent of clip.
        """
        reports, population = self._reports.get(epoch, 0), int(attendance.population[epoch])
        if self._test_set is None:
            return self._length(epoch, reports, population)
        right = accuracy(self.model(epoch), self._test_set, self.law.classes)
        deviation = math.sqrt(right * (1 - right) / len(self._test_set))
        return Estimate.around(
            100 * right, 100 * deviation, 100 * NORMAL_95 * deviation, reports, population
        )

    def _length(self, epoch: int, reports: int, population: int) -> Estimate | None:
        found = self.gradient(epoch)
        if found is None:
            return None
        noise = gradient_deviation(self.law, reports) ** 2
        square = math.fsum(np.square(found)) - self.law.dimensions * noise
        # Of the square: a chi-square law of `dimensions` degrees, and a product with the noise.
        spread = math.sqrt(2 * self.law.dimensions * noise**2 + 4 * noise * max(square, 0.0))
        low, value, high = (
            100 / self.law.clip * math.sqrt(max(square + times * NORMAL_95 * spread, 0.0))
            for times in (-1, 0, 1)
        )
        return Estimate(value, (high - low) / 2 / NORMAL_95, low, high, reports, population)


def gradient_scale(law: LdpSgdLaw) -> float:
    """What the mean of signed directions is multiplied by."""
    kept, reversed_ = law.odds.weights
    advantage = (kept - reversed_) / (kept + reversed_)
    return law.clip * math.sqrt(math.pi / 2) / advantage / UNIT


def gradient_deviation(law: LdpSgdLaw, reports: float) -> float:
    """The standard deviation of a coordinate of a gradient from so many reports."""
    return gradient_scale(law) * UNIT / math.sqrt(reports)


def length_deviation(law: LdpSgdLaw, reports: float) -> float:
    """The root mean square of the length of a gradient's noise, as a share of clip."""
    return gradient_deviation(law, reports) * math.sqrt(law.dimensions) / law.clip


def projected(model: NDArray[np.float64], radius: float | None) -> NDArray[np.float64]:
    """The nearest model in the ball of a radius around 0."""
    if radius is None:
        return model
    length = math.sqrt(math.fsum(np.square(model)))
    return model if length <= radius else model * (radius / length)
