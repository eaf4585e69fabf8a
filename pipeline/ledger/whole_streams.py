"""What a longitudinal stream is charged, once for all epochs, as the ledger knows its job.

The ledger charges people the local loss, which holds for everybody whatever they missed. Whoever
was in every released window of a horizon is hidden by all others who were, once that the windows
were shuffled: how well, `charged` says.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from dpstream.pipeline.ledger.spending import Spending
from dpstream.pipeline.protocols.protocol import DELTA
from dpstream.pipeline.protocols.registry import PROTOCOLS
from dpstream.randomizers.accounting.whole_streams import Charged, charged_once

_Facts: TypeAlias = tuple[str, int, float | None]
"""A protocol, the epochs of a horizon, and the delta that the job states."""


@dataclass(frozen=True, slots=True)
class StreamTerms:
    """On what terms the streams of a deployment are charged once.

    Attributes:
        loss: the local one, of a user's stream in one horizon.
        epochs: of a horizon.
        delta: that the amplified figure is stated with.
    """

    loss: float
    epochs: int
    delta: float

    def charged(self, devices: int) -> Charged:
        """What is charged for a horizon.

        Args:
            devices: that are known to have been in every released window of it.
        """
        return charged_once(self.loss, devices, self.delta)


def stream_terms(state: Spending) -> dict[str, StreamTerms]:
    """Of every deployment whose devices lose what they lose by whole streams, in hexadecimal."""
    known = {deployment: facts for deployment, facts in _of_ended_jobs(state) if facts is not None}
    for job in state.topic.jobs.values():
        delta = None if job.central is None else job.central.delta
        known[job.deployment.hex()] = job.protocol, job.epochs.count, delta
    found = {}
    for charge in state.charges:
        protocol, epochs, delta = known.get(charge.deployment, ("", 0, None))
        if protocol in PROTOCOLS and PROTOCOLS[protocol].loss_of_streams:
            found[charge.deployment] = StreamTerms(charge.epsilon, epochs, delta or DELTA)
    return found


def _of_ended_jobs(state: Spending) -> Iterator[tuple[str, _Facts | None]]:
    for entry in state.chain.entries:
        for charge in entry.said.charges:
            yield charge.deployment, _facts(entry.said.facts)


def _facts(said: Mapping[str, Any]) -> _Facts | None:
    try:
        protocol, epochs = said["protocol"], said["epochs"]
        delta = said["guarantee"].get("shuffled", {}).get("delta")
    except (AttributeError, KeyError, TypeError):
        return None
    whole = type(epochs) is int and epochs > 0
    known = delta is None or (isinstance(delta, float) and 0 < delta < 1)
    return (protocol, epochs, delta) if isinstance(protocol, str) and whole and known else None
