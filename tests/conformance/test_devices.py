"""Devices keep their draws, send nothing while absent, and use only the given generator."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dpstream.pipeline.devices.producer_store import ProducerStore
from dpstream.randomizers.counted_messages import written_out
from dpstream.randomizers.devices import Devices
from tests.conformance.cases import Case, every_case, every_counting_case

DEVICES = 300


@every_case
def test_restored_devices_send_the_same_reports_as_undisturbed_devices(
    case: Case, tmp_path: Path
) -> None:
    """Redrawing would spend the budget again; some protocols draw nothing at enrollment."""
    undisturbed, restarted, anew = (enrolled(case, seed) for seed in (1, 1, 2))
    draws = not same_arrays(snapshot(undisturbed), snapshot(anew))
    law = case.protocol.law(case.parameters).from_json(json.loads(json.dumps(case.law.to_json())))
    differences = 0
    for epoch in range(1, case.last_epoch + 1):
        drawn = snapshot(restarted)
        restarted = case.protocol.randomizer(law).restored(
            through_disk(tmp_path / "producer.sqlite3", drawn), epoch - 1
        )
        assert same_arrays(snapshot(restarted), drawn)
        assert restarted.population == undisturbed.population
        for devices in (undisturbed, restarted, anew):
            devices.enroll(10, case.generator(4, epoch))
        values = case.mixed_values(undisturbed.population)[epoch - 1]
        expected, found, other = (
            written_out(devices.report(epoch, values, None, case.generator(3, epoch)))
            for devices in (undisturbed, restarted, anew)
        )
        assert np.array_equal(found, expected)
        assert undisturbed.epoch == restarted.epoch == epoch
        differences += not np.array_equal(other, expected)
    assert bool(differences) == draws
    assert restarted.exhausted == undisturbed.exhausted


@every_case
def test_devices_accept_epochs_from_1_and_none_twice(case: Case) -> None:
    devices, values = enrolled(case, 1), case.mixed_values(DEVICES)
    for epoch in range(1, case.last_epoch + 1):
        assert devices.epoch == epoch - 1
        for wrong in {0, epoch - 1, 1 << 40}:
            with pytest.raises(ValueError, match="epoch"):
                devices.report(wrong, values[0], None, case.generator(3, 0))
        devices.report(epoch, values[epoch - 1], None, case.generator(3, epoch))


@every_case
def test_reports_are_determined_by_the_seed_of_the_generator(case: Case) -> None:
    """Where randomness is added by the shuffler, the sums are determined."""
    values = case.mixed_values(DEVICES)
    found = []
    for seed in (5, 5, 6):
        rng = case.generator(seed)
        found.append([words.tobytes() for words in case.released(case.send(values, rng), rng)])
    first, again, other = found
    assert first == again != other


@every_case
def test_absent_devices_send_nothing(case: Case) -> None:
    devices = enrolled(case, 7)
    none_present = np.zeros(DEVICES, np.bool_)
    for epoch, values in enumerate(case.mixed_values(DEVICES), start=1):
        words = written_out(devices.report(epoch, values, none_present, case.generator(8, epoch)))
        assert words.shape == (0, case.message_format.width)


@every_case
def test_values_of_absent_devices_never_affect_reports(case: Case) -> None:
    """Two populations differ only in values during absences, and have the same reports."""
    one, other = enrolled(case, 9), enrolled(case, 9)
    everywhere = 0
    indices = np.arange(DEVICES) % len(case.values)
    for epoch in range(1, case.last_epoch + 1):
        present = case.generator(10, epoch).random(DEVICES) < 0.6
        otherwise = np.where(present, indices, (indices + 1) % len(case.values))
        expected, found = (
            written_out(
                devices.report(epoch, case.array_of(which), present, case.generator(11, epoch))
            )
            for devices, which in ((one, indices), (other, otherwise))
        )
        assert np.array_equal(found, expected)
        everywhere += len(expected)
    assert everywhere


@every_counting_case
def test_invalid_values_are_rejected_without_effect(case: Case) -> None:
    devices = enrolled(case, 12)
    before, good = snapshot(devices), case.mixed_values(DEVICES)[0].astype(np.int64)
    wrong: list[NDArray[Any]] = [good[:-1], good.astype(np.float64)]
    for value in (-1, 1 << 40):
        other = good.copy()
        other.reshape(DEVICES, -1)[1, -1] = value
        wrong.append(other)
    rng = case.generator(13)
    unused = repr(rng.bit_generator.state)
    for values in wrong:
        for present in (None, np.ones(DEVICES, np.bool_)):
            with pytest.raises(ValueError, match=r"\w"):
                devices.report(1, values, present, rng)
    masks: list[NDArray[Any]] = [np.ones(DEVICES + 1, np.bool_), np.ones(DEVICES, np.int64)]
    for mask in masks:
        with pytest.raises(ValueError, match="'present' is"):
            devices.report(1, good, mask, rng)
    assert (devices.epoch, repr(rng.bit_generator.state)) == (0, unused)
    assert same_arrays(snapshot(devices), before)
    # Values of absent devices are ignored.
    absent = np.arange(DEVICES) == 1
    devices.report(1, wrong[-1], ~absent, case.generator(13))
    assert devices.epoch == 1


@every_case
def test_incomplete_state_is_rejected(case: Case) -> None:
    arrays = snapshot(enrolled(case, 14))
    for name, array in arrays.items():
        missing = {other: kept for other, kept in arrays.items() if other != name}
        more = {**arrays, "more": array}
        other = np.dtype(np.float32 if array.dtype != np.float32 else np.float64)
        for wrong in (missing, more, {**arrays, name: array.astype(other)}):
            with pytest.raises(ValueError, match=r"\w"):
                case.protocol.randomizer(case.law).restored(wrong, 0)


def enrolled(case: Case, seed: int) -> Devices[Any]:
    devices = case.protocol.randomizer(case.law)
    devices.enroll(DEVICES, case.generator(seed))
    return devices


def snapshot(devices: Devices[Any]) -> dict[str, NDArray[np.generic]]:
    return {name: array.copy() for name, array in devices.state_arrays().items()}


def same_arrays(
    one: Mapping[str, NDArray[np.generic]], other: Mapping[str, NDArray[np.generic]]
) -> bool:
    return one.keys() == other.keys() and all(
        one[name].dtype == other[name].dtype and np.array_equal(one[name], other[name])
        for name in one
    )


def through_disk(
    path: Path, arrays: Mapping[str, NDArray[np.generic]]
) -> dict[str, NDArray[np.generic]]:
    writer = ProducerStore(path)
    with writer.transaction():
        writer.save_arrays(arrays)
    writer.close()
    reader = ProducerStore(path)
    stored = reader.arrays()
    reader.close()
    return stored
