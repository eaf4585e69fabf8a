"""What becomes of epsilon when fewer contributors are honest and present than noise is sized on.

Noise that contributors add is sized on the fewest of a window, as if all of these added theirs. Who
leaves its dummies out, or tells them to somebody, leaves less to hide among.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from dpstream.pipeline.protocols.protocol import Law, Protocol

SHARES: Final = (1.0, 0.9, 0.75, 0.5, 0.25, 0.1)


@dataclass(frozen=True, slots=True)
class HonestContributors:
    """What a job promises if no more than so many contributors of a window add their dummies.

    Attributes:
        share: of those that the noise is sized on, from 0 to 1.
        contributors: as many, rounded down.
        epsilon: of what the guarantee is about, an epoch or a stream, with the law's delta; None:
            delta is not enough.
    """

    share: float
    contributors: int
    epsilon: float | None


def contributor_curve(
    protocol: Protocol, law: Law, shares: Sequence[float] = SHARES
) -> tuple[HonestContributors, ...]:
    """What some shares of the fewest contributors leave; nothing if all rests on none of them.

    >>> from dpstream.pipeline.protocols.registry import PROTOCOLS
    >>> from dpstream.randomizers.count_min import CountMinParameters
    >>> count_min = PROTOCOLS["count_min"]
    >>> law = count_min.calibrate(CountMinParameters(1.0, 1e-6, ("a", "b")), 1, 1000)
    >>> curve = contributor_curve(count_min, law, (1, 0.5))
    >>> [(each.contributors, round(each.epsilon, 2)) for each in curve]
    [(1000, 1.0), (500, 1.69)]
    """
    needed, epsilon_with = protocol.contributors(law), protocol.epsilon_with
    if needed is None or epsilon_with is None:
        return ()
    curve = []
    for share in shares:
        honest = math.floor(needed * share)
        epsilon = epsilon_with(law, honest) if honest else math.inf
        curve.append(HonestContributors(share, honest, epsilon if math.isfinite(epsilon) else None))
    return tuple(curve)
