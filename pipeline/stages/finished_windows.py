"""What a stage says when it is done with a window, for logs and metrics; no content of reports."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from dpstream.topics.manifests import Fate


@dataclass(frozen=True, slots=True)
class FinishedWindow:
    """A window that a stage is done with.

    Which devices take part is public, so that `contributors` is no secret of anybody.

    Attributes:
        epoch: of the window.
        fate: what was decided; who aggregates sees released windows only.
        contributors: devices present; None where the stage does not learn it.
        began: when the stage saw the window's first record, on the clock of its driver.
        decided_at: when the window was decided, in milliseconds since 1970 by the broker's clock;
            for a stage that waits for that decision.
    """

    epoch: int
    fate: Fate
    contributors: int | None = None
    began: float | None = None
    decided_at: int | None = None

    def seconds(self, clock: float, wall_clock: int) -> float:
        """How long the stage took, at a moment given on its driver's clock and the broker's.

        >>> FinishedWindow(7, Fate.RELEASED, 100, began=20.0).seconds(22.5, 0)
        2.5
        >>> FinishedWindow(7, Fate.RELEASED, decided_at=20_000).seconds(9.0, 22_500)
        2.5
        """
        if self.began is not None:
            return max(0.0, clock - self.began)
        return 0.0 if self.decided_at is None else max(0, wall_clock - self.decided_at) / 1000


WindowListener: TypeAlias = Callable[[FinishedWindow], None]


def ignore_window(window: FinishedWindow) -> None:
    """Listen to none."""
