"""One shuffled message per user: randomized response or RAPPOR.

Each message is private on its own, with a local loss that holds against all parties. Shuffled among
the messages of other users, it reveals much less. The error grows with the number of users and is
small only for tiny domains.

* Randomized response (Warner 1965): the true symbol (an item, or "no item") is e^epsilon_0 times as
  likely as any other.
* RAPPOR: a message has a bit for every item of the domain, 1 if the user has the item. Each bit is
  flipped with the same probability. Two sets of k items differ in at most 2 k bits, so each bit
  loses epsilon_0 / (2 k).

Reference: Ghazi et al., *On the Power of Multiple Anonymous Messages*, 2019, Appendix A.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dpstream.randomizers import least_delta
from dpstream.randomizers.composed import ComposedLaw, log_rounded_up
from dpstream.randomizers.devices import Devices
from dpstream.randomizers.draws import draw_categories
from dpstream.randomizers.given_sets import set_rows
from dpstream.randomizers.given_values import check_epoch
from dpstream.randomizers.guarantee import (
    Guarantee,
    held_by_a_user,
    of_messages_apart,
    rounded_up,
    shuffle_and_others,
)
from dpstream.randomizers.item_domains import ItemDomain, domain_size
from dpstream.randomizers.laws import Constants
from dpstream.randomizers.parameter_checks import check_approximate, check_domain, check_items_held
from dpstream.topics.message_formats import MessageFormat, narrowest

Response = Literal["randomized_response", "rappor"]

MAX_BITS = 4096
"""Maximum number of items of a domain for RAPPOR."""

_DRAWN_AT_ONCE = 1 << 20


@dataclass(frozen=True, slots=True)
class SingleMessageParameters:
    """Parameters of counts from one message per user.

    Attributes:
        epsilon, delta: Privacy loss for a user's set at one epoch, after shuffling.
        domain: At most 2^20 items, or at most `MAX_BITS` for RAPPOR.
        items: k, the maximum number of items per user and epoch; 1 for randomized response.
        response: Randomizer; None for the more accurate one.
    """

    epsilon: float
    delta: float
    domain: ItemDomain
    items: int = 1
    response: Response | None = None

    def __post_init__(self) -> None:
        check_approximate(self.epsilon, self.delta)
        check_items_held(self.items, self.domain)
        size = domain_size(self.domain)
        check_domain(size)
        check_response(self.response or self.responses[0], self.items, size)
        object.__setattr__(self, "epsilon", float(self.epsilon))

    @property
    def responses(self) -> tuple[Response, ...]:
        if self.response is not None:
            return (self.response,)
        if self.items > 1:
            return ("rappor",)
        if domain_size(self.domain) > MAX_BITS:
            return ("randomized_response",)
        return ("randomized_response", "rappor")


def check_response(response: str, slots: int, items: int) -> None:
    if response not in ("randomized_response", "rappor"):
        raise ValueError(f"response is {response!r}; expected 'randomized_response' or 'rappor'")
    if response == "randomized_response" and slots > 1:
        raise ValueError(
            f"a user has up to {slots} items; expected 1 for response 'randomized_response'. Use "
            "'rappor'"
        )
    if response == "rappor" and items > MAX_BITS:
        raise ValueError(
            f"the domain has {items:,} items; expected at most {MAX_BITS:,} for response 'rappor'"
        )


@dataclass(frozen=True, slots=True)
class SingleMessageLaw(Constants):
    """All constants of a job.

    Attributes:
        slots: k, the maximum number of items per user.
        odds: Weights of the true symbol and of each other symbol, or of a true and a flipped bit.
        epsilon, stream_epsilon: Epsilon of one epoch, and of all epochs together, after shuffling.
    """

    items: int
    slots: int
    response: Response
    minimum: int
    last_epoch: int
    odds: ComposedLaw
    epsilon: float
    delta: float
    stream_epsilon: float

    def __post_init__(self) -> None:
        check_domain(self.items)
        if not 1 <= self.slots <= self.items:
            raise ValueError(f"'slots' is {self.slots}; expected 1 to {self.items:,}")
        check_response(self.response, self.slots, self.items)
        if self.odds.k != 1 or self.odds.weights[0] < self.odds.weights[1]:
            raise ValueError(
                f"odds are {self.odds.weights}; expected two weights, the larger first"
            )
        if self.minimum < 1 or self.last_epoch < 1:
            raise ValueError(
                f"got {self.minimum} contributors and {self.last_epoch} epochs; expected at least "
                "1 of each"
            )

    def of_one_epoch(self) -> SingleMessageLaw:
        """Return the constants for one epoch, shared by jobs that differ only in their horizon."""
        return replace(self, last_epoch=1, stream_epsilon=self.epsilon)

    @property
    def bits(self) -> bool:
        return self.response == "rappor"

    @property
    def local_epsilon(self) -> float:
        own, other = self.odds.weights
        return log_rounded_up(Fraction(own, other), 2 * self.slots if self.bits else 1)

    @property
    def probabilities(self) -> tuple[Fraction, Fraction]:
        """Probabilities that a message contains an item, if its user has the item and if not."""
        own, other = self.odds.weights
        total = own + other * (1 if self.bits else self.items)
        return Fraction(own, total), Fraction(other, total)

    def capacity(self, epoch: int, contributors: int) -> int:
        return contributors

    @property
    def message_format(self) -> MessageFormat:
        if self.bits:
            return MessageFormat(np.dtype("u1"), -(-self.items // 8))
        symbols = self.items + 1
        return MessageFormat(narrowest(symbols), distinct=symbols)


class SingleMessage(Devices[SingleMessageLaw]):
    """Devices of one horizon. They draw nothing in advance.

    >>> from dpstream.randomizers.randomness import seeded_generator
    >>> odds = ComposedLaw((10**6, 1))
    >>> law = SingleMessageLaw(9, 2, "rappor", 1, 1, odds, 1.0, 0.1, 1.0)
    >>> devices = SingleMessage(law)
    >>> devices.enroll(2, seeded_generator(1))
    >>> devices.report(1, np.array([[1, 9], [0, 3]]), None, seeded_generator(2)).tolist()
    [[1, 1], [4, 0]]
    """

    @property
    def guarantee(self) -> Guarantee:
        law = self.law
        return Guarantee(
            epsilon=law.epsilon,
            delta=law.delta,
            unit="epoch",
            neighbors=held_by_a_user(law.slots),
            trust=shuffle_and_others(
                law.minimum, f"{rounded_up(law.local_epsilon)} at every epoch, with delta 0"
            ),
            basis="bound",
            stream_epsilon=law.stream_epsilon,
        )

    @property
    def assumed_contributors(self) -> int:
        return self.law.minimum

    def least_delta(self) -> float:
        """Bound delta from below, for an item that no other user has or that all others have."""
        law = self.law
        own, other = map(float, law.probabilities)
        return max(
            least_delta.of_coins(law.minimum - 1, others, 1, law.epsilon, own, other)
            for others in (other, own)
        )

    @property
    def without_shuffling(self) -> Guarantee:
        """Guarantee for unshuffled messages, against any party that knows their sender."""
        return of_messages_apart(self.guarantee, self.law.local_epsilon, self.law.last_epoch)

    def report(
        self,
        epoch: int,
        values: NDArray[np.integer],
        present: NDArray[np.bool_] | None,
        rng: np.random.Generator,
    ) -> NDArray[np.unsignedinteger]:
        """Return one message from each present device.

        Randomized response: unsigned, shape (devices present, 1), an item or 0 for none. RAPPOR:
        uint8, shape (devices present, bytes), where bit i of byte j is for item 8 j + i + 1.
        """
        law = self.law
        check_epoch(epoch, after=self.epoch, last_epoch=law.last_epoch)
        sets = set_rows(epoch, values, present, self.population, law.slots, law.items)
        messages = self._bits(sets, rng) if law.bits else self._symbols(sets, rng)
        self.epoch = epoch
        return messages

    def _symbols(
        self, sets: NDArray[np.int64], rng: np.random.Generator
    ) -> NDArray[np.unsignedinteger]:
        own, other = self.law.odds.weights
        false = draw_categories([own, self.law.items * other], len(sets), rng).astype(np.bool_)
        drawn = rng.integers(0, self.law.items, len(sets))
        drawn += drawn >= sets[:, 0]
        symbols: NDArray[np.unsignedinteger] = np.where(false, drawn, sets[:, 0]).astype(
            self.law.message_format.dtype
        )
        return symbols[:, None]

    def _bits(
        self, sets: NDArray[np.int64], rng: np.random.Generator
    ) -> NDArray[np.unsignedinteger]:
        messages = np.zeros((len(sets), self.law.message_format.width), np.uint8)
        rows = max(1, _DRAWN_AT_ONCE // self.law.items)
        for start in range(0, len(sets), rows):
            part = sets[start : start + rows]
            held = np.zeros((len(part), self.law.items + 1), np.bool_)
            np.put_along_axis(held, part, True, axis=1)
            shape = (len(part), self.law.items)
            reversed_ = draw_categories(self.law.odds.weights, len(part) * self.law.items, rng)
            bits = held[:, 1:] ^ reversed_.astype(np.bool_).reshape(shape)
            messages[start : start + rows] = np.packbits(bits, axis=1, bitorder="little")
        return messages
