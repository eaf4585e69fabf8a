"""Shuffled counts by a hash drawn for every message: balls into bins.

For each item of its set a device draws one of D public hashes and sends (hash, bucket of the item).
Dummies are uniform over all such words. A message is in the bucket of its item, and in that of any
other one with the probability q, about one in s (`randomizers.affine_hashes`); so the number of
messages in an item's bucket, less dummies and collisions, estimates its count. With as many buckets
as there are items there is one hash, without collisions: a plain histogram.

This is the balls-into-bins filter with a hash in GF(s)^m. A hash kept by a device would link its
epochs, and clusters of dummies in one word would show which hashes are dummies': so every message
draws its own, and dummies are Poisson.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from randomizers.affine_hashes import MOST_BUCKETS, AffineHashes, is_prime
from randomizers.cell_noise_law import CellNoiseLaw
from randomizers.count_min import trusted
from randomizers.counted_words import CountedWords
from randomizers.devices import Devices
from randomizers.dummies import PoissonDummies
from randomizers.given_sets import checked_sets
from randomizers.given_values import check_epoch
from randomizers.guarantee import Guarantee, held_by_a_user
from randomizers.item_domains import ItemDomain, domain_size
from randomizers.laws import Constants
from randomizers.shuffled_parameters import check_approximate, check_items_held, check_messages
from topics.word_forms import WordForm

MESSAGES_PER_USER: Final = 10.0
"""Of an epoch, where the number of buckets is chosen and nothing else is asked for."""

MOST_ITEMS: Final = 1 << 24
"""Of a domain."""

MOST_TABULAR: Final = 1 << 20
"""Up to so many words are counted in tables."""

# Words made at once: what is needed for them stays in the caches.
_CHUNK = 1 << 15


@dataclass(frozen=True, slots=True)
class BallsIntoBinsParameters:
    """What a job says about counts by balls into bins.

    Attributes:
        epsilon: the privacy loss of a user's set of one epoch.
        delta: the same.
        domain: the items.
        items: k, the most that a user holds at an epoch.
        buckets: s, a prime; None for the most accurate number within `messages_per_user`.
        dummies: Poisson many of every contributor, or "shuffle", of the shuffle stage.
        messages_per_user: messages of a user in an epoch, at most, on average; None: 10 where the
            number of buckets is chosen, and any number where it is given.

    Raises:
        ValueError: a value is not allowed; the message says what is.
    """

    epsilon: float
    delta: float
    domain: ItemDomain
    items: int = 1
    buckets: int | None = None
    dummies: Literal["poisson", "shuffle"] = "poisson"
    messages_per_user: float | None = None

    def __post_init__(self) -> None:
        check_approximate(self.epsilon, self.delta)
        if self.dummies not in ("poisson", "shuffle"):
            raise ValueError(
                f"dummies is {self.dummies!r}, must be 'poisson' or 'shuffle': every message draws "
                "a hash of its own, and clusters of dummies with the same one would show as such"
            )
        check_items_held(self.items, self.domain)
        if self.size > MOST_ITEMS:
            raise ValueError(
                f"domain has {self.size:,} items, all of which are counted at every epoch: at most "
                f"{MOST_ITEMS:,}, or take count_min"
            )
        check_messages(self.messages_per_user)
        if self.buckets is not None and not (
            is_prime(self.buckets) and self.buckets <= MOST_BUCKETS
        ):
            raise ValueError(f"buckets is {self.buckets!r}, must be a prime number up to 2^29")
        object.__setattr__(self, "epsilon", float(self.epsilon))
        object.__setattr__(self, "delta", float(self.delta))

    @property
    def size(self) -> int:
        """How many items there are."""
        return domain_size(self.domain)


@dataclass(frozen=True, slots=True)
class BallsIntoBinsLaw(Constants):
    """All constants of a job.

    Attributes:
        last_epoch: number of epochs.
        size: how many items there are.
        items: k, the most that a user holds.
        buckets: s.
        noise: the dummies in the words of an item.
        epsilon: of an epoch.
        delta: of an epoch, and of all of them.
        stream_epsilon: of all epochs together.

    Raises:
        ValueError: a field is out of range.
    """

    last_epoch: int
    size: int
    items: int
    buckets: int
    noise: CellNoiseLaw
    epsilon: float
    delta: float
    stream_epsilon: float

    def __post_init__(self) -> None:
        if type(self.last_epoch) is not int or self.last_epoch < 1:
            raise ValueError(f"{self.last_epoch!r} epochs, must be at least 1")
        if not 1 <= self.items <= self.size <= MOST_ITEMS:
            raise ValueError(
                f"{self.items} of {self.size} items, must be from 1 to all of at most "
                f"{MOST_ITEMS:,}"
            )
        AffineHashes.for_items(self.buckets, self.size)
        if self.noise.dummies not in ("poisson", "shuffle"):
            raise ValueError(f"dummies is {self.noise.dummies!r}, must be poisson or shuffle")

    def of_one_epoch(self) -> BallsIntoBinsLaw:
        """The same with a single epoch: equal for laws whose epochs are drawn alike."""
        return replace(self, last_epoch=1, stream_epsilon=self.epsilon)

    @property
    def hashes(self) -> AffineHashes:
        """What items are hashed with."""
        return AffineHashes.for_items(self.buckets, self.size)

    @property
    def word_form(self) -> WordForm:
        """What messages look like."""
        words = self.hashes.words
        return WordForm(self.word_dtype, distinct=words if words <= MOST_TABULAR else None)

    @property
    def word_dtype(self) -> np.dtype[np.unsignedinteger]:
        """The narrowest unsigned one that holds all words."""
        return np.min_scalar_type(self.hashes.words - 1).newbyteorder("<")

    @property
    def dummies(self) -> PoissonDummies | None:
        """How many dummies a contributor sends; None where the shuffle stage does."""
        # The words of an item are one of s equal parts of all.
        dummies = self.noise.of_contributors(self.buckets)
        assert dummies is None or isinstance(dummies, PoissonDummies)
        return dummies

    @property
    def messages(self) -> float:
        """Messages of a user with k items in an epoch, on average."""
        return self.items + self.noise.per_contributor(self.buckets)

    def capacity(self, epoch: int, contributors: int) -> int:
        """The most messages that so many contributors send at an epoch, dummies included."""
        return contributors * self.items + self.noise.most(self.buckets, contributors)

    def draw_dummies(self, number: int, rng: np.random.Generator) -> NDArray[np.unsignedinteger]:
        """So many words, uniform over all."""
        dtype = self.word_dtype
        return rng.integers(0, self.hashes.words, number, dtype.type).astype(dtype, copy=False)

    def stage_dummies(self, epoch: int, rng: np.random.Generator) -> CountedWords:
        """What the shuffle stage adds to a window; nothing unless dummies are its business."""
        dummies = self.noise.of_stage(self.buckets)
        number = 0 if dummies is None else dummies.total(1, rng)
        words, counts = np.unique(self.draw_dummies(number, rng), return_counts=True)
        return CountedWords(words[:, None], counts.astype(np.uint32))


class BallsIntoBins(Devices[BallsIntoBinsLaw]):
    """The devices of one horizon. They draw nothing in advance.

    >>> from randomizers.balls_into_bins.calibration import calibrate
    >>> from randomizers.randomness import seeded_generator
    >>> parameters = BallsIntoBinsParameters(1.0, 1e-6, tuple("abcdef"), items=2, buckets=5)
    >>> devices = BallsIntoBins(calibrate(parameters, last_epoch=1, minimum=500))
    >>> devices.enrol(1000, seeded_generator(1))
    >>> sent = devices.report(1, np.tile([6, 2], (1000, 1)), None, seeded_generator(2))
    >>> round(sent.messages / 1000, 1)  # of them two are real
    3.3

    Args:
        law: the constants of the job.
    """

    def __init__(self, law: BallsIntoBinsLaw) -> None:
        super().__init__(law)
        self._dummies = law.dummies

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee of a user's set of one epoch, and of all of them together.

        Without collisions the noise is found from the whole probability law, which is attained if
        there are two sets of k items with none in common; otherwise from a pair of laws that
        dominates it (`randomizers.accounting.overlapping_cells`).
        """
        law = self.law
        exact = law.hashes.overlap == 0 and law.size >= 2 * law.items
        return Guarantee(
            epsilon=law.epsilon,
            delta=law.delta,
            unit="epoch",
            neighbours=held_by_a_user(law.items),
            trust=trusted(law.noise),
            basis="exact" if exact else "bound",
            stream_epsilon=law.stream_epsilon,
        )

    def report(
        self,
        epoch: int,
        values: NDArray[np.integer],
        present: NDArray[np.bool_] | None,
        rng: np.random.Generator,
    ) -> NDArray[np.unsignedinteger] | CountedWords:
        """The messages of everybody present.

        Returns:
            words, (index of the hash) * buckets + bucket, shape (messages, 1): first all real ones,
            then the dummies; counted where there are few different ones.
        """
        law = self.law
        check_epoch(epoch, after=self.epoch, last_epoch=law.last_epoch)
        _, held = checked_sets(epoch, values, present, self.population, law.items)
        if held.max(initial=0) > law.size:
            raise ValueError(f"item {held.max()} at epoch {epoch}, there are {law.size:,}")
        contributors = self.population if present is None else int(np.count_nonzero(present))
        number = 0 if self._dummies is None else self._dummies.total(contributors, rng)
        words = np.empty(len(held) + number, law.word_dtype)
        words[len(held) :] = law.draw_dummies(number, rng)
        hashes = law.hashes
        for start in range(0, len(held), _CHUNK):
            part = slice(start, min(start + _CHUNK, len(held)))
            words[part] = hashed(hashes, held[part] - 1, rng)
        self.epoch = epoch
        distinct = law.word_form.distinct
        if distinct is not None and distinct <= len(words):
            return CountedWords.of_cells(np.bincount(words, minlength=1), law.word_dtype)
        return words[:, None]


def hashed(
    hashes: AffineHashes, items: NDArray[np.int64], rng: np.random.Generator
) -> NDArray[np.int64]:
    """For each item, counted from 0, a word drawn uniformly from those that have it."""
    directions = rng.integers(0, hashes.directions, len(items), np.int64)
    return directions * hashes.buckets + hashes.buckets_of(directions, items)
