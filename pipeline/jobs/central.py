"""Job file section that declares a central guarantee instead of a local epsilon.

A user's whole stream counts as one message of a locally private randomizer. If the shuffler mixes
the streams of many users, much less is revealed about each user. The local epsilon can therefore be
larger, which improves estimates. It is computed once, as the largest local epsilon that meets
the central guarantee after shuffling. A deployed job stores both guarantees. The local guarantee
also protects users whose streams are shuffled with fewer others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from pydantic import Field

from dpstream.pipeline.jobs.job_problems import JobError, Problem
from dpstream.pipeline.jobs.wording import Section
from dpstream.pipeline.protocols.late_calibration import late_function
from dpstream.pipeline.protocols.other_packages import ProtocolError
from dpstream.pipeline.protocols.protocol import Protocol
from dpstream.pipeline.protocols.registry import PROTOCOLS
from dpstream.randomizers.guarantee import ShuffledStreams
from dpstream.randomizers.parameter_checks import LEAST_DELTA

# Significant digits of a local epsilon, such as 5.987.
_DIGITS: Final = 4


class Central(Section):
    """Guarantee for users who report in every window, after their streams are shuffled."""

    epsilon: float = Field(gt=0, description="a number above 0, such as 0.5")
    delta: float = Field(
        ge=LEAST_DELTA, lt=1, description=f"a number of at least {LEAST_DELTA:g} and below 1"
    )

    def promised(self, minimum: int) -> ShuffledStreams:
        return ShuffledStreams(self.epsilon, self.delta, minimum)


def with_local_epsilon(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a job file's values with the largest local epsilon that the central guarantee allows.

    An existing ``parameters.epsilon`` stays unchanged. Raises `JobError` if it exceeds the allowed
    maximum.
    """
    entry, stated = _entry(values), _stated(values)
    parameters, shuffle = values.get("parameters"), values.get("shuffle")
    if entry is None or stated is None or not isinstance(parameters, Mapping):
        return values
    if not entry.loss_of_streams:
        raise JobError([Problem(("central",), _unable(entry))])
    minimum = shuffle.get("minimum") if isinstance(shuffle, Mapping) else None
    if minimum is None:
        message = (
            "is missing: 'central' assumes that this many users are present at all epochs; "
            "expected an integer of at least 1"
        )
        raise JobError([Problem(("shuffle", "minimum"), message)])
    if type(minimum) is not int or minimum < 1:
        return values  # validation of all values reports the problem
    if "epsilon" not in parameters:
        return {**values, "parameters": {"epsilon": _most(stated, minimum), **parameters}}
    _check(parameters["epsilon"], stated, minimum)
    return values


def _check(epsilon: object, stated: Central, minimum: int) -> None:
    if type(epsilon) not in (int, float) or not 0 < epsilon < math.inf:  # type: ignore[operator]
        return
    amplified = late_function("dpstream.randomizers.accounting.whole_streams", "delta_of_streams")
    if amplified(epsilon, minimum, stated.epsilon) > stated.delta:
        message = (
            f"is {epsilon:g}; expected at most {_most(stated, minimum):g}, the local epsilon that "
            f"'central' (epsilon {stated.epsilon:g}, delta {stated.delta:g}) allows with "
            f"{minimum:,} users. Remove the key to use this maximum"
        )
        raise JobError([Problem(("parameters", "epsilon"), message)])


def _most(stated: Central, minimum: int) -> float:
    """Return the maximum local epsilon, rounded down to `_DIGITS` significant digits."""
    most = late_function("dpstream.randomizers.accounting.whole_streams", "local_loss_of_streams")
    loss: float = most(stated.epsilon, stated.delta, minimum)
    fine = 10.0 ** (_DIGITS - 1 - math.floor(math.log10(loss)))
    return max(stated.epsilon, math.floor(loss * fine) / fine)


def _stated(values: Mapping[str, Any]) -> Central | None:
    """Return the job's section `central`, or None if it is invalid; `Job` reports the problems."""
    try:
        return Central.model_validate(values["central"], strict=False)
    except (KeyError, ValueError):
        return None


def _entry(values: Mapping[str, Any]) -> Protocol | None:
    try:
        return PROTOCOLS.get(str(values.get("protocol")))
    except ProtocolError:
        return None


def _unable(entry: Protocol) -> str:
    able = ", ".join(name for name, each in PROTOCOLS.items() if each.loss_of_streams)
    why = (
        "its parameters already declare the guarantee after shuffling"
        if entry.shuffling is not None
        else "it has no local epsilon for a whole stream shuffled as one message"
    )
    if entry.sampled is not None:
        why = (
            "users are hidden among those who answer in the same epoch. With reports: 1, 'plan' "
            "states the epsilon of one answer after shuffling; choose parameters.epsilon "
            "accordingly"
        )
    return (
        f"protocol {entry.name} does not support 'central': {why}. Remove the key, or use one of "
        f"these protocols: {able}"
    )
