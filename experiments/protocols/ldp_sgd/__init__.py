"""LDP-SGD: learn a linear model from one bit per step.

An epoch is a step of gradient descent. A device whose turn it is computes the gradient x of its
example's loss at the public model of the epoch, and clips it to norm L. With probability 1/2 + |x|
/ 2 L, the direction z is x / |x|; otherwise it is -x / |x|. The device draws a random direction v.
It reports v and the sign of <z, v>, reversed with odds e^-epsilon.

Privacy relies only on that last reversal, since v is drawn independently of everything else. For
any example, the odds of the two possible reported bits are at most e^epsilon. So the gradient may
be computed in floating point. Everything after it is computed in reproducible integers.

Here v is 4096 times a Gaussian vector, rounded, and sent as a seed of 128 bits
(`gradient_directions`). The mean of sgn<z, v> v is sqrt(2 / pi) z, for a unit vector z in any
dimension. (Algorithm 5 uses unit vectors. Its constant lacks the dimension, and its steps lack 1 /
sqrt(t).)

Reference: Erlingsson et al., *Encode, Shuffle, Analyze Privacy Revisited*, 2020, Alg. 4 and 5.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dpstream.randomizers.composed import ComposedLaw, log_rounded_up
from dpstream.randomizers.devices import Devices
from dpstream.randomizers.draws import draw_categories
from dpstream.randomizers.given_values import check_epoch
from dpstream.randomizers.guarantee import (
    Guarantee,
    of_messages_apart,
    rounded_up,
    shuffle_and_others,
)
from dpstream.randomizers.laws import Constants
from dpstream.randomizers.parameter_checks import check_approximate
from dpstream.topics.message_formats import MessageFormat
from experiments.protocols.ldp_sgd.gradient_directions import MAX_SEED_BITS, directions, draw_seeds
from experiments.protocols.ldp_sgd.labeled_examples import FEATURE_UNIT, check_examples

MAX_DIMENSIONS: Final = 1 << 16
"""Maximum number of dimensions of a model: its record then has at most 512 KiB, and Kafka accepts
records of at most 1 MB."""

MAX_SUMS: Final = 1 << 26
"""Maximum number of dimensions times steps: a publisher stores an 8-byte sum for each."""

MAX_REPORTS: Final = 1 << 10

ERROR_UNIT: Final = 1 << 12
"""Derivatives of the loss with respect to class scores are multiples of 1 / `ERROR_UNIT`."""

_HALF: Final = 1 << 31
_AT_ONCE: Final = 1 << 18  # coordinates


@dataclass(frozen=True, slots=True)
class LdpSgdParameters:
    """Parameters of LDP-SGD.

    Attributes:
        epsilon: Privacy loss of a single report, without shuffling.
        delta: Delta of the shuffled reports of all steps together.
        features: Number of features of an example; one can be a constant 1, for an intercept.
        classes: Number of classes, numbered from 0.
        clip: L, the maximum norm of a gradient; longer ones are clipped to it.
        rate: eta, the length of a step for a gradient of length 1.
        radius: Radius of the ball around 0 that contains the models; None if it is unbounded.
        groups: G; a device participates in every G-th step.
        reports: tau, the number of bits a device reports in a step, each with its own direction.
        seed_bits: Number of bits of a seed; fewer than 128 are for tests.
    """

    epsilon: float
    delta: float
    features: int
    classes: int
    clip: float = 1.0
    rate: float = 1.0
    radius: float | None = None
    groups: int = 1
    reports: int = 1
    seed_bits: int = MAX_SEED_BITS

    def __post_init__(self) -> None:
        check_approximate(self.epsilon, self.delta)
        _check_shape(self.features, self.classes)
        _check_step(self.clip, self.rate, self.radius)
        _check_whole("groups", self.groups, 1, 1 << 20)
        _check_whole("reports", self.reports, 1, MAX_REPORTS)
        _check_whole("seed_bits", self.seed_bits, 1, MAX_SEED_BITS)
        object.__setattr__(self, "epsilon", float(self.epsilon))


def _check_whole(name: str, value: int, least: int, most: int) -> None:
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"'{name}' is {value!r}; expected an integer from {least} to {most:,}")


def _check_shape(features: int, classes: int) -> None:
    _check_whole("features", features, 1, MAX_DIMENSIONS)
    _check_whole("classes", classes, 2, MAX_DIMENSIONS)
    if features * classes > MAX_DIMENSIONS:
        raise ValueError(
            f"a model of {features:,} features times {classes:,} classes has "
            f"{features * classes:,} numbers; expected at most {MAX_DIMENSIONS:,}, the capacity "
            "of a record. Use fewer features"
        )


def _check_step(clip: float, rate: float, radius: float | None) -> None:
    for name, value in (("clip", clip), ("rate", rate), ("radius", radius)):
        if value is not None and not 0 < value < math.inf:
            raise ValueError(f"'{name}' is {value!r}; expected a positive finite number")


@dataclass(frozen=True, slots=True)
class LdpSgdLaw(Constants):
    """All constants of an ldp_sgd job; see `LdpSgdParameters`.

    Attributes:
        minimum: Minimum number of contributors among whom a report is hidden.
        odds: Weights of keeping and of reversing a bit.
        epsilon: Privacy loss of a step after shuffling, with `delta`.
        stream_epsilon: Privacy loss of all steps of a device after shuffling, with `delta`.
    """

    last_epoch: int
    features: int
    classes: int
    groups: int
    reports: int
    clip: float
    rate: float
    radius: float | None
    seed_bits: int
    minimum: int
    odds: ComposedLaw
    epsilon: float
    delta: float
    stream_epsilon: float

    def __post_init__(self) -> None:
        _check_shape(self.features, self.classes)
        _check_step(self.clip, self.rate, self.radius)
        _check_whole("groups", self.groups, 1, 1 << 20)
        _check_whole("reports", self.reports, 1, MAX_REPORTS)
        _check_whole("seed_bits", self.seed_bits, 1, MAX_SEED_BITS)
        if self.odds.k != 1 or self.odds.weights[0] <= self.odds.weights[1]:
            raise ValueError(
                f"odds are {self.odds.weights}; expected two weights, the larger first"
            )
        if self.minimum < 1 or self.last_epoch < 1:
            raise ValueError(
                f"got {self.minimum} contributors and {self.last_epoch} epochs; expected at least "
                "1 of each"
            )
        if self.dimensions * self.last_epoch > MAX_SUMS:
            raise ValueError(
                f"got {self.last_epoch:,} epochs with a model of {self.dimensions:,} numbers; "
                f"expected at most {MAX_SUMS // self.dimensions:,}. Use fewer epochs or features"
            )

    @property
    def dimensions(self) -> int:
        """d, the number of weights of a model: one for each feature and class, class 0 first."""
        return self.features * self.classes

    @property
    def participations(self) -> int:
        return -(-self.last_epoch // self.groups)

    @property
    def report_epsilon(self) -> float:
        return self.local_epsilon(1)

    def local_epsilon(self, reports: int) -> float:
        """Return the loss from `reports` reports to a party that sees all of them, rounded up."""
        return log_rounded_up(Fraction(*self.odds.weights), reports)

    @property
    def seed_bytes(self) -> int:
        """Number of bytes of a seed in a report; the next byte is the reported bit."""
        return -(-self.seed_bits // 8)

    @property
    def message_format(self) -> MessageFormat:
        """Format of a message: the little-endian seed, then a byte that is 1 for + and 0 for -."""
        return MessageFormat(np.dtype("u1"), self.seed_bytes + 1)

    def capacity(self, epoch: int, contributors: int) -> int:
        return contributors * self.reports


class LdpSgd(Devices[LdpSgdLaw]):
    """Devices of an ldp_sgd job for one horizon. They count the steps in which they participate.

    A value is a row of 1 + features integers: the class plus 1, and the features in units of 1 /
    `FEATURE_UNIT`. A row of zeros means no example, and has gradient 0.

    >>> from dpstream.randomizers.randomness import seeded_generator
    >>> law = LdpSgdLaw(1, 1, 2, 1, 1, 1.0, 1.0, None, 3, 1, ComposedLaw((10**6, 1)), 9.0, 0.1, 9.0)
    >>> devices, rng = LdpSgd(law), seeded_generator(1)
    >>> devices.enroll(1, rng)
    >>> devices.report(1, np.array([[1, 4 * FEATURE_UNIT]]), None, rng).shape
    (1, 2)
    """

    def __init__(self, law: LdpSgdLaw) -> None:
        super().__init__(law)
        self._steps = self._declare("steps", np.uint32, allowed=range(law.participations + 1))
        self._model = np.zeros((law.classes, law.features))

    @property
    def guarantee(self) -> Guarantee:
        law = self.law
        losses = (law.local_epsilon(law.reports * steps) for steps in (1, law.participations))
        step, whole = map(rounded_up, losses)
        steps = "step" if law.participations == 1 else "steps"
        return Guarantee(
            epsilon=law.epsilon,
            delta=law.delta,
            unit="epoch",
            neighbors="any two examples of a user, or one and no example; who is present is public",
            trust=shuffle_and_others(
                law.minimum,
                f"{step} at every step that a user participates in, {whole} for all "
                f"{law.participations:,} {steps}, with delta 0",
            ),
            basis="bound",
            stream_epsilon=law.stream_epsilon,
        )

    @property
    def without_shuffling(self) -> Guarantee:
        step = self.law.local_epsilon(self.law.reports)
        return of_messages_apart(self.guarantee, step, self.law.participations)

    def take_model(self, model: NDArray[np.float64]) -> None:
        """Set the model at which gradients are computed: float64, (dimensions,); initially 0."""
        self._model = model.reshape(self._model.shape).astype(np.float64)

    def report(
        self,
        epoch: int,
        values: NDArray[np.integer],
        present: NDArray[np.bool_] | None,
        rng: np.random.Generator,
    ) -> NDArray[np.unsignedinteger]:
        """Return `LdpSgdLaw.reports` reports of each present device, uint8, shape (reports, bytes).

        Raises `ValueError` if a device has participated in all steps that the guarantee covers.
        """
        law = self.law
        check_epoch(epoch, after=self.epoch, last_epoch=law.last_epoch)
        examples = self._checked(epoch, values, present)
        taking = np.ones(self.population, np.bool_) if present is None else present
        if (self._steps[taking] >= law.participations).any():
            raise ValueError(
                f"a device has participated in {law.participations:,} steps before epoch {epoch}; "
                f"expected participation only in one of every {law.groups:,} steps"
            )
        seeds = draw_seeds(len(examples) * law.reports, law.seed_bits, rng)
        drawn = rng.integers(0, 2 * _HALF, len(seeds))
        reversed_ = draw_categories(law.odds.weights, len(seeds), rng).astype(np.bool_)
        signs = np.empty(len(seeds), np.bool_)
        rows = max(1, _AT_ONCE // law.dimensions)
        for start in range(0, len(seeds), rows):
            part = slice(start, start + rows)
            owners = np.arange(start, min(start + rows, len(seeds))) // law.reports
            signs[part] = self._signs(examples[owners], seeds[part], drawn[part])
        self._steps = self._steps + taking
        self.epoch = epoch
        return np.column_stack([seeds, signs ^ reversed_]).astype(np.uint8, copy=False)

    def _checked(
        self, epoch: int, values: NDArray[np.integer], present: NDArray[np.bool_] | None
    ) -> NDArray[np.int64]:
        law = self.law
        shape = (self.population, 1 + law.features)
        if values.shape != shape or values.dtype.kind not in "iu":
            raise ValueError(
                f"'values' is {values.dtype} of shape {values.shape}; expected integers of shape "
                f"{shape}: a class and its features for each device"
            )
        if present is not None and (present.shape != shape[:1] or present.dtype != np.bool_):
            raise ValueError(
                f"'present' is {present.dtype} of shape {present.shape}; expected bool of shape "
                f"{shape[:1]}"
            )
        examples = (values if present is None else values[present]).astype(np.int64)
        check_examples(examples, law.classes, f"at epoch {epoch}")
        return examples

    def _signs(
        self, examples: NDArray[np.int64], seeds: NDArray[np.uint8], drawn: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        """Return whether <z, v> is positive, for each seed: bool, shape (n,)."""
        law = self.law
        errors, lengths = self.gradients(examples)
        # Only basic operations of IEEE 754, whose results are the same on every machine.
        along = drawn < np.floor(_HALF * (1 + np.minimum(lengths / law.clip, 1.0)))
        vectors = directions(seeds, law.dimensions).reshape(-1, law.classes, law.features)
        features = examples[:, 1:, None].astype(np.float64)
        # Integers below 2^53: their sums are exact, in any order.
        scores = np.matmul(vectors.astype(np.float64), features)[..., 0].astype(np.int64)
        products = (errors * scores).sum(axis=1)
        signs: NDArray[np.bool_] = (products >= 0) == along
        return signs

    def gradients(
        self, examples: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Compute unclipped gradients of the loss, -ln softmax(model x) at the class.

        Returns the derivatives with respect to class scores, in units of 1 / `ERROR_UNIT`: int64,
        shape (n, classes). Their outer product with the features is the gradient. Also returns the
        lengths of the gradients: float64, shape (n,).
        """
        scores = examples[:, 1:] / FEATURE_UNIT @ self._model.T
        raised = np.exp(scores - scores.max(axis=1, keepdims=True))
        errors = raised / raised.sum(axis=1, keepdims=True)
        has_example = examples[:, 0] > 0
        errors[has_example, examples[has_example, 0] - 1] -= 1
        whole = np.rint(ERROR_UNIT * errors).astype(np.int64)
        whole[~has_example] = 0
        lengths = np.ones(len(examples))
        for numbers, unit in ((whole, ERROR_UNIT), (examples[:, 1:], FEATURE_UNIT)):
            lengths *= np.sqrt(np.square(numbers).sum(axis=1).astype(np.float64)) / unit
        return whole, lengths
