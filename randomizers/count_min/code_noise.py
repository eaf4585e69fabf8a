"""Noise required by the cells of count_min, and the loss of all epochs together."""

from __future__ import annotations

from functools import cache

from dpstream.randomizers.accounting.cell_noise import CellNoise, noise_of_cells
from dpstream.randomizers.accounting.shifted_noise import ShiftedCells, epsilon_spent
from dpstream.randomizers.accounting.shuffled_oracles import (
    binomial_for_rows,
    negative_binomial_for_rows,
    poisson_for_code,
    poisson_for_rows,
    published_mean,
    published_probability,
    row_shifts,
)
from dpstream.randomizers.accounting.table_distances import FOR_TABLES
from dpstream.randomizers.cell_codes.codes import CellCode
from dpstream.randomizers.cell_noise_law import CellNoiseLaw, DummyLaw
from dpstream.randomizers.count_min import Calibration, CountMinParameters


def noise_for(
    parameters: CountMinParameters, code: CellCode, minimum: int, last_epoch: int = 1
) -> CellNoiseLaw:
    """Return the least noise per cell that meets the requested epsilon and delta.

    One epoch loses at most epsilon, and all epochs together at most `last_epoch` times epsilon.
    Both hold with the same delta, although a single epoch may already need all of it.
    """
    noise = _noise_for(parameters, code.messages, code.shared, minimum, 1)
    if last_epoch == 1 or parameters.calibration == "published":
        return noise
    if stream_epsilon(parameters, code, noise, last_epoch) <= last_epoch * parameters.epsilon:
        return noise
    return _noise_for(parameters, code.messages, 0, minimum, last_epoch)


def _noise_for(
    parameters: CountMinParameters, messages: int, shared: int, minimum: int, epochs: int
) -> CellNoiseLaw:
    return _least_noise(
        parameters.epsilon * epochs,
        parameters.delta,
        parameters.calibration,
        parameters.dummies,
        (messages, shared, parameters.items, minimum, epochs),
    )


@cache
def _least_noise(
    epsilon: float,
    delta: float,
    calibration: Calibration,
    dummies: DummyLaw,
    shape: tuple[int, int, int, int, int],
) -> CellNoiseLaw:
    messages, shared, items, minimum, epochs = shape
    requested, delta = delta, delta * (1 - FOR_TABLES)
    if calibration == "published":
        mean = published_mean(epsilon, requested, messages, items)
        if dummies == "bernoulli":
            mean = published_probability(epsilon, requested, minimum, messages, items) * minimum
        noise = CellNoiseLaw(dummies, mean, minimum)
        ways = differing_cells(noise_of_cells(noise), messages, 0, items, 1, repeated=True)
        # The proof assumes a small epsilon and few dummies, without stating bounds.
        if max(epsilon_spent(parts, delta) for parts in ways) > epsilon:
            raise ValueError(
                f"'calibration: published' does not achieve epsilon {epsilon:g} with {minimum} "
                "contributors. Use a smaller epsilon, more contributors, or 'calibration: exact'"
            )
        return noise
    if dummies == "bernoulli":
        binomial = binomial_for_rows(epsilon, delta, minimum, messages, items, epochs)
        return CellNoiseLaw("bernoulli", binomial.mean, minimum)
    if dummies == "negative_binomial":
        clustered = negative_binomial_for_rows(epsilon, delta, messages, items, epochs)
        return CellNoiseLaw("negative_binomial", clustered.mean, minimum, clustered.shape)
    if shared:
        mean = poisson_for_code(epsilon, delta, messages, shared, items).mean
    else:
        mean = poisson_for_rows(epsilon, delta, messages, items, epochs).mean
    return CellNoiseLaw("shuffle" if dummies == "shuffle" else "poisson", mean, minimum)


def cells_epsilon(
    noise: CellNoise,
    code: CellCode,
    items: int,
    epochs: int,
    delta: float,
    calibration: Calibration,
) -> float:
    """Return the least epsilon at `delta` for the worst neighboring inputs, rounded up."""
    repeated = calibration == "published"
    ways = differing_cells(noise, code.messages, code.shared, items, epochs, repeated=repeated)
    return max(epsilon_spent(parts, delta) for parts in ways)


def differing_cells(
    noise: CellNoise, messages: int, shared: int, items: int, epochs: int, *, repeated: bool = False
) -> list[list[ShiftedCells]]:
    """Return the cells in which neighboring inputs differ, for every candidate worst case.

    Two sets of the maximum size differ in all cells of their items, except the cells that all items
    share. A set of the maximum size differs from an empty set in all its cells. If a cell is sent
    once for every item that raises it (`repeated`), all items of a user may raise the same cell.
    """
    if epochs > 1:
        # Both cases may occur in different epochs, which is no worse than unshared cells.
        shared = 0
    ways = [row_shifts(noise, messages - shared, items, epochs)]
    if shared:
        ways.append([ShiftedCells(noise, 1, (messages - shared) * items + shared)])
    if repeated and items > 1:
        rows = messages * epochs
        ways.append([ShiftedCells(noise, shift, rows) for shift in (items, -items)])
    return ways


def stream_epsilon(
    parameters: CountMinParameters, code: CellCode, noise: CellNoiseLaw, last_epoch: int
) -> float:
    spared = parameters.delta * (1 - FOR_TABLES)
    cells, requested = noise_of_cells(noise), parameters
    return cells_epsilon(cells, code, requested.items, last_epoch, spared, requested.calibration)
