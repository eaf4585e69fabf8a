from __future__ import annotations

import struct

import numpy as np
import pytest
from numpy.typing import NDArray

from aggregators.dyadic_tree import DyadicTree, first_node
from randomizers.dyadic import orders_due

HORIZON = 32


def test_nodes_are_numbered_without_holes_in_order_of_completion() -> None:
    numbers = [
        first_node(epoch) + order
        for epoch in range(1, HORIZON + 1)
        for order in range(orders_due(epoch))
    ]
    assert numbers == list(range(2 * HORIZON - 1))


def test_counts_are_found_where_they_were_put() -> None:
    tree, added = _random_tree(1)
    for epoch, counts in added.items():
        for order, (negative, positive) in enumerate(counts.tolist()):
            assert tree.node(order, epoch >> order) == (negative, positive)


def test_an_order_is_read_up_to_an_epoch() -> None:
    tree, added = _random_tree(2)
    for order in range(6):
        for last_epoch in (0, 1, 7, 8, 30, 32):
            expected = [
                added[epoch][order].tolist() if epoch in added else [0, 0]
                for epoch in range(1 << order, last_epoch + 1, 1 << order)
            ]
            assert tree.order_counts(order, last_epoch).tolist() == expected


def test_what_has_not_been_reached_is_empty() -> None:
    tree = DyadicTree(2**62)
    tree.add(1, np.array([[2, 3]]))
    assert tree.node(62, 1) == tree.node(0, 2**62) == (0, 0)
    assert tree.order_counts(0, 3).tolist() == [[2, 3], [0, 0], [0, 0]]


def test_merging_is_adding_whatever_the_order() -> None:
    (one, _), (other, _) = _random_tree(3), _random_tree(4, last_epoch=3)
    both, reversed_ = DyadicTree(HORIZON), DyadicTree(HORIZON)
    for tree in (one, other):
        both.merge(tree)
    for tree in (other, one):
        reversed_.merge(tree)
    assert both.to_bytes() == reversed_.to_bytes()
    assert both.node(1, 1) == tuple(map(sum, zip(one.node(1, 1), other.node(1, 1), strict=True)))


def test_bytes_hold_what_is_there_and_nothing_else() -> None:
    tree, _ = _random_tree(5)
    again = DyadicTree.from_bytes(HORIZON, tree.to_bytes())
    assert again.to_bytes() == tree.to_bytes()
    assert DyadicTree(HORIZON).to_bytes() == b""
    assert DyadicTree.from_bytes(HORIZON, b"").to_bytes() == b""
    last = DyadicTree(2**40)
    last.add(3, np.array([[1, 2]]))
    assert last.to_bytes() == struct.pack("<Qqq", 3, 1, 2)


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"x" * 23, "a tree of 23 bytes, nodes take 24"),
        (struct.pack("<Qqq", 63, 1, 1), "node 63, a horizon of 32 epochs has 63 nodes"),
        (struct.pack("<Qqq", 2**63 + 1, 1, 1), "node 9223372036854775809"),
        (struct.pack("<QqqQqq", 2, 1, 1, 2, 1, 1), "do not strictly increase"),
        (struct.pack("<QqqQqq", 2, 1, 1, 1, 1, 1), "do not strictly increase"),
        (struct.pack("<Qqq", 2, -1, 1), "from 0 to"),
        (struct.pack("<Qqq", 2, 0, 2**53 + 1), "from 0 to"),
        (struct.pack("<Qqq", 2, 0, 0), "not both 0"),
    ],
)
def test_other_bytes_are_refused(data: bytes, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        DyadicTree.from_bytes(HORIZON, data)


def _random_tree(
    seed: int, last_epoch: int = HORIZON
) -> tuple[DyadicTree, dict[int, NDArray[np.int64]]]:
    """A tree in which some epochs are missing, and what was added to it, by epoch."""
    rng = np.random.default_rng(seed)
    tree, added = DyadicTree(HORIZON), {}
    for epoch in rng.permutation(np.arange(1, last_epoch + 1)).tolist():
        if rng.random() < 0.8:
            added[epoch] = rng.integers(0, 50, (orders_due(epoch), 2))
            tree.add(epoch, added[epoch])
    return tree, added
