"""Attack by sampling: find the worst neighbors on some trials, and test them on other trials."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from dpstream.pipeline.audit.audits import AuditOutcome, Finding
from dpstream.pipeline.audit.hockey_stick import (
    Guess,
    Observations,
    choose_guess,
    loss_bound,
    share_of_guesses_for,
)
from dpstream.pipeline.audit.targets import Target
from dpstream.pipeline.conformance.cases import Stream
from dpstream.pipeline.conformance.divergences import differ_by_removal, neighbors
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.randomizers.guarantee import Guarantee


def candidate_pairs(
    job: DeployedJob, guarantee: Guarantee, epochs: int
) -> list[tuple[Stream, Stream]]:
    streams = list(dict.fromkeys(_streams(some_values(job), guarantee, epochs)))
    return [
        (one, other)
        for one, other in neighbors(streams, guarantee)
        if not guarantee.only_removal or differ_by_removal(one, other)
    ]


def some_values(job: DeployedJob) -> list[int | tuple[int, ...]]:
    domain = job.domain
    items = [*dict.fromkeys([domain.initial, 0, 1, domain.size // 2, domain.size - 1])]
    items = [item for item in items if item < domain.size]
    if domain.slots is None:
        return [*items]
    slots = domain.slots
    sets = [
        (),
        *((item,) for item in items if item),
        tuple(range(1, domain.size)[:slots]),
        tuple(range(1, domain.size)[-slots:]),
    ]
    return [*dict.fromkeys((*held, *[0] * (slots - len(held))) for held in sets)]


def _streams(
    values: list[int | tuple[int, ...]], guarantee: Guarantee, epochs: int
) -> Iterator[Stream]:
    first, others = values[0], values[1:]
    for value in values:
        yield (value,) * epochs
    if guarantee.unit == "value" or epochs == 1:
        return
    for value in others[:1] + others[-1:]:
        yield (value, *[first] * (epochs - 1))
        yield (*[first] * (epochs - 1), value)
        if guarantee.unit == "stream":
            yield tuple(value if epoch >= epochs // 2 else first for epoch in range(epochs))
            yield tuple(value if epoch % 2 == 0 else first for epoch in range(epochs))
            yield tuple(value if epoch % 2 else first for epoch in range(epochs))


# Rounds of the search: number of pairs kept, number of trials as a fraction of the test trials, and
# minimum number of trials, if available.
_ROUNDS = ((2, 0.1, 20), (1, 0.25, 200))
# False-alarm probability of the bounds that rank pairs before the last round.
_SEARCHING = 0.05
LARGER, POWER = (1.3, 2.0, 4.0, 10.0), 0.99
"""Multiples of the claimed loss, and the probability with which a multiple must be detected.

The finding states the first multiple that is detected with this probability.
"""


@dataclass(frozen=True, slots=True)
class Sample:
    """An attack by sampling, with one name in `attacks` for each view of the target.

    `trials` is half the number of test trials; a fair coin chooses the neighbor of each. With
    `searched`, about as many trials search for the worst neighbors. Otherwise, users whose values
    never change are compared, if these are neighbors.
    """

    subject: str
    attacks: tuple[str, ...]
    job: DeployedJob
    target: Target
    guarantee: Guarantee
    trials: int
    searched: bool = True

    def run(self, randomness: np.random.Generator, false_alarm: float) -> Iterator[Finding]:
        """Search and test; an attack fails a true claim with probability at most `false_alarm`."""
        one, other, guesses = self._worst(randomness, false_alarm)
        trials = 2 * self.trials
        ones = int(randomness.binomial(trials, 0.5))
        fresh = self._drawn(one, ones, randomness), self._drawn(other, trials - ones, randomness)
        for attack, seen, guess, *observations in zip(
            self.attacks, self.target.seen, guesses, *fresh, strict=True
        ):
            right, wrong = guess.count(*observations)
            observed = loss_bound(right, wrong, trials, self.guarantee.delta, false_alarm)
            failed = observed > self.guarantee.epsilon
            yield Finding(
                self.subject,
                attack,
                f"{seen}: {trials:,} trials with two neighboring inputs{self._power(false_alarm)}",
                AuditOutcome.FAILED if failed else AuditOutcome.CONSISTENT,
                claimed=self.guarantee.epsilon,
                delta=self.guarantee.delta,
                observed=observed,
                false_alarm=false_alarm,
                reason=self._reason(observed, one, other) if failed else "",
            )

    def _drawn(
        self, stream: Stream, trials: int, randomness: np.random.Generator
    ) -> tuple[Observations, ...]:
        return self.target.observations(stream, trials, randomness)

    def _worst(
        self, randomness: np.random.Generator, false_alarm: float
    ) -> tuple[Stream, Stream, list[Guess]]:
        """Return the neighbors with the largest bound on training trials, and their guesses."""
        pairs = candidate_pairs(self.job, self.guarantee, self.target.epochs)
        if not self.searched:
            constant = [pair for pair in pairs if all(len({*stream}) == 1 for stream in pair)]
            pairs = constant or pairs
        # One guess covers both orders of two neighbors.
        pairs = list({frozenset(pair): pair for pair in pairs}.values())
        rounds = _ROUNDS if len(pairs) > 1 else _ROUNDS[-1:]
        for kept, share, least in rounds:
            trials = max(round(self.trials * share), min(least, self.trials))
            streams = dict.fromkeys(stream for pair in pairs for stream in pair)
            observations = {stream: self._drawn(stream, trials, randomness) for stream in streams}
            alarm = false_alarm if kept == 1 else _SEARCHING
            chosen = [
                (
                    [
                        choose_guess(*both, self.guarantee.delta, alarm)
                        for both in zip(observations[one], observations[other], strict=True)
                    ],
                    (one, other),
                )
                for one, other in pairs
            ]
            chosen.sort(key=lambda found: max(guess.bound for guess in found[0]), reverse=True)
            pairs = [pair for _, pair in chosen[:kept]]
        guesses, (one, other) = chosen[0]
        return one, other, guesses

    def _power(self, false_alarm: float) -> str:
        for factor in LARGER:
            share = share_of_guesses_for(
                self.guarantee.epsilon,
                self.guarantee.delta,
                factor,
                2 * self.trials,
                false_alarm,
                POWER,
            )
            if share is not None:
                seen = (
                    f"a loss {factor:g} times as large, if {100 * share:.2g} % of trials reveal it"
                )
                return f"; enough to detect {seen}"
        return ", too few to detect a small loss"

    def _reason(self, observed: float, one: Stream, other: Stream) -> str:
        also = f" with delta {self.guarantee.delta:g}" if self.guarantee.delta else ""
        return (
            f"claims epsilon {self.guarantee.epsilon:.6g}{also}, but the values {_shown(one)} can "
            f"be distinguished from {_shown(other)} by at least epsilon {observed:.4g}{also}"
        )


def _shown(stream: Stream) -> str:
    shown = ", ".join(map(str, stream[:8]))
    return shown if len(stream) <= 8 else f"{shown} ..."
