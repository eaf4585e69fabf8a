"""Calibrate count_min: choose its cells and their noise."""

from __future__ import annotations

from typing import Final

from dpstream.randomizers.accounting.cell_noise import noise_of_cells
from dpstream.randomizers.accounting.table_distances import FOR_TABLES, check_tables
from dpstream.randomizers.count_min import CountMinLaw, CountMinParameters
from dpstream.randomizers.count_min.cell_choice import choose_code
from dpstream.randomizers.count_min.code_noise import (
    cells_epsilon,
    noise_for,
    stream_epsilon,
)

_SEARCHED: Final = 0.999
"""If the least noise spends less than this fraction of the requested epsilon, delta requires that
noise. The guarantee then states the smaller loss."""


def calibrate(parameters: CountMinParameters, last_epoch: int, minimum: int) -> CountMinLaw:
    """Return the mechanism with the least predicted error, for at least `minimum` contributors.

    Raises `ValueError` if no noise is enough, or if a user would send too many messages.
    """
    code = choose_code(parameters, minimum)
    noise = noise_for(parameters, code, minimum, last_epoch)
    epsilon = float(parameters.epsilon)
    spent = stream_epsilon(parameters, code, noise, 1)
    if parameters.calibration == "exact" and spent < _SEARCHED * epsilon:
        epsilon = spent
    law = CountMinLaw(
        last_epoch=last_epoch,
        epsilon=epsilon,
        delta=float(parameters.delta),
        stream_epsilon=max(epsilon, stream_epsilon(parameters, code, noise, last_epoch)),
        items=parameters.items,
        code=code,
        noise=noise,
        calibration=parameters.calibration,
    )
    # The dummies of all cells are drawn together, however many cells there are.
    check_tables(law.epsilon, law.delta, [(noise, code.cells * last_epoch)], draws=last_epoch)
    allowed = parameters.messages_per_user
    if allowed is not None and law.messages_per_user > allowed:
        raise ValueError(
            f"a user would send {law.messages_per_user:,.1f} messages in an epoch; expected at "
            f"most messages_per_user, {allowed:g}. Raise it, use fewer buckets or rows, or set "
            "'dummies: shuffle'"
        )
    return law


def epsilon_with(law: CountMinLaw, honest: int) -> float:
    noise, delta = noise_of_cells(law.noise, honest), law.delta * (1 - FOR_TABLES)
    return cells_epsilon(noise, law.code, law.items, 1, delta, law.calibration)
