"""The attacks on samplers, and on the books of devices."""

from __future__ import annotations

from collections.abc import Iterator

from pipeline.audit.audits import Attack, Coins
from pipeline.audit.drawn import books, samplers, scripts
from pipeline.audit.findings import Finding


def attacks_on_draws() -> list[Attack]:
    """Of them one draws, and may convict a correct program with its share."""
    return [
        Attack(scripts.SUBJECT, scripts.ATTACK, 0, _scripted),
        Attack(scripts.SUBJECT, samplers.ATTACK, 1, samplers.sampled_draws),
        Attack(books.SUBJECT, books.ATTACK, 0, _books),
    ]


def _scripted(coins: Coins, share: float) -> Iterator[Finding]:
    return scripts.scripted_draws()


def _books(coins: Coins, share: float) -> Iterator[Finding]:
    return books.books_of_devices(coins)
