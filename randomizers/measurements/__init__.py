"""Noisy measurements: a device adds noise to a public matrix's column of its item, for comparison.

"Distributed Private Heavy Hitters" (Hsu, Khanna, Roth 2012): all of its mechanisms are of this
kind, and so is the histogram it compares them with. They differ in the matrix, which their laws
state, and in what is made of the sums, which is a matter of aggregators.

The noise is that of `dpstream.randomizers.clamped_noise`. Where measurements are sampled instead, a
device draws one of them for everybody to see, and sends its sign by randomized response; a
measurement of 0 is a fair coin.

Each epoch stands alone, and is paid for.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, Literal, Self, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from dpstream.randomizers.clamped_noise import ClampedNoise
from dpstream.randomizers.composed import ComposedLaw
from dpstream.randomizers.devices import Devices, LawT
from dpstream.randomizers.draws import draw_categories, random_bits
from dpstream.randomizers.given_values import check_epoch
from dpstream.randomizers.guarantee import Guarantee, held_by_a_user, held_or_nothing
from dpstream.randomizers.hadamard import check_domain, narrowest
from dpstream.randomizers.item_domains import ItemDomain, domain_size
from dpstream.randomizers.laws import Constants
from dpstream.randomizers.public_matrices import PublicMatrix
from dpstream.randomizers.set_rows import set_rows
from dpstream.randomizers.shuffled_parameters import check_approximate, check_items_held
from dpstream.topics.word_forms import WordForm

Calibration: TypeAlias = Literal["published", "replacement", "sampled"]
"""The paper's noise; enough of it for users who replace their item by another; or one measurement
of each device, by randomized response."""

MOST_MEASUREMENTS: Final = 1 << 15
"""Of a report with noise: it has to fit a record."""

_AT_ONCE = 1 << 20


def check_measured(
    epsilon: float, delta: float, domain: ItemDomain, calibration: str, allowed: tuple[str, ...]
) -> None:
    """Raise `ValueError` unless these are parameters of measurements."""
    check_approximate(epsilon, delta)
    check_items_held(1, domain)
    check_domain(domain_size(domain))
    if calibration not in allowed:
        raise ValueError(f"calibration is {calibration!r}, must be one of {', '.join(allowed)}")


def check_beta(beta: float) -> None:
    """Raise `ValueError` unless it is a probability of failure."""
    if isinstance(beta, bool) or not isinstance(beta, int | float) or not 0 < beta < 1:
        raise ValueError(f"beta is {beta!r}, must be above 0 and below 1")


def check_number(name: str, number: int | None) -> None:
    """Raise `ValueError` unless a number of measurements, hashes or items is None or allowed."""
    if number is not None and (type(number) is not int or not 1 <= number <= MOST_MEASUREMENTS):
        raise ValueError(f"{name} is {number!r}, must be from 1 to {MOST_MEASUREMENTS:,}")


@dataclass(frozen=True, slots=True)
class MeasurementsLaw(Constants):
    """All constants of a job.

    Attributes:
        items: size of the domain.
        last_epoch: number of epochs.
        calibration: how noise was chosen.
        neighbours: what cannot be told apart: an item of a user and none, or any two.
        noise: of each measurement; None where one of them is sampled.
        odds: weights of a sign kept and of one reversed; None where there is noise.
        epsilon: of an epoch.
        delta: of an epoch, and of all of them.
        stream_epsilon: of all epochs together.

    Raises:
        ValueError: a field is out of range.
    """

    items: int
    last_epoch: int
    calibration: Calibration
    neighbours: Literal["removal", "replacement"]
    noise: ClampedNoise | None
    odds: ComposedLaw | None
    epsilon: float
    delta: float
    stream_epsilon: float

    def __post_init__(self) -> None:
        check_domain(self.items)
        if self.calibration not in get_args(Calibration):
            raise ValueError(f"calibration is {self.calibration!r}")
        if self.neighbours not in ("removal", "replacement"):
            raise ValueError(f"neighbours is {self.neighbours!r}")
        if (self.noise is None) == (self.odds is None) or self.last_epoch < 1:
            raise ValueError(f"noise {self.noise}, odds {self.odds}, {self.last_epoch} epochs")
        if self.noise is not None and self.matrix.measurements > MOST_MEASUREMENTS:
            raise ValueError(
                f"{self.matrix.measurements:,} measurements with noise in a report, must be at "
                f"most {MOST_MEASUREMENTS:,}: take fewer, a smaller domain, or another protocol"
            )

    @property
    @abstractmethod
    def matrix(self) -> PublicMatrix:
        """What is measured."""

    @property
    def exact(self) -> bool:
        """Whether some neighbours attain the loss that is stated."""
        return False

    @property
    def minimum(self) -> int:
        """The fewest contributors that an estimate is made from."""
        return 1

    def of_one_epoch(self) -> Self:
        """The same with a single epoch: equal for laws whose epochs are drawn alike."""
        return replace(self, last_epoch=1, stream_epsilon=self.epsilon)

    @property
    def word_form(self) -> WordForm:
        """Every measurement plus M; of a sampled one twice its number, and 1 more for +1."""
        measurements = self.matrix.measurements
        if self.noise is not None:
            return WordForm(narrowest(2 * self.noise.most + 1), measurements)
        return WordForm(narrowest(2 * measurements), distinct=2 * measurements)


class Measurements(Devices[LawT]):
    """The devices of one horizon. They draw nothing in advance.

    Args:
        law: the constants of the job.
    """

    law: MeasurementsLaw  # type: ignore[assignment]

    @cached_property
    def _matrix(self) -> PublicMatrix:
        return self.law.matrix

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee of a user's item of one epoch, and of all of them together."""
        law = self.law
        held = held_or_nothing if law.neighbours == "removal" else held_by_a_user
        return Guarantee(
            epsilon=law.epsilon,
            delta=law.delta,
            unit="epoch",
            neighbours=held(1),
            trust="nobody",
            basis="exact" if law.exact else "bound",
            stream_epsilon=law.stream_epsilon,
        )

    def report(
        self,
        epoch: int,
        values: NDArray[np.integer],
        present: NDArray[np.bool_] | None,
        rng: np.random.Generator,
    ) -> NDArray[np.unsignedinteger]:
        """The measurements of everybody present, of the law's `word_form`."""
        law = self.law
        check_epoch(epoch, after=self.epoch, last_epoch=law.last_epoch)
        items = set_rows(epoch, values, present, self.population, 1, law.items)[:, 0]
        if law.odds is None:
            assert law.noise is not None
            words = self._with_noise(law.noise, items, rng)
        else:
            words = self._sampled(law.odds, items, rng)
        self.epoch = epoch
        return words

    def _with_noise(
        self, noise: ClampedNoise, items: NDArray[np.int64], rng: np.random.Generator
    ) -> NDArray[np.unsignedinteger]:
        form = self.law.word_form
        words = np.empty((len(items), form.width), form.dtype)
        devices = max(1, _AT_ONCE // form.width)
        for start in range(0, len(items), devices):
            part = slice(start, start + devices)
            words[part] = noise.reports(self._matrix.entries(items[part]), rng)
        return words

    def _sampled(
        self, odds: ComposedLaw, items: NDArray[np.int64], rng: np.random.Generator
    ) -> NDArray[np.unsignedinteger]:
        rows = rng.integers(0, self._matrix.measurements, len(items))
        reversed_ = draw_categories(odds.weights, len(items), rng) == 1
        coins = random_bits(rng, len(items))
        entries = self._matrix.entries_at(rows, items)
        bits = np.where(entries == 0, coins, (entries > 0) ^ reversed_)
        return (2 * rows + bits).astype(self.law.word_form.dtype)[:, None]
