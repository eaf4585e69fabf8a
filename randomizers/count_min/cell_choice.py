"""Choose the cells that answer the queries with the least error within a message limit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from dpstream.randomizers.accounting.best_grid import best_grid, best_levels
from dpstream.randomizers.accounting.prefix_levels import plan_prefixes
from dpstream.randomizers.accounting.shuffled_oracles import poisson_for_code
from dpstream.randomizers.cell_codes.codes import CellCode
from dpstream.randomizers.cell_codes.grid import Grid
from dpstream.randomizers.cell_codes.hashed_rows import HashedRows
from dpstream.randomizers.cell_codes.kept_nodes import KeptNodes
from dpstream.randomizers.cell_codes.prefixes import PrefixCells
from dpstream.randomizers.count_min import CountMinParameters, OneSided, Queries
from dpstream.randomizers.count_min.code_noise import noise_for
from dpstream.randomizers.count_min.one_sided import allowance
from dpstream.randomizers.item_domains import Bits, Numbers, Points, Strings, domain_size
from dpstream.randomizers.row_errors import error_samples, zipf_counts

MESSAGES_PER_USER: Final = 100.0
"""Default maximum number of messages per user and epoch."""

MOST_LISTED: Final = 1 << 22
"""Size of the largest domain whose items are estimated one by one."""

_ROWS: Final = (1, 2, 3, 5, 7)
_MOST_CELLS: Final = 1 << 24
_ERROR_ITEMS: Final = 100_000


def queries_of(parameters: CountMinParameters) -> Queries:
    if parameters.queries is not None:
        return parameters.queries
    match parameters.domain:
        case Numbers() | Points():
            return "ranges"
        case Strings() | Bits():
            return "top" if domain_size(parameters.domain) > MOST_LISTED else "items"
        case _:
            return "items"


def choose_code(parameters: CountMinParameters, minimum: int) -> CellCode:
    """Return the cell code with the least predicted error, for `minimum` contributors.

    Raises `ValueError` if every code exceeds `messages_per_user`, or parameters contradict each
    other.
    """
    queries = queries_of(parameters)
    if queries != "items" and (parameters.rows or parameters.buckets):
        raise ValueError(
            f"'queries' is '{queries}'; expected 'items' because 'rows' or 'buckets' is set. "
            "Remove both, or set 'queries: items'"
        )
    if queries != "items" and isinstance(parameters.estimator, OneSided):
        raise ValueError(f"'queries' is '{queries}'; expected 'items' with a one-sided estimator")
    if queries == "items":
        return _rows(parameters, minimum)
    if queries == "top":
        return _prefixes(parameters, minimum)
    return _tree(parameters, minimum, published=queries == "published_ranges")


def affordable(parameters: CountMinParameters, code: CellCode, mean: float, minimum: int) -> bool:
    if code.cells > _MOST_CELLS:
        return False
    if parameters.dummies == "shuffle":
        return True
    allowed = parameters.messages_per_user or MESSAGES_PER_USER
    return parameters.items * code.messages + mean * code.cells / minimum <= allowed


def _rows(parameters: CountMinParameters, minimum: int) -> CellCode:
    size = domain_size(parameters.domain)
    if size > MOST_LISTED:
        raise ValueError(
            f"domain has {size:,} items; expected at most {MOST_LISTED:,} for estimates of single "
            "items. Set 'queries: top'"
        )
    total = float(minimum * parameters.items)
    counts = zipf_counts(min(size, _ERROR_ITEMS), total)
    best: tuple[float, CellCode] | None = None
    for code in _candidates(parameters, size, minimum):
        noise = noise_for(parameters, code, minimum)
        chosen = parameters.rows is not None and parameters.buckets is not None
        if not chosen and not affordable(parameters, code, noise.mean, minimum):
            continue
        if code.direct:
            # Best: fewer cells per item need less noise, and no two items share a cell.
            return code
        _, variance = noise.moments(minimum)
        samples = error_samples(counts, code.rows, code.buckets, variance)
        match parameters.estimator:
            case None:
                requested = list(samples.values())
            case OneSided(underestimated):
                added = allowance(noise, minimum, code.rows, underestimated)
                requested = [samples["min"] + added]
            case name:
                requested = [samples[name]]
        error = min(float(np.abs(each).mean()) for each in requested)
        if best is None or error < best[0]:
            best = error, code
    if best is None:
        allowed = parameters.messages_per_user or MESSAGES_PER_USER
        raise ValueError(
            f"no rows of buckets are affordable with {allowed:g} messages per user and "
            f"{minimum:,} contributors. Raise messages_per_user or the minimum, set rows and "
            "buckets, or set 'dummies: shuffle'"
        )
    return best[1]


def _candidates(parameters: CountMinParameters, size: int, minimum: int) -> Iterator[HashedRows]:
    seed = f"count_min of {size} items"
    open_rows = parameters.rows in (None, 1)
    if open_rows and (parameters.buckets is None or parameters.buckets >= size):
        yield HashedRows.histogram(size)
        if parameters.buckets is not None:
            return
    allowed = parameters.messages_per_user or MESSAGES_PER_USER
    for rows in (parameters.rows,) if parameters.rows else _ROWS:
        if parameters.buckets is not None:
            yield HashedRows(size, rows, parameters.buckets, seed)
            continue
        room = (allowed - parameters.items * rows) * minimum
        trial = HashedRows(size, rows, 1 << 10, seed)
        most = room / (noise_for(parameters, trial, minimum).mean * rows)
        if parameters.dummies == "shuffle":
            most = _MOST_CELLS / rows
        for share in (1.0, 0.5, 0.25):
            buckets = min(int(most * share), _MOST_CELLS // rows, 4 * size)
            if buckets >= 2:
                yield HashedRows(size, rows, buckets, seed)


def _prefixes(parameters: CountMinParameters, minimum: int) -> CellCode:
    if parameters.dummies != "poisson" or parameters.calibration != "exact":
        raise ValueError("'queries: top' requires 'calibration: exact' and 'dummies: poisson'")
    bits = (domain_size(parameters.domain) - 1).bit_length()
    plan = plan_prefixes(
        bits,
        minimum,
        parameters.epsilon,
        parameters.delta,
        parameters.messages_per_user or MESSAGES_PER_USER,
        parameters.items,
    )
    return PrefixCells(plan.levels, seed=f"count_min of {bits} bits")


def _tree(parameters: CountMinParameters, minimum: int, *, published: bool) -> CellCode:
    if parameters.items > 1:
        raise ValueError(f"'items' is {parameters.items}; expected 1 with 'queries: ranges'")
    match parameters.domain:
        case Points():
            sizes = parameters.domain.grid
        case Strings():
            raise ValueError(
                "'queries: ranges' does not support strings. Use a domain of numbers, or "
                "'queries: top'"
            )
        case _:
            sizes = (domain_size(parameters.domain),)
    if published:
        axes = [KeptNodes(size) for size in sizes]
        return axes[0] if len(axes) == 1 else Grid(tuple(axes))

    def mean(messages: int, shared: int) -> float:
        return poisson_for_code(
            parameters.epsilon, parameters.delta, messages, shared, parameters.items
        ).mean

    def cheap(grid: Grid, noise_mean: float) -> bool:
        return affordable(parameters, grid, noise_mean, minimum)

    if len(sizes) == 1:
        return best_levels(sizes[0], mean, cheap)
    return best_grid(sizes, mean, cheap)
