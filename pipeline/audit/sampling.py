"""Attacks by samples: the worst neighbours are searched on some trials, and judged on others."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipeline.audit.findings import Finding, Verdict
from pipeline.audit.hockey_stick import Event, Sight, choose_event, loss_bound
from pipeline.audit.neighbours import candidate_pairs
from pipeline.audit.targets import Target
from pipeline.conformance.cases import Stream
from pipeline.jobs.deployed_job import DeployedJob
from randomizers.guarantee import Guarantee


@dataclass(frozen=True, slots=True)
class Sample:
    """An attack by samples.

    Attributes:
        subject: what is attacked.
        attack: its name.
        job: whose code runs.
        target: what is seen.
        guarantee: what is claimed of it.
        trials: of each neighbour, that are judged; as many are drawn to choose what to judge.
        searched: whether the worst neighbours are searched, or people who never change compared.
    """

    subject: str
    attack: str
    job: DeployedJob
    target: Target
    guarantee: Guarantee
    trials: int
    searched: bool = True

    def run(self, coins: np.random.Generator, false_alarm: float) -> Finding:
        """Search, and judge; a kept claim is convicted with a probability of `false_alarm`."""
        one, other, event = self._worst(coins, false_alarm)
        fresh = [self.target.sights(stream, self.trials, coins) for stream in (one, other)]
        observed = loss_bound(
            event.count(fresh[0]),
            self.trials,
            event.count(fresh[1]),
            self.trials,
            self.guarantee.delta,
            false_alarm,
        )
        convicted = observed > self.guarantee.epsilon
        return Finding(
            self.subject,
            self.attack,
            f"{self.target.what}: {self.trials:,} trials of each neighbour",
            Verdict.CONVICTED if convicted else Verdict.CONSISTENT,
            claimed=self.guarantee.epsilon,
            delta=self.guarantee.delta,
            observed=observed,
            false_alarm=false_alarm,
            reason=self._reason(observed, one, other) if convicted else "",
        )

    def _worst(
        self, coins: np.random.Generator, false_alarm: float
    ) -> tuple[Stream, Stream, Event]:
        """The neighbours, and the event, with the largest bound on training trials.

        Many pairs are tried on a few trials; the best of them are tried again on more.
        """
        pairs = candidate_pairs(self.job, self.guarantee, self.target.epochs)
        if not self.searched:
            pairs = [pair for pair in pairs if all(len({*stream}) == 1 for stream in pair)]
        few = max(20, self.trials // 4)
        sights: dict[Stream, list[Sight]] = {}
        for rounds, more in ((3, few), (1, self.trials)):
            for stream in dict.fromkeys(stream for pair in pairs for stream in pair):
                drawn = sights.setdefault(stream, [])
                drawn += self.target.sights(stream, more - len(drawn), coins)
            chosen = [
                (choose_event(sights[one], sights[other], self.guarantee.delta, alarm), one, other)
                # What decides between pairs is no confidence.
                for alarm in (false_alarm if rounds == 1 else 0.05,)
                for one, other in pairs
            ]
            chosen.sort(key=lambda found: found[0].bound, reverse=True)
            pairs = [(one, other) for _, one, other in chosen[:rounds]]
        event, one, other = chosen[0]
        return one, other, event

    def _reason(self, observed: float, one: Stream, other: Stream) -> str:
        also = f" with delta {self.guarantee.delta:g}" if self.guarantee.delta else ""
        return (
            f"claims epsilon {self.guarantee.epsilon:.6g}{also}, and the values {_shown(one)} can "
            f"be told from {_shown(other)} by at least epsilon {observed:.4g}{also}"
        )


def _shown(stream: Stream) -> str:
    shown = ", ".join(map(str, stream[:8]))
    return shown if len(stream) <= 8 else f"{shown} ..."
