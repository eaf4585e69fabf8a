"""Test that released windows reveal neither order nor senders, and that leaks are detected."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dpstream.pipeline.actions import Steps
from dpstream.pipeline.stages.multisets import MessageMultiset
from dpstream.pipeline.stages.ordered_chunks import Chunks
from dpstream.randomizers.randomness import cryptographic_generator, seeded_generator
from dpstream.topics.messages import Messages
from tests.attacks.linkage import attack_linkage

ORDERS = ("sorted", "random")


@pytest.mark.parametrize("trials", [70, pytest.param(500, marks=pytest.mark.verify)])
@pytest.mark.parametrize("order", ORDERS)
def test_windows_do_not_link_reports_to_senders(order: str, trials: int) -> None:
    assert attack_linkage(order, trials, cryptographic_generator(), 5e-10) == ""


@pytest.mark.parametrize("order", ORDERS)
def test_unshuffled_windows_are_detected(order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def as_they_came(multiset: Any, *generator: Any) -> Messages:
        return Messages(np.concatenate(multiset._plain))

    def chunks_as_they_came(multiset: Any, generator: Any) -> Steps[Chunks]:
        yield from ()
        return Chunks.of([as_they_came(multiset)])

    monkeypatch.setattr(MessageMultiset, "permuted", chunks_as_they_came)
    monkeypatch.setattr(MessageMultiset, "sorted", as_they_came)
    reason = attack_linkage(order, 40, seeded_generator(11), 1e-11)
    assert "order of arrival" in reason


def test_window_that_has_the_id_of_a_batch_is_detected() -> None:
    class Same:
        """Generator that gives windows an id that it gave a producer before."""

        def __init__(self) -> None:
            self._rng = seeded_generator(2)
            self._drawn = 0

        def __getattr__(self, name: str) -> Any:
            return getattr(self._rng, name)

        def bytes(self, size: int) -> bytes:
            # Each window draws two ids per producer, then those of the stage.
            self._drawn += 1
            return bytes([self._drawn if self._drawn < 5 else 1]) * size

    randomness: Any = Same()
    assert "contains the id of a batch" in attack_linkage("sorted", 4, randomness, 1e-9)
