"""Run one device, from a protocol name and its mechanism as JSON; needs only numpy.

The protocol name and the mechanism's constants, as in a job description, suffice to run a device.
The modules of a protocol are imported on demand. The state is JSON too, and the same as in
`randomizers/javascript`: a device can continue in the other language.

>>> law = {"items": 9, "slots": 1, "response": "randomized_response", "minimum": 1}
>>> law |= {"last_epoch": 3, "odds": {"weights": [[1, "1000000000"], [1, "1"]]}}
>>> law |= {"epsilon": 1, "delta": 0.1, "stream_epsilon": 3}
>>> import os
>>> device = OneDevice("single_message", law)
>>> device.enroll(os.urandom)
>>> device.report(1, [7], os.urandom).tolist()
[[7]]
>>> OneDevice.restore("single_message", law, device.state()).epoch
1
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from dpstream.randomizers.byte_generator import ReadBytes, byte_randomness
from dpstream.randomizers.counted_messages import written_out
from dpstream.randomizers.devices import Devices


@dataclass(frozen=True, slots=True)
class _DeviceKind:
    """A mechanism of a protocol, identified by the constant `mark`, and its devices."""

    package: str
    law: str
    devices: str
    mark: str
    devices_package: str = ""
    sets: bool = False

    def law_class(self) -> Any:
        return getattr(import_module(f"dpstream.randomizers.{self.package}"), self.law)

    def devices_class(self) -> Any:
        package = self.devices_package or self.package
        return getattr(import_module(f"dpstream.randomizers.{package}"), self.devices)


_PANELS: Final = _DeviceKind("panels", "PanelsLaw", "PanelDevices", "questions", sets=True)
_KINDS: Final[Mapping[str, tuple[_DeviceKind, ...]]] = {
    "future_rand": (_DeviceKind("future_rand", "FutureRandLaw", "FutureRand", "order_weights"),),
    "value_stream": (_DeviceKind("value_stream", "ValueStreamLaw", "ValueStream", "theta"),),
    "hadamard_values": (
        _DeviceKind(
            "value_stream.hadamard_values", "HadamardValuesLaw", "HadamardValues", "booleans"
        ),
    ),
    "range_values": (
        _DeviceKind("value_stream.range_values", "RangeValuesLaw", "RangeValues", "level_weights"),
    ),
    "panels": (_PANELS,),
    "sampled_panels": (
        _DeviceKind("panels", "PanelsLaw", "SampledPanelDevices", "questions", sets=True),
    ),
    "shuffled_panels": (_PANELS,),
    "count_min": (_DeviceKind("count_min", "CountMinLaw", "CountMin", "code", sets=True),),
    "single_message": (
        _DeviceKind("single_message", "SingleMessageLaw", "SingleMessage", "odds", sets=True),
    ),
    "shuffled_counts": (
        _DeviceKind(
            "shuffled_counts.shuffled_value_stream",
            "ShuffledValueStreamLaw",
            "ShuffledValueStream",
            "squared_norm_budget",
        ),
        _DeviceKind(
            "shuffled_counts.shuffled_item_counts",
            "ShuffledItemCountsLaw",
            "ShuffledItemCounts",
            "buckets",
        ),
        _DeviceKind(
            "shuffled_counts.shuffled_level_counts",
            "ShuffledLevelCountsLaw",
            "ShuffledItemCounts",
            "levels",
            devices_package="shuffled_counts.shuffled_item_counts",
        ),
        _DeviceKind("shuffled_counts", "ShuffledCountsLaw", "ShuffledCounts", "noise"),
    ),
    "sampled_response": (
        _DeviceKind("sampled_response", "SampledResponseLaw", "SampledResponse", "flips"),
        _DeviceKind(
            "sampled_response.leveled_response", "LeveledResponseLaw", "LeveledResponse", "code"
        ),
    ),
}

PROTOCOLS: Final = tuple(_KINDS)


_MOST = 1 << 62


class OneDevice:
    """A population of one, with plain values as input and output.

    `law` contains the constants of the job, as JSON values. Raises `ValueError` if the protocol
    does not support single devices, or `law` is not a mechanism of the protocol.
    """

    def __init__(self, protocol: str, law: Mapping[str, Any]) -> None:
        kind = _kind_of(protocol, law)
        self._class: type[Devices[Any]] = kind.devices_class()
        self._law = kind.law_class().from_json(law)
        self._sets = kind.sets or getattr(self._law, "slots", 1) > 1
        self._devices: Devices[Any] = self._class(self._law)

    @property
    def epoch(self) -> int:
        return self._devices.epoch

    @property
    def devices(self) -> Devices[Any]:
        return self._devices

    def enroll(self, read: ReadBytes, group: int | None = None) -> None:
        """Draw the device's permanent randomness, once; raise `ValueError` if already enrolled.

        `read` is cryptographic randomness, such as `os.urandom`; use anything else in tests only.
        `group` is the number of the device's public group, from 0, in jobs with groups.
        """
        if self._devices.population:
            raise ValueError(
                "the device is already enrolled: enrolling again would cost privacy again"
            )
        self._devices.enroll(1, byte_randomness(read), _given(group))

    def report(
        self, epoch: int, value: int | bool | Sequence[int], read: ReadBytes
    ) -> NDArray[np.unsignedinteger]:
        """Randomize a value and return the messages due; the device is absent in skipped epochs.

        A value is 0 or 1; an item numbered from 1, or 0 for none; a set of items as a sequence, if
        the mechanism has slots for several; or, with panels, the answers to all questions as a
        sequence. Messages are unsigned, shape (messages, width), in ascending order. Raises
        `ValueError` if the device is not enrolled, or the epoch or value is invalid; the state is
        then unchanged.
        """
        if not self._devices.population:
            raise ValueError("the device is not enrolled: call enroll once, before reporting")
        if not _is_value(epoch):
            raise ValueError(f"epoch is {epoch!r}; expected an integer from 1 to 2^62 - 1")
        values = self._values(value)
        words = written_out(self._devices.report(epoch, values, None, byte_randomness(read)))
        return words[np.lexsort(words.T[::-1])]

    def state(self) -> dict[str, Any]:
        """Return all state; store it and keep it secret. Array bytes are base64, in C order."""
        arrays = {
            name: {
                "dtype": array.dtype.str,
                "shape": list(array.shape),
                "data": base64.b64encode(array.tobytes()).decode(),
            }
            for name, array in self._devices.state_arrays().items()
        }
        return {"epoch": self.epoch, "arrays": arrays}

    @classmethod
    def restore(cls, protocol: str, law: Mapping[str, Any], state: Mapping[str, Any]) -> Self:
        """Restore a device from `state`; enrolling it again would spend privacy again."""
        device = cls(protocol, law)
        try:
            arrays = {name: _array(body) for name, body in state["arrays"].items()}
            epoch = state["epoch"]
            if type(epoch) is not int or epoch < 0:
                raise ValueError(f"epoch is {epoch!r}; expected an integer of at least 0")
            device._devices = device._class.restore(device._law, arrays, epoch)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            why = str(error) if isinstance(error, ValueError) else repr(error)
            raise ValueError(f"invalid state of a {protocol} device: {why}") from error
        if device._devices.population != 1:
            raise ValueError(f"expected the state of 1 device, got {device._devices.population}")
        return device

    @classmethod
    def renewed(
        cls,
        protocol: str,
        law: Mapping[str, Any],
        state: Mapping[str, Any],
        read: ReadBytes,
        group: int | None = None,
    ) -> Self:
        """Draw randomness for another horizon, keeping what never changes in an earlier `state`.

        `read` and `group` are as in `enroll`; by default the group is kept. Raises `ValueError` if
        `state` is invalid.
        """
        earlier = cls.restore(protocol, law, state).devices
        arrays = earlier.state_arrays()
        device = cls(protocol, law)
        kept = {**{name: arrays[name] for name in earlier.lasting}, **_given(group)}
        device._devices.enroll(1, byte_randomness(read), kept)
        return device

    def _values(self, value: int | bool | Sequence[int]) -> NDArray[Any]:
        given = list(value) if self._sets and isinstance(value, Sequence) else [value]
        if self._sets != isinstance(value, Sequence) or not all(map(_is_value, given)):
            allowed = "a list of items" if self._sets else "an integer"
            raise ValueError(f"value is {value!r}; expected {allowed} from 0 to 2^62 - 1")
        return np.array([given] if self._sets else given, np.int64)


def _kind_of(protocol: str, law: Mapping[str, Any]) -> _DeviceKind:
    if protocol not in _KINDS:
        known = ", ".join(PROTOCOLS)
        raise ValueError(
            f"protocol {protocol!r} does not support single devices; expected one of: {known}"
        )
    for kind in _KINDS[protocol]:
        if isinstance(law, Mapping) and kind.mark in law:
            return kind
    raise ValueError(f"invalid constants for {protocol}: the mechanism is unknown")


def _given(group: int | None) -> dict[str, NDArray[Any]]:
    return {} if group is None else {"group": np.array([group])}


def _is_value(each: object) -> bool:
    return isinstance(each, int) and 0 <= each < _MOST


def _array(body: Mapping[str, Any]) -> NDArray[Any]:
    data = base64.b64decode(body["data"], validate=True)
    return np.frombuffer(data, np.dtype(body["dtype"])).reshape(body["shape"])
