from __future__ import annotations

import struct

import numpy as np
import pytest
from numpy.typing import NDArray

from dpstream.aggregators import dyadic_tree
from dpstream.aggregators.dyadic_tree import DyadicTree, first_node
from dpstream.randomizers.dyadic import orders_due

HORIZON = 32
CELLS = 3


def entry(cell: int, count: int) -> bytes:
    return struct.pack("<Qq", cell, count)


def test_counts_are_found_where_they_were_put() -> None:
    tree, added = _random_tree(1)
    for epoch, counts in added.items():
        assert tree.nodes_due(epoch).tolist() == counts.tolist()
        for order, cells in enumerate(counts.tolist()):
            assert tree.node(order, epoch >> order).tolist() == cells


def test_an_order_is_read_up_to_an_epoch() -> None:
    tree, added = _random_tree(2)
    for order in range(6):
        for last_epoch in (0, 1, 7, 8, 30, 32):
            expected = [
                added[epoch][order].tolist() if epoch in added else [0] * CELLS
                for epoch in range(1 << order, last_epoch + 1, 1 << order)
            ]
            assert tree.order_counts(order, last_epoch).tolist() == expected


def test_bytes_hold_what_is_there_and_nothing_else() -> None:
    tree, _ = _random_tree(5)
    again = DyadicTree.from_bytes(HORIZON, CELLS, tree.to_bytes())
    assert again.to_bytes() == tree.to_bytes()
    assert again.first_epoch == tree.first_epoch
    assert DyadicTree(HORIZON, CELLS).to_bytes() == b""
    assert DyadicTree.from_bytes(HORIZON, CELLS, b"").to_bytes() == b""
    last = DyadicTree(2**40, cells=2)
    last.add(3, np.array([[0, 2]]))
    assert last.to_bytes() == entry(3 * 2 + 1, 2)


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"x" * 15, "a tree of 15 bytes, counts take 16"),
        (entry(63 * 3, 1), "cell 189, a horizon of 32 epochs has 63 nodes of 3 cells"),
        (entry(2**63 + 1, 1), "cell 9223372036854775809"),
        (entry(2, 1) + entry(2, 1), "do not strictly increase"),
        (entry(2, 1) + entry(1, 1), "do not strictly increase"),
        (entry(2, -1), "0, negative or beyond"),
        (entry(2, 2**53 + 1), "0, negative or beyond"),
        (entry(2, 0), "0, negative or beyond"),
    ],
)
def test_other_bytes_are_refused(data: bytes, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        DyadicTree.from_bytes(HORIZON, CELLS, data)


def test_few_counts_are_read_as_many_are(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(6)
    found = []
    for _ in range(2_000):
        cells = np.sort(rng.integers(0, 200, rng.integers(1, 6)))
        if rng.random() < 0.5:
            # Of one epoch, mostly.
            cells = first_node(24) * CELLS + np.sort(rng.choice(13, rng.integers(1, 6), False))
        counts = rng.choice([-(2**53) - 1, -3, 0, 1, 2, 7, 2**53, 2**53 + 1], len(cells), p=_ODDS)
        data = b"".join(map(entry, cells.tolist(), counts.tolist()))
        read: list[object] = []
        for few in (dyadic_tree._FEW_BYTES, 0):
            with monkeypatch.context() as patched:
                patched.setattr(dyadic_tree, "_FEW_BYTES", few)
                try:
                    tree = DyadicTree.from_bytes(HORIZON, CELLS, data)
                    read.append([(each, tree.nodes_due(each).tolist()) for each in tree.epochs])
                except ValueError as error:
                    read.append(str(error))
        assert read[0] == read[1]
        found.append(type(read[0]))
    assert {list, str} == set(found)


_ODDS = (0.01, 0.1, 0.02, 0.4, 0.2, 0.25, 0.01, 0.01)


def _random_tree(
    seed: int, last_epoch: int = HORIZON
) -> tuple[DyadicTree, dict[int, NDArray[np.int64]]]:
    """A tree in which some epochs are missing, and what was added to it, by epoch."""
    rng = np.random.default_rng(seed)
    tree, added = DyadicTree(HORIZON, CELLS), {}
    for epoch in rng.permutation(np.arange(1, last_epoch + 1)).tolist():
        if rng.random() < 0.8:
            added[epoch] = rng.integers(0, 50, (orders_due(epoch), CELLS))
            tree.add(epoch, added[epoch])
    return tree, added
