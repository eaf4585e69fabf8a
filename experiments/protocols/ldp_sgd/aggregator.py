"""Learn a linear model from one bit per report.

A report consists of a direction v and a sign b. The estimate g of the mean gradient, clipped to
length L, is the mean of b v over the reports of a step, multiplied by

    L sqrt(pi / 2) (e^epsilon + 1) / (e^epsilon - 1) / UNIT.

The state is the integer sum of b v for every step. Models are a pure function of these sums. The
initial model is 0. A step replaces a model theta with the projection of theta - eta g.
"""

from __future__ import annotations

import math
from typing import Self

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.estimate import NORMAL_95, Estimate, Participation
from dpstream.aggregators.law_aggregator import LawAggregator, check_format
from experiments.protocols.ldp_sgd import LdpSgdLaw
from experiments.protocols.ldp_sgd.gradient_directions import UNIT, directions
from experiments.protocols.ldp_sgd.labeled_examples import FEATURE_UNIT


def scores(
    model: NDArray[np.float64], examples: NDArray[np.integer], classes: int
) -> NDArray[np.float64]:
    """Return the score of every class, shape (n, classes).

    `model` concatenates one row of features per class, float64, shape (classes * features,).
    `examples` have shape (n, 1 + features), as in `experiments.protocols.ldp_sgd.labeled_examples`.
    """
    found: NDArray[np.float64] = examples[:, 1:] / FEATURE_UNIT @ model.reshape(classes, -1).T
    return found


def accuracy(model: NDArray[np.float64], examples: NDArray[np.integer], classes: int) -> float:
    """Return the fraction of examples whose class has the largest score; see `scores`."""
    decided = scores(model, examples, classes).argmax(axis=1)
    return float(np.mean(decided == examples[:, 0] - 1))


def losses(
    model: NDArray[np.float64], examples: NDArray[np.integer], classes: int
) -> NDArray[np.float64]:
    """Return the loss of each example, -ln softmax(scores) at its class, shape (n,)."""
    found = scores(model, examples, classes)
    largest = found.max(axis=1)
    total = np.log(np.exp(found - largest[:, None]).sum(axis=1)) + largest
    lost: NDArray[np.float64] = total - found[np.arange(len(examples)), examples[:, 0] - 1]
    return lost


_COUNT_CAP = 2**40
_HEADER_BYTES = 16
# Number of coordinates of directions that are expanded in one batch.
_AT_ONCE = 1 << 20


class LdpSgdAggregator(LawAggregator[LdpSgdLaw]):
    """Count the reports of every step and sum their signed directions."""

    def __init__(self, law: LdpSgdLaw) -> None:
        super().__init__(law)
        self._reports: dict[int, int] = {}
        self._sums: dict[int, NDArray[np.int64]] = {}
        self._start_over()

    def _start_over(self) -> None:
        self._learned, self._model = 0, np.zeros(self.law.dimensions)

    def check_messages(self, epoch: int, words: NDArray[np.unsignedinteger]) -> None:
        law = self.law
        check_format(
            epoch, law.last_epoch, words, law.message_format.dtype, law.message_format.width
        )
        if not len(words):
            return
        largest = (1 << (law.seed_bits - 8 * (law.seed_bytes - 1))) - 1
        if int(words[:, -2].max()) > largest or int(words[:, -1].max()) > 1:
            raise ValueError(
                f"invalid report at epoch {epoch}; expected a seed of at most {law.seed_bits} bits "
                "and a sign of 0 or 1"
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
        """Serialize epoch and reports (uint64) and sums (int64) of every step with reports."""
        return b"".join(
            epoch.to_bytes(8, "little")
            + self._reports[epoch].to_bytes(8, "little")
            + self._sums[epoch].astype("<i8").tobytes()
            for epoch in sorted(self._sums)
        )

    @classmethod
    def from_bytes(cls, law: LdpSgdLaw, data: bytes) -> Self:
        aggregator = cls(law)
        size = _HEADER_BYTES + 8 * law.dimensions
        if len(data) % size:
            raise ValueError(f"sums are {len(data)} bytes long; expected a multiple of {size}")
        before = 0
        for start in range(0, len(data), size):
            epoch, reports = (
                int.from_bytes(data[at : at + 8], "little") for at in (start, start + 8)
            )
            total = np.frombuffer(data, "<i8", law.dimensions, start + _HEADER_BYTES)
            if not before < epoch <= law.last_epoch:
                raise ValueError(
                    f"epoch {epoch} follows epoch {before}; expected increasing epochs up to "
                    f"{law.last_epoch}"
                )
            # No coordinate of a direction exceeds 2^15.
            if not 1 <= reports <= _COUNT_CAP or np.abs(total).max() > reports << 15:
                raise ValueError(f"sums of epoch {epoch} are out of range for {reports} reports")
            aggregator._add(epoch, reports, total.astype(np.int64))
            before = epoch
        return aggregator

    def gradient(self, epoch: int) -> NDArray[np.float64] | None:
        """Estimate the mean clipped gradient of a step, shape (dimensions,); None if unknown."""
        if epoch not in self._sums:
            return None
        sums = self._sums[epoch].astype(np.float64)
        return gradient_scale(self.law) / self._reports[epoch] * sums

    def model(self, epoch: int) -> NDArray[np.float64]:
        """Return the model after an epoch's step, shape (dimensions,); the initial one for 0.

        Steps use IEEE 754 basic operations in a fixed order, so equal reports give identical bits.
        """
        if epoch < self._learned:
            self._start_over()
        for step in range(self._learned + 1, epoch + 1):
            found = self.gradient(step)
            if found is not None:
                self._model = projected(self._model - self.law.rate * found, self.law.radius)
        self._learned = epoch
        return self._model.copy()

    def estimate(self, epoch: int, participation: Participation) -> Estimate | None:
        """Estimate the length of the mean clipped gradient of a step, in percent of `clip`."""
        reports, population = self._reports.get(epoch, 0), int(participation.population[epoch])
        found = self.gradient(epoch)
        if found is None:
            return None
        noise = gradient_deviation(self.law, reports) ** 2
        square = math.fsum(np.square(found)) - self.law.dimensions * noise
        # Deviation of the square: chi-square noise, and the product of gradient and noise.
        spread = math.sqrt(2 * self.law.dimensions * noise**2 + 4 * noise * max(square, 0.0))
        low, value, high = (
            100 / self.law.clip * math.sqrt(max(square + times * NORMAL_95 * spread, 0.0))
            for times in (-1, 0, 1)
        )
        return Estimate(value, (high - low) / 2 / NORMAL_95, low, high, reports, population)


def gradient_scale(law: LdpSgdLaw) -> float:
    """Return the factor that scales the mean of signed directions to a gradient."""
    kept, reversed_ = law.odds.weights
    advantage = (kept - reversed_) / (kept + reversed_)
    return law.clip * math.sqrt(math.pi / 2) / advantage / UNIT


def gradient_deviation(law: LdpSgdLaw, reports: float) -> float:
    """Return the standard deviation of the noise in a gradient coordinate."""
    return gradient_scale(law) * UNIT / math.sqrt(reports)


def projected(model: NDArray[np.float64], radius: float | None) -> NDArray[np.float64]:
    """Project a model onto the ball of `radius` around 0; None means no limit."""
    if radius is None:
        return model
    length = math.sqrt(math.fsum(np.square(model)))
    return model if length <= radius else model * (radius / length)
