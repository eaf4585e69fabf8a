"""Job file section that declares a central guarantee instead of a local epsilon.

A user's whole stream counts as one message of a locally private randomizer. If the shuffler mixes
the streams of many users, much less is revealed about each user. The local epsilon can therefore be
larger, which improves estimates. It is computed once, as the largest local epsilon that meets
the central guarantee after shuffling. A deployed job stores both guarantees. The local guarantee
also protects users whose streams are shuffled with fewer others.

If a device sends a single report for the whole stream, that report is hidden among those of its
window.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydantic import Field

from dpstream.pipeline.jobs.job_problems import JobError, Problem
from dpstream.pipeline.jobs.wording import Section
from dpstream.pipeline.protocols.late_calibration import late_function
from dpstream.pipeline.protocols.other_packages import ProtocolError
from dpstream.pipeline.protocols.protocol import Protocol
from dpstream.pipeline.protocols.registry import PROTOCOLS
from dpstream.randomizers.guarantee import ShuffledStreams
from dpstream.randomizers.item_domains import Bits, StringLength, Strings, domain_size
from dpstream.randomizers.parameter_checks import LEAST_DELTA, MOST_ITEMS

_WHOLE_STREAMS: Final = "dpstream.randomizers.accounting.whole_streams"
# Significant digits of a local epsilon, such as 5.987.
_DIGITS: Final = 4


@dataclass(frozen=True, slots=True)
class Hiding:
    """Reports among which a user's whole stream is hidden after shuffling.

    If `one_window`, a stream is a single report, hidden among those of its window. Otherwise, users
    who report in all windows hide each other. `binary` reports are randomized bits, which hide each
    other better.
    """

    one_window: bool
    binary: bool


def hiding(entry: Protocol, parameters: object) -> Hiding | None:
    if entry.loss_of_streams:
        return Hiding(one_window=False, binary=False)
    if entry.sampled is None or _leveled(parameters):
        return None
    return Hiding(one_window=True, binary=_given(parameters, "domain") is None)


def _leveled(parameters: object) -> bool:
    """Return whether a report is about a public level: of a tree of numbers, or of prefixes.

    Such a report is hidden only among the reports about its level. Their number can be below
    `shuffle.minimum`.
    """
    if _given(parameters, "buckets") is not None:
        return True
    domain = _given(parameters, "domain")
    if isinstance(domain, Mapping):
        try:
            if "bits" in domain:
                domain = Bits(domain["bits"])
            elif "strings" in domain:
                domain = Strings(StringLength(**domain["strings"]))
        except (TypeError, ValueError):
            return False  # validation of all values reports the problem
    return isinstance(domain, Bits | Strings) and domain_size(domain) > MOST_ITEMS


def _given(parameters: object, name: str) -> Any:
    if isinstance(parameters, Mapping):
        return parameters.get(name)
    return getattr(parameters, name, None)


class Central(Section):
    epsilon: float = Field(gt=0, description="a number above 0, such as 0.5")
    delta: float = Field(
        ge=LEAST_DELTA, lt=1, description=f"a number of at least {LEAST_DELTA:g} and below 1"
    )

    def promised(self, minimum: int, hidden: Hiding) -> ShuffledStreams:
        return ShuffledStreams(self.epsilon, self.delta, minimum, hidden.one_window)

    def most(self, minimum: int, hidden: Hiding) -> float:
        """Return the maximum local epsilon, rounded down to `_DIGITS` significant digits."""
        largest = late_function(_WHOLE_STREAMS, "local_loss_of_streams")
        loss: float = largest(self.epsilon, self.delta, minimum, hidden.binary)
        fine = 10.0 ** (_DIGITS - 1 - math.floor(math.log10(loss)))
        return max(self.epsilon, math.floor(loss * fine) / fine)


def with_local_epsilon(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a job file's values with the largest local epsilon that the central guarantee allows.

    An existing ``parameters.epsilon`` stays. Raises `JobError` if it exceeds the allowed maximum.
    """
    entry, stated = _entry(values), _stated(values)
    parameters, shuffle = values.get("parameters"), values.get("shuffle")
    if entry is None or stated is None or not isinstance(parameters, Mapping):
        return values
    hidden = hiding(entry, parameters)
    if hidden is None:
        raise JobError([Problem(("central",), _unable(entry, leveled=_leveled(parameters)))])
    minimum = shuffle.get("minimum") if isinstance(shuffle, Mapping) else None
    if minimum is None:
        present = "report in each window" if hidden.one_window else "are present at all epochs"
        message = (
            f"is missing: 'central' assumes that this many users {present}; "
            "expected an integer of at least 1"
        )
        raise JobError([Problem(("shuffle", "minimum"), message)])
    if type(minimum) is not int or minimum < 1:
        return values  # validation of all values reports the problem
    if hidden.one_window:
        parameters = _with_one_answer(parameters)
    if "epsilon" not in parameters:
        parameters = {"epsilon": stated.most(minimum, hidden), **parameters}
    else:
        _check(parameters["epsilon"], stated, minimum, hidden)
    return {**values, "parameters": parameters}


def _with_one_answer(parameters: Mapping[str, Any]) -> Mapping[str, Any]:
    reports = parameters.get("reports", 1)
    if reports != 1:
        message = (
            f"is {reports}; expected 1: 'central' hides a user's only report among those of its "
            "window. Remove the key"
        )
        raise JobError([Problem(("parameters", "reports"), message)])
    return {**parameters, "reports": 1}


def _check(epsilon: object, stated: Central, minimum: int, hidden: Hiding) -> None:
    if type(epsilon) not in (int, float) or not 0 < epsilon < math.inf:  # type: ignore[operator]
        return
    amplified = late_function(_WHOLE_STREAMS, "delta_of_streams")
    if amplified(epsilon, minimum, stated.epsilon, hidden.binary) > stated.delta:
        message = (
            f"is {epsilon:g}; expected at most {stated.most(minimum, hidden):g}, the local epsilon "
            f"that 'central' (epsilon {stated.epsilon:g}, delta {stated.delta:g}) allows with "
            f"{minimum:,} users. Remove the key to use this maximum"
        )
        raise JobError([Problem(("parameters", "epsilon"), message)])


def _stated(values: Mapping[str, Any]) -> Central | None:
    try:
        return Central.model_validate(values["central"], strict=False)
    except (KeyError, ValueError):
        return None


def _entry(values: Mapping[str, Any]) -> Protocol | None:
    try:
        return PROTOCOLS.get(str(values.get("protocol")))
    except ProtocolError:
        return None


def _unable(entry: Protocol, *, leveled: bool) -> str:
    able = ", ".join(
        name
        for name, each in PROTOCOLS.items()
        if hiding(each, {}) is not None and each is not entry
    )
    why = (
        "its parameters already declare the guarantee after shuffling"
        if entry.shuffling is not None
        else "it has no local epsilon for a whole stream shuffled as one message"
    )
    if leveled:
        why = (
            "a report about numbers or a large domain is hidden only among those about the same "
            "level"
        )
    return (
        f"protocol {entry.name} does not support 'central': {why}. Remove the key, or use one of "
        f"these protocols: {able}"
    )
