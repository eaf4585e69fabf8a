"""Validate the values that devices receive at an epoch."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def check_epoch(epoch: int, *, after: int, last_epoch: int) -> None:
    if not after < epoch <= last_epoch:
        raise ValueError(
            f"epoch {epoch} is out of range; expected an epoch after {after} (the last one "
            f"reported) and at most {last_epoch} (the last one of the horizon)"
        )


def checked_booleans(
    epoch: int,
    values: NDArray[np.integer] | NDArray[np.bool_],
    present: NDArray[np.bool_] | None,
    population: int,
) -> NDArray[np.int8]:
    """Return the values as int8; those of absent devices are unchecked.

    Raises `ValueError` if an array has the wrong shape or dtype, or a value is neither 0 nor 1.
    """
    if values.shape != (population,):
        raise ValueError(
            f"'values' has shape {values.shape}; expected ({population},), one value per device"
        )
    if values.dtype.kind not in "biu":
        raise ValueError(f"'values' has dtype {values.dtype}; expected integers or bool")
    reject_wrong(epoch, values, (values >> 1).astype(np.bool_), present, "0 or 1")
    return values.astype(np.int8, copy=False)


def check_items(
    epoch: int,
    values: NDArray[np.integer] | NDArray[np.bool_],
    present: NDArray[np.bool_] | None,
    population: int,
    items: int,
) -> None:
    """Raise `ValueError` unless present devices have an item from 1 to `items`, or 0 for none."""
    allowed = "0 or 1" if items == 1 else f"1 to {items}, or 0 for no item"
    _check_up_to(epoch, values, present, population, items, allowed)


def checked_positions(
    epoch: int,
    values: NDArray[np.integer] | NDArray[np.bool_],
    present: NDArray[np.bool_] | None,
    population: int,
    largest: int,
) -> NDArray[np.int64]:
    """Return the values as int64; raise `ValueError` unless those of present devices fit.

    Arguments are those of `checked_booleans`; values are from 0 to `largest`.
    """
    _check_up_to(epoch, values, present, population, largest, f"0 to {largest}")
    return values.astype(np.int64, copy=False)


def _check_up_to(
    epoch: int,
    values: NDArray[np.integer] | NDArray[np.bool_],
    present: NDArray[np.bool_] | None,
    population: int,
    largest: int,
    allowed: str,
) -> None:
    if values.shape != (population,):
        raise ValueError(
            f"'values' has shape {values.shape}; expected ({population},), one value per device"
        )
    if values.dtype.kind not in "biu":
        raise ValueError(f"'values' has dtype {values.dtype}; expected integers")
    reject_wrong(epoch, values, (values < 0) | (values > largest), present, allowed)


def reject_wrong(
    epoch: int,
    values: NDArray[np.integer] | NDArray[np.bool_],
    wrong: NDArray[np.bool_],
    present: NDArray[np.bool_] | None,
    allowed: str,
) -> None:
    """Raise `ValueError` if a present device has a value marked in `wrong`.

    All arrays have shape (population,). `allowed` describes the valid values.
    """
    if present is not None:
        if present.shape != values.shape or present.dtype != np.bool_:
            raise ValueError(
                f"'present' is {present.dtype} of shape {present.shape}; expected bool of shape "
                f"{values.shape}"
            )
        wrong = wrong & present
    if wrong.any():
        device = int(wrong.argmax())
        raise ValueError(
            f"device {device} has value {values[device]} at epoch {epoch}; expected {allowed}"
        )
