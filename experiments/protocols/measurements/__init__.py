"""Noisy measurements: a device sends its item's column of a public matrix, with noise.

The four mechanisms are for comparison. They differ in the matrix, which is part of their constants,
in the choice of its size and noise (`calibration`), and in the aggregator's use of the sums:

- jl_hh (Algorithm 1) is a random projection: the count of item p is the product of column p of the
  matrix A and the sum of all reports. The paper's entries are +-1/sqrt(m); here they are +-1, with
  noise sqrt(m) times as large. A consists of m different rows of a Hadamard matrix, so one fast
  transform gives all counts. Any two columns are at least as close to orthogonal as columns of
  independent signs. The paper's number of rows, ln(N + 1) ln(2 / beta) n^4, is too large to send;
  here it is a parameter. The paper's noise is for removal: replacing an item moves a measurement by
  2/sqrt(m), not 1/sqrt(m). If rows are sampled, a device reports its entry in a single row.
  hadamard_values has the same rows, but tracks whether the entry is +1. Its errors at one epoch are
  up to 1.3 times as large.
- bucket (Algorithm 3) finds the most frequent item, or none. In each of several trials, items are
  hashed to two buckets by several hashes, h(x) = <r, x> over GF(2) with a bit string r. A device
  sends the bucket of its item under each hash, with noise. The larger buckets of a trial give
  linear equations for the most frequent item. Here a bucket is -1 or 1, so a user without an item
  is in neither. Items are numbered from 1, since item 0 would always be in bucket 0. The published
  noise is sufficient for users who replace their item. An item is decoded correctly if the number
  of its users exceeds both twice the deviation of the other users from a half and twice the noise
  (Lemma 4.6 has the noise once). Theorem 4.8 then has 8 sqrt(3 c k_1), not 8 sqrt(2 c k_1), and the
  1.0004 of Lemma 4.5 holds only for k >= 4. An item is found if more than half of all trials yield
  it. (In the paper, more trials must yield it than any other item.) If hashes are sampled, a device
  reports its bucket under one public hash of all trials.
- sparse_recovery (Algorithm 2, GLPS-HH) adds noise to the matrix of Gilbert, Li, Porat and Strauss
  and uses their decoder. The paper describes neither and uses only their guarantees. So this is not
  GLPS, but the simplest matrix of -1, 0 and 1 with about as many rows that allows decoding without
  trying all items. Sparsity, number of rows and noise are those of the paper. The noise is for
  removal: an item that replaces another changes a measurement by up to 2.
- laplace_histogram is the "more naive approach" of section 3.1, with which the paper compares its
  first mechanism. Its noise of scale 1/epsilon is for removal: an item that replaces another
  changes two cells. The paper calls the accuracy of JL-HH similar; it is more than ten times worse.
  A report has one number per item, so domains are small.

The noise is that of `clamped_noise`. With sampled measurements, a device instead draws one of them
publicly and sends its sign by randomized response. A measurement of 0 is sent as a fair coin. Each
epoch is independent and charged.

Reference: Hsu, Khanna, Roth, *Distributed Private Heavy Hitters*, 2012.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import ClassVar, Final, Literal, Self, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from dpstream.randomizers.composed import ComposedLaw
from dpstream.randomizers.devices import Devices
from dpstream.randomizers.draws import draw_categories, random_bits
from dpstream.randomizers.given_sets import set_rows
from dpstream.randomizers.given_values import check_epoch
from dpstream.randomizers.guarantee import Guarantee, held_by_a_user, held_or_nothing
from dpstream.randomizers.item_domains import ItemDomain, domain_size
from dpstream.randomizers.laws import Constants
from dpstream.randomizers.parameter_checks import check_approximate, check_domain, check_items_held
from dpstream.topics.message_formats import MessageFormat, narrowest
from experiments.protocols.measurements.clamped_noise import ClampedNoise
from experiments.protocols.measurements.public_matrices import (
    OneHot,
    ParityRows,
    PublicMatrix,
    SignedBuckets,
    distinct_rows,
    nonzero_rows,
)

Calibration: TypeAlias = Literal["published", "replacement", "sampled"]
"""Noise of the paper ("published"), enough noise for users who replace their item with another
("replacement"), or one measurement per device, by randomized response ("sampled")."""

MOST_MEASUREMENTS: Final = 1 << 15
"""Maximum number of measurements in a report with noise, which must fit into a record."""

_AT_ONCE = 1 << 20

_NO_DELTA = 0.5
"""Valid delta, to check parameters without a delta."""


@dataclass(frozen=True, slots=True)
class MeasurementsParameters:
    """Shared parameters: an epoch's loss against all parties, and a domain of up to 2^20 items."""

    calibrations: ClassVar[tuple[str, ...]] = get_args(Calibration)
    whole_numbers: ClassVar[tuple[str, ...]] = ()

    epsilon: float
    domain: ItemDomain

    def __post_init__(self) -> None:
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        check_approximate(self.epsilon, given.get("delta", _NO_DELTA))
        check_items_held(1, self.domain)
        check_domain(domain_size(self.domain))
        if given["calibration"] not in self.calibrations:
            raise ValueError(
                f"calibration is {given['calibration']!r}; expected one of "
                f"{', '.join(self.calibrations)}"
            )
        if "beta" in given:
            _check_beta(given["beta"])
        for name in self.whole_numbers:
            _check_number(name, given[name])
        object.__setattr__(self, "epsilon", float(self.epsilon))


