"""Records of a producer that is stopped, restarted and called again at the worst moments.

The same values and randomness are run once without faults. In all cases, the records that arrive
must be the same byte for byte: no epoch is randomized again, and no spending is lost.
"""

from __future__ import annotations

import hashlib
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dpstream.pipeline.audit.plans import job_of
from dpstream.pipeline.conformance.cases import Case
from dpstream.pipeline.devices.producer import Producer, ProducerError
from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job
from dpstream.pipeline.kafka.memory import MemoryDriver, MemoryLog
from dpstream.randomizers.randomness import seeded_generator
from tests.attacks.attacked_devices import identity
from tests.attacks.changed_values import other_values
from tests.attacks.promises import broken
from tests.support.new_jobs import new_job

_EPOCHS: Final = 4
_DEVICES: Final = 40
_MANY: Final = 200
"""Enough devices that some draws always differ."""

Sent: TypeAlias = list[tuple[str, int, bytes]]


def attack_interrupted(case: Case) -> Iterator[str]:
    epochs = _EPOCHS
    job = job_of(case, epochs=epochs, minimum=_DEVICES)
    values, others = other_values(case, epochs, _DEVICES, np.arange(_DEVICES))
    undisturbed = _sent(job, values)
    interrupted: dict[str, tuple[Callable[[], Sent], str]] = {
        "a producer restarted at every epoch sends the same reports": (
            lambda: _sent(job, values, restarted=True),
            "a restart loses the draws or the spent budget of devices",
        ),
        "an epoch that could not be stored does not affect later reports": (
            lambda: _sent(job, values, full=True),
            "later reports use the state of an epoch that could not be stored",
        ),
        "an epoch is randomized only once": (
            lambda: _sent(job, values, again=others),
            "an epoch is randomized again when its values arrive twice",
        ),
    }
    promises = {
        what: partial(_differs, undisturbed, sent, reason)
        for what, (sent, reason) in interrupted.items()
    }
    return broken(promises)


def attack_renewal() -> Iterator[str]:
    """Compare what devices have drawn in each horizon, and after they left and enrolled again."""
    followed = partial(_renewed, "future_rand", {"epsilon": 1, "max_changes": 2})
    return broken(
        {
            "devices draw fresh randomness in every horizon": followed,
            "devices are asked at the same time in every horizon": partial(
                _renewed, "sampled_response", {"epsilon": 1}
            ),
            "devices in panels are asked at the same time in every horizon": partial(
                _renewed,
                "sampled_panels",
                {"epsilon": 1, "questions": [{"name": each, "answer": "boolean"} for each in "ab"]},
                (2,),
            ),
        },
    )


def _differs(undisturbed: Sent, sent: Callable[[], Sent], reason: str) -> str:
    try:
        return "" if sent() == undisturbed else reason
    except ProducerError as error:
        return f"a producer cannot resume after an interruption: {error}"


def _sent(
    job: DeployedJob,
    values: NDArray[np.int8],
    *,
    restarted: bool = False,
    full: bool = False,
    again: NDArray[np.int8] | None = None,
) -> Sent:
    """Return the records that arrive.

    Args:
        restarted: True if the process ends after each epoch.
        full: True if the disk is full when an epoch is first closed.
        again: Other values with which every epoch is closed once more.
    """
    log = MemoryLog()
    with tempfile.TemporaryDirectory() as folder:
        state = Path(folder) / "producer" if restarted or full else None
        epoch = 0

        def opened() -> Producer:
            return Producer(
                job,
                state,
                name="attacked",
                transport=MemoryDriver(log),
                generators=_generators,
                # A failed draw leaves no ID, so the next draw of the epoch can have the same one.
                identifiers=lambda: identity("drawing", epoch),
            )

        producer = opened()
        producer.enroll([str(user) for user in range(values.shape[1])])
        for epoch in range(1, len(values) + 1):
            producer.report_all(epoch, values[epoch - 1])
            if full:
                with suppress(ProducerError):
                    producer.close_together(epoch, _no_room)
                with suppress(ProducerError, ValueError):
                    producer.close(epoch)
            else:
                producer.close(epoch)
            if restarted:
                producer.shut()
                producer = opened()
            if again is not None:
                # If the randomizer rejects the epoch, nothing is randomized, either.
                with suppress(ProducerError, ValueError):
                    producer.report_all(epoch, again[epoch - 1])
                    producer.close(epoch)
        producer.shut()
    return [
        (role.value, partition, value)
        for role, offsets in job.start_offsets.items()
        for partition in range(len(offsets))
        for value in log.values(role, partition)
    ]


def _no_room() -> None:
    raise sqlite3.OperationalError("database or disk is full")


def _generators(purpose: str, number: int) -> np.random.Generator:
    digest = hashlib.sha256(f"{purpose} {number}".encode()).digest()
    return seeded_generator(int.from_bytes(digest[:6]))


def _renewed(protocol: str, parameters: dict[str, Any], answers: tuple[int, ...] = ()) -> str:
    job = deploy_job(
        new_job("audit", protocol, parameters, count=_EPOCHS, renew=True), deployed_at=0
    )
    drawn: list[dict[str, NDArray[Any]]] = []
    for _ in range(2):
        producer = Producer(job, None, name="attacked", transport=MemoryDriver(MemoryLog()))
        producer.enroll([str(user) for user in range(_MANY)])
        drawn.append(producer.store.arrays())
        producer.shut()
    of_chance = [name for name, array in drawn[0].items() if (array != drawn[1][name]).any()]
    lasting = job.randomizer().lasting
    producer = Producer(job, None, name="attacked", transport=MemoryDriver(MemoryLog()))
    producer.enroll([str(user) for user in range(_MANY)])
    horizons: list[dict[str, NDArray[Any]]] = []
    for epoch in range(1, 2 * _EPOCHS + 2):
        producer.report_all(epoch, np.full((_MANY, *answers), epoch % 2))
        producer.close(epoch)
        if epoch % _EPOCHS == 1:
            horizons.append(producer.store.arrays())
    for name in of_chance:
        different = len({horizon[name].tobytes() for horizon in horizons})
        if name in lasting and different > 1:
            return f"a horizon draws the {name} of a user again"
        if name not in lasting and different < len(horizons):
            return f"a horizon reuses the {name} of the previous one"
    # The first half leaves, and enrolls again after the other half.
    producer.withdraw([str(user) for user in range(_MANY // 2)])
    producer.report_all(3 * _EPOCHS + 1, np.zeros((_MANY, *answers), np.int64))
    producer.close(3 * _EPOCHS + 1)
    producer.enroll([str(user) for user in range(_MANY // 2)])
    arrays = producer.store.arrays()
    producer.shut()
    for name in lasting:
        if (np.roll(arrays[name], _MANY // 2) != horizons[0][name]).any():
            return f"the {name} of a user who enrolls again is drawn again"
    return "" if of_chance else "devices draw nothing at enrollment"
