"""The attacks on accounting: none of them draws, so none convicts a correct program."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from dpstream.pipeline.audit.audits import Attack, Coins
from dpstream.pipeline.audit.findings import Finding
from dpstream.pipeline.audit.recomputed.answers import answers_and_horizons
from dpstream.pipeline.audit.recomputed.cells import shifted_cells
from dpstream.pipeline.audit.recomputed.compositions import compositions
from dpstream.pipeline.audit.recomputed.crowds import crowds
from dpstream.pipeline.audit.recomputed.rounded import rounding
from dpstream.pipeline.audit.recomputed.sets import sets_of_items
from dpstream.pipeline.audit.recomputed.small_laws import SUBJECT

_RECOMPUTED: dict[str, Callable[[], Iterator[Finding]]] = {
    "compositions": compositions,
    "shifted noise": shifted_cells,
    "sets of items": sets_of_items,
    "crowds": crowds,
    "permanent answers": answers_and_horizons,
    "rounding": rounding,
}


def attacks_on_accounting() -> list[Attack]:
    """All that is recomputed, whatever is drawn besides."""
    return [
        Attack(SUBJECT, name, 0, partial(_without_coins, recompute))
        for name, recompute in _RECOMPUTED.items()
    ]


def _without_coins(
    recompute: Callable[[], Iterator[Finding]], coins: Coins, share: float
) -> Iterator[Finding]:
    return recompute()