@dataclass(frozen=True, slots=True)
class JlHhParameters(MeasurementsParameters):
    """Parameters of `jl_hh`.

    Attributes:
        delta: Delta of an epoch; unused if rows are sampled.
        measurements: m, the number of rows; None for 256, or for all rows if they are sampled.
        calibration: "published", which is for removal, "replacement" or "sampled".
    """

    whole_numbers = ("measurements",)

    delta: float = 1e-6
    measurements: int | None = None
    calibration: Calibration = "replacement"


@dataclass(frozen=True, slots=True)
class BucketParameters(MeasurementsParameters):
    """Parameters of `bucket`.

    Attributes:
        delta: Delta of an epoch; unused if hashes are sampled.
        beta: Failure probability that determines the number of trials.
        hashes: k_1, the number of hashes of a trial; None for log2(12 N), rounded up.
        trials: k_2, the number of trials; None for 8 ln(1 / beta), rounded up.
        calibration: "published", which is sufficient for replacement, or "sampled".
    """

    whole_numbers = ("hashes", "trials")

    delta: float = 1e-6
    beta: float = 0.05
    hashes: int | None = None
    trials: int | None = None
    calibration: Calibration = "published"


@dataclass(frozen=True, slots=True)
class SparseRecoveryParameters(MeasurementsParameters):
    """Parameters of `sparse_recovery`.

    Attributes:
        delta: Delta of an epoch; unused if measurements are sampled.
        beta: Failure probability that determines the sparsity.
        sparsity: s, the number of items to recover; None for the paper's number.
        calibration: "published", which is for removal, "replacement" or "sampled".
    """

    whole_numbers = ("sparsity",)

    delta: float = 1e-6
    beta: float = 0.05
    sparsity: int | None = None
    calibration: Calibration = "replacement"


@dataclass(frozen=True, slots=True)
class LaplaceHistogramParameters(MeasurementsParameters):
    """Parameters of `laplace_histogram`: at most 2^15 items; "published" is for removal."""

    calibrations = ("published", "replacement")

    calibration: Literal["published", "replacement"] = "replacement"


def _check_beta(beta: float) -> None:
    if isinstance(beta, bool) or not isinstance(beta, int | float) or not 0 < beta < 1:
        raise ValueError(f"beta is {beta!r}; expected a number above 0 and below 1")


def _check_number(name: str, number: int | None) -> None:
    if number is not None and (type(number) is not int or not 1 <= number <= MOST_MEASUREMENTS):
        raise ValueError(f"'{name}' is {number!r}; expected 1 to {MOST_MEASUREMENTS:,}")


