"""Attacks on what stages, budgets and the ledger promise, whatever the protocol is."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pipeline.audit.audits import Attack, Coins
from pipeline.audit.boxes_and_shares import attack_boxes_and_shares
from pipeline.audit.crowds_left import Crowds
from pipeline.audit.device_windows import attack_device_windows
from pipeline.audit.findings import Finding
from pipeline.audit.lanes import attack_lanes
from pipeline.audit.ledger_edits import attack_ledger
from pipeline.audit.membership import attack_membership
from pipeline.audit.noise_of_stages import attack_dummies, attack_sums
from pipeline.audit.spending import attack_spending
from pipeline.audit.written_again import attack_written_again

_FEW_WINDOWS, _MANY_WINDOWS = 400, 10_000
"""That messages of crowds are deleted from, in a quick audit and in a full one."""

_WITHOUT_DRAWS: dict[str, tuple[str, Callable[[], Iterator[Finding]]]] = {
    "membership": ("shuffle stage", attack_membership),
    "windows written again": ("shuffle stage", attack_written_again),
    "dummies of the stage": ("shuffle stage", attack_dummies),
    "sums of the stage": ("shuffle stage", attack_sums),
    "lanes": ("shuffle stage", attack_lanes),
    "windows of devices": ("shuffle stage", attack_device_windows),
    "boxes and shares": ("sealed reports", attack_boxes_and_shares),
    "spending": ("budgets", attack_spending),
    "ledger": ("ledger", attack_ledger),
}


def attacks_on_stages(*, quick: bool) -> list[Attack]:
    """All of them; `quick`: with few windows where something is sampled."""
    attacks = [
        _without_draws(subject, name, run) for name, (subject, run) in _WITHOUT_DRAWS.items()
    ]
    crowds = Crowds(_FEW_WINDOWS if quick else _MANY_WINDOWS)

    def run(coins: Coins, share: float) -> Iterator[Finding]:
        yield crowds.run(coins, share)

    return [*attacks, Attack("shuffle stage", "crowds", 1, run)]


def _without_draws(subject: str, name: str, run: Callable[[], Iterator[Finding]]) -> Attack:
    return Attack(subject, name, 0, lambda coins, share: run())
