"""Test noise of cell codes: sufficient for every pair of item sets, with little excess."""

from __future__ import annotations

from itertools import combinations

import pytest

from dpstream.randomizers.accounting.cell_noise import PoissonNoise
from dpstream.randomizers.accounting.shifted_noise import ShiftedCells, delta_spent
from dpstream.randomizers.accounting.shuffled_oracles import poisson_for_code, poisson_for_rows
from dpstream.randomizers.cell_codes.grid import AxisCode, Grid
from dpstream.randomizers.cell_codes.kept_nodes import KeptNodes
from dpstream.randomizers.cell_codes.levels import Levels
from tests.support.code_matrices import raised_cells

DELTA = 1e-6
# With four children of the root, two sets of two items can differ in all levels below it.
SMALL = [
    (Levels(6, (6,)), 1),
    (Levels(4, (2, 2)), 1),
    (Levels(16, (4, 2, 2)), 2),
    (KeptNodes(8), 1),
    (Grid((Levels(2, (2,)), Levels(3, (3,)))), 1),
]


def shifts(code: AxisCode | Grid, items: int) -> set[tuple[int, int]]:
    cells = raised_cells(code)
    users = {
        frozenset[int]().union(*chosen)
        for count in range(items + 1)
        for chosen in combinations(cells, count)
    }
    return {(len(one - other), len(other - one)) for one in users for other in users}


def delta_of(noise: PoissonNoise, epsilon: float, up: int, down: int) -> float:
    parts = [
        ShiftedCells(noise, shift, cells) for shift, cells in ((1, up), (-1, down)) if cells > 0
    ]
    return delta_spent(parts, epsilon) if parts else 0.0


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 4.0])
@pytest.mark.parametrize(("code", "items"), SMALL)
def test_noise_suffices_for_all_pairs_of_sets_and_is_nearly_minimal(
    code: AxisCode | Grid, items: int, epsilon: float
) -> None:
    noise = poisson_for_code(epsilon, DELTA, code.messages, code.shared, items)
    pairs = shifts(code, items)
    assert max(delta_of(noise, epsilon, *pair) for pair in pairs) <= DELTA
    # In the paper's tree, two items never differ in the assumed number of cells in both directions.
    fewer = PoissonNoise(noise.mean * (0.8 if isinstance(code, KeptNodes) else 0.99))
    assert max(delta_of(fewer, epsilon, *pair) for pair in pairs) > DELTA


def test_noise_for_replacing_items_does_not_suffice_for_removal() -> None:
    code = Levels(4, (2, 2))
    exchange = poisson_for_rows(4.0, DELTA, code.messages - code.shared)
    assert max(delta_of(exchange, 4.0, *pair) for pair in shifts(code, 1)) > 1.4 * DELTA


def test_noise_without_shared_cells_equals_the_noise_for_hash_rows() -> None:
    assert poisson_for_code(1.0, DELTA, 3, 0, items=2) == poisson_for_rows(1.0, DELTA, 3, items=2)


def test_shared_cells_need_less_noise_than_equally_many_disjoint_cells() -> None:
    for epsilon in (0.25, 1.0, 4.0):
        for messages in (2, 3, 6, 11):
            alone = poisson_for_code(epsilon, DELTA, messages, 1)
            assert alone.mean < poisson_for_rows(epsilon, DELTA, messages).mean


@pytest.mark.parametrize("shared", [-1, 3])
def test_number_of_shared_cells_out_of_range_is_rejected(shared: int) -> None:
    with pytest.raises(ValueError, match=f"'shared' is {shared}; expected 0 to 2"):
        poisson_for_code(1.0, DELTA, 3, shared)