@dataclass(frozen=True, slots=True)
class MeasurementsLaw(Constants):
    """All constants of a job with measurements.

    Attributes:
        neighbors: Neighboring inputs: an item and no item ("removal"), or any two items.
        noise: Noise of each measurement; None if a device samples one measurement.
        odds: Weights of keeping and of reversing a sign; None if there is noise.
        epsilon: Privacy loss of an epoch, with `delta`.
        stream_epsilon: Privacy loss of all epochs together, with `delta`.
    """

    items: int
    last_epoch: int
    calibration: Calibration
    neighbors: Literal["removal", "replacement"]
    noise: ClampedNoise | None
    odds: ComposedLaw | None
    epsilon: float
    delta: float
    stream_epsilon: float

    def __post_init__(self) -> None:
        check_domain(self.items)
        if self.calibration not in get_args(Calibration):
            raise ValueError(
                f"calibration is {self.calibration!r}; expected one of {get_args(Calibration)}"
            )
        if self.neighbors not in ("removal", "replacement"):
            raise ValueError(f"'neighbors' is {self.neighbors!r}; expected removal or replacement")
        if (self.noise is None) == (self.odds is None):
            raise ValueError(
                "'noise' and 'odds' are both set or both missing; expected exactly one of them"
            )
        if self.last_epoch < 1:
            raise ValueError(f"last_epoch is {self.last_epoch}; expected at least 1")
        if self.noise is not None and self.matrix.measurements > MOST_MEASUREMENTS:
            raise ValueError(
                f"a report has {self.matrix.measurements:,} noisy measurements; expected at most "
                f"{MOST_MEASUREMENTS:,}. Use fewer measurements or items, or another protocol"
            )

    @property
    @abstractmethod
    def matrix(self) -> PublicMatrix: ...

    @property
    def exact(self) -> bool:
        """True if a pair of neighbors attains the stated loss: two items of a histogram do."""
        return isinstance(self.matrix, OneHot)

    @property
    def minimum(self) -> int:
        return 1

    def of_one_epoch(self) -> Self:
        return replace(self, last_epoch=1, stream_epsilon=self.epsilon)

    @property
    def message_format(self) -> MessageFormat:
        """Format of a message: measurements plus M; if sampled, 2 row + 1 for +1, 2 row for -1."""
        measurements = self.matrix.measurements
        if self.noise is not None:
            return MessageFormat(narrowest(2 * self.noise.most + 1), measurements)
        return MessageFormat(narrowest(2 * measurements), distinct=2 * measurements)


@dataclass(frozen=True, slots=True)
class JlHhLaw(MeasurementsLaw):
    """All constants of a `jl_hh` job; `measurements` is m."""

    measurements: int

    @property
    def matrix(self) -> ParityRows:
        return projection_rows(self.items, self.measurements)


@dataclass(frozen=True, slots=True)
class BucketLaw(MeasurementsLaw):
    """All constants of a `bucket` job; `hashes` is k_1 and `trials` is k_2."""

    hashes: int
    trials: int

    @property
    def matrix(self) -> ParityRows:
        """The hashes of all trials, one trial after the other."""
        return hash_rows(self.items, self.hashes, self.trials)


@dataclass(frozen=True, slots=True)
class SparseRecoveryLaw(MeasurementsLaw):
    buckets: int

    @property
    def matrix(self) -> SignedBuckets:
        return tested_buckets(self.items, self.buckets)


@dataclass(frozen=True, slots=True)
class LaplaceHistogramLaw(MeasurementsLaw):
    @property
    def matrix(self) -> OneHot:
        return OneHot(self.items)


def projection_rows(items: int, measurements: int) -> ParityRows:
    """Return distinct, public random rows of a Hadamard matrix, for `jl_hh`."""
    return distinct_rows(f"jl_hh of {items} items", items, measurements)


def hash_rows(items: int, hashes: int, trials: int) -> ParityRows:
    """Return independent, public random bit strings other than zero, for `bucket`."""
    text = f"bucket of {items} items, {trials} trials of {hashes} hashes"
    return nonzero_rows(text, items, hashes * trials)


def tested_buckets(items: int, buckets: int) -> SignedBuckets:
    """Return the buckets of items with a test for every bit, for `sparse_recovery`."""
    return SignedBuckets(items, buckets, f"sparse_recovery of {items} items")


class Measurements(Devices[MeasurementsLaw]):
    """Devices of a job with measurements, for one horizon. They draw nothing in advance.

    >>> from experiments.protocols.measurements import LaplaceHistogramParameters, Measurements
    >>> from experiments.protocols.measurements.calibration import calibrate
    >>> from dpstream.randomizers.randomness import seeded_generator
    >>> requested = LaplaceHistogramParameters(32.0, ("a", "b"))
    >>> devices = Measurements(calibrate(requested, last_epoch=1, minimum=1))
    >>> devices.enroll(3, seeded_generator(1))
    >>> reports = devices.report(1, np.array([[0], [1], [2]]), None, seeded_generator(2))
    >>> (reports.astype(int) - devices.law.noise.most).tolist()
    [[0, 0], [1, 0], [0, 1]]
    """

    @cached_property
    def _matrix(self) -> PublicMatrix:
        return self.law.matrix

    @property
    def guarantee(self) -> Guarantee:
        law = self.law
        held = held_or_nothing if law.neighbors == "removal" else held_by_a_user
        return Guarantee(
            epsilon=law.epsilon,
            delta=law.delta,
            unit="epoch",
            neighbors=held(1),
            trust="none",
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
        form = self.law.message_format
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
        return (2 * rows + bits).astype(self.law.message_format.dtype)[:, None]
