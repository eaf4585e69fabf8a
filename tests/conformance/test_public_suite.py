"""Conforming third-party protocols pass the suite, and failures are explained."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dpstream.aggregators.epoch_responses import EpochResponsesAggregator
from dpstream.pipeline.conformance import checks, running
from dpstream.pipeline.conformance.cases import Case, Stream
from dpstream.pipeline.conformance.checks import CHECKS, Check
from dpstream.pipeline.conformance.finding import cases_of, exact_law_of, find_cases
from dpstream.pipeline.conformance.running import DoesNotConformError
from dpstream.pipeline.protocols.other_packages import ProtocolError
from dpstream.pipeline.protocols.protocol import Aggregation, Example, Protocol
from dpstream.randomizers.guarantee import Guarantee
from tests.conformance.cases import CASES
from tests.support.fresh_response import (
    FreshResponse,
    FreshResponseLaw,
    FreshResponseParameters,
)
from tests.support.fresh_response.entry import PROTOCOL
from tests.support.fresh_response.exact_law import ExactLaw

WHOLE = cases_of(PROTOCOL, ExactLaw)
OURS = [case for case in CASES if str(case) in ("value_stream-0", "single_message-0")]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("case", [WHOLE[0], *OURS], ids=str)
def test_conforming_protocol_passes_all_checks(case: Case, check: Check) -> None:
    check(case)


def with_guarantee(**changed: Any) -> type[FreshResponse]:
    class Stating(FreshResponse):
        @property
        def guarantee(self) -> Guarantee:
            stated = super().guarantee
            factor = changed.get("factor", 1.0)
            return replace(stated, epsilon=stated.epsilon * factor)

    return Stating


class Changed(FreshResponse):
    def report(
        self,
        epoch: int,
        values: NDArray[np.integer] | NDArray[np.bool_],
        present: NDArray[np.bool_] | None,
        rng: np.random.Generator,
    ) -> NDArray[np.uint8]:
        before, honest = self.epoch, super().report(epoch, values, present, rng)
        self.epoch = before
        changed = self.changed(epoch, honest, values, present, rng)
        self.epoch = epoch
        return changed

    def changed(
        self,
        epoch: int,
        honest: NDArray[np.uint8],
        values: NDArray[Any],
        present: NDArray[np.bool_] | None,
        rng: np.random.Generator,
    ) -> NDArray[np.uint8]:
        return honest


class Twice(Changed):
    """Randomize each value twice, so that both reports together reveal more."""

    def changed(self, epoch, honest, values, present, rng):  # type: ignore[no-untyped-def]
        return np.concatenate([honest, FreshResponse.report(self, epoch, values, present, rng)])


class Leaking(Changed):
    """Reveal the value 1 of every tenth device."""

    def changed(self, epoch, honest, values, present, rng):  # type: ignore[no-untyped-def]
        if present is None:
            honest[(rng.random(len(honest)) < 0.1) & (values == 1)] = 1
        return honest


class Naming(Changed):
    """Sometimes send a message that is possible only with value 1."""

    def changed(self, epoch, honest, values, present, rng):  # type: ignore[no-untyped-def]
        if present is None:
            honest[(rng.random(len(honest)) < 0.02) & (values == 1)] = 7
        return honest


class Forgetting(Changed):
    """Omit randomness of reports from the state, and redraw it after a restore."""

    def changed(self, epoch, honest, values, present, rng):  # type: ignore[no-untyped-def]
        if not hasattr(self, "memo"):
            self.memo = epoch
        return honest ^ np.uint8(epoch - self.memo & 1)


class Remembering(Changed):
    """Report the values during an absence when the device returns."""

    def changed(self, epoch, honest, values, present, rng):  # type: ignore[no-untyped-def]
        held = getattr(self, "held", values)
        self.held = np.array(values)
        return FreshResponse.report(self, epoch, held, present, rng)


class Biased(EpochResponsesAggregator):
    """Overestimate every count."""

    def estimate(self, epoch: int, participation: Any) -> Any:
        estimate: Any = super().estimate(epoch, participation)
        return replace(estimate, value=estimate.value + 2 * estimate.standard_error)


class Boasting(EpochResponsesAggregator):
    """Publish standard errors that are too small."""

    def estimate(self, epoch: int, participation: Any) -> Any:
        estimate: Any = super().estimate(epoch, participation)
        return replace(estimate, standard_error=estimate.standard_error / 2)


class Gullible(EpochResponsesAggregator):
    """Accept any message."""

    def check_messages(self, epoch: int, words: Any) -> None:
        pass


class Doubling(EpochResponsesAggregator):
    """Count its own reports twice when merging."""

    def merge(self, other: Any) -> None:
        super().merge(other)
        super().merge(other)


def devices(kind: type[FreshResponse]) -> dict[str, Any]:
    return {"randomizer": kind}


def aggregating(kind: type[EpochResponsesAggregator]) -> dict[str, Any]:
    return {"aggregation": Aggregation.of(kind)}


def weak(parameters: Any, last_epoch: int, minimum: int) -> FreshResponseLaw:
    """Return a mechanism that loses half of the requested epsilon."""
    halved = FreshResponseParameters(parameters.epsilon / 2)
    law: Any = PROTOCOL.calibrate(halved, last_epoch, minimum)
    return law  # type: ignore[no-any-return]


LONG = (Example(FreshResponseParameters(1.0), 9),)


@pytest.mark.parametrize(
    ("check", "changes", "number", "message"),
    [
        (
            checks.spends_at_most_the_requested_epsilon,
            devices(with_guarantee(factor=50)),
            0,
            "states epsilon 50 for the whole stream; requested: at most 1",
        ),
        (
            checks.neighbors_stay_within_the_guarantee,
            devices(with_guarantee(factor=0.25)),
            1,
            "states epsilon 1 for the whole stream, but the values 0, 0, 0 can be "
            "distinguished from the values 0, 0, 1 by epsilon 1.333",
        ),
        (
            checks.exact_guarantees_are_attained,
            {"calibrate": weak, **devices(with_guarantee(factor=1.5))},
            0,
            "states epsilon 0.75 for the whole stream as exact, but its actual epsilon is smaller",
        ),
        (
            checks.devices_draw_by_the_exact_law,
            devices(Twice),
            0,
            "windows; its exact law rules them out",
        ),
        (
            checks.devices_draw_by_the_exact_law,
            devices(Leaking),
            0,
            "times for 100,000 devices with the values 1; the protocol",
        ),
        (
            checks.devices_draw_by_the_exact_law,
            devices(Naming),
            0,
            "sends reports 7 for the values 1 in ",
        ),
        (
            running.restored_devices_continue,
            devices(Forgetting),
            1,
            "sends different reports at epoch 2 after devices are restored; expected all",
        ),
        (
            running.absent_devices_send_nothing,
            devices(Remembering),
            1,
            "sends reports at epoch 2 that depend on devices' values during an absence",
        ),
        (
            running.intervals_contain_the_ground_truth,
            aggregating(Biased),
            0,
            "has a bias of",
        ),
        (
            running.intervals_contain_the_ground_truth,
            aggregating(Boasting),
            0,
            "publishes wrong standard errors: actual errors are",
        ),
        (
            checks.messages_are_accepted_at_their_epochs,
            aggregating(Gullible),
            0,
            "never sends reports 255, but its aggregator accepts them at epoch",
        ),
        (
            running.merging_equals_adding,
            aggregating(Doubling),
            0,
            "has a different state if reports are added in two parts, serialized and merged, than",
        ),
        (
            checks.examples_are_small,
            {"examples": LONG},
            0,
            "has an example with 9 epochs; expected 1 to",
        ),
    ],
)
def test_failed_checks_state_what_is_wrong(
    check: Check, changes: dict[str, Any], number: int, message: str
) -> None:
    protocol: Protocol = replace(PROTOCOL, **changes)
    case = cases_of(protocol, ExactLaw)[number]
    with pytest.raises(DoesNotConformError) as caught:
        check(case)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("factor", "message"),
    [
        (0.5, "whose probabilities for the values 0 sum to 1/2"),
        (0.0, "the smallest being 0; expected positive probabilities with sum 1"),
    ],
)
def test_exact_distribution_with_a_wrong_total_is_rejected(factor: float, message: str) -> None:
    class Wrong(ExactLaw):
        def views(self, stream: Stream) -> Any:
            return {view: p * int(2 * factor) / 2 for view, p in super().views(stream).items()}

    with pytest.raises(DoesNotConformError, match=message):
        checks.exact_law_sums_to_one(cases_of(PROTOCOL, Wrong)[0])


def test_reports_that_identify_a_value_with_certainty_fail_the_check() -> None:
    class Open(ExactLaw):
        def views(self, stream: Stream) -> Any:
            return {tuple(((value,),) for value in stream): 1}

    with pytest.raises(DoesNotConformError, match="from the values 1 with certainty"):
        checks.neighbors_stay_within_the_guarantee(cases_of(PROTOCOL, Open)[0])


@pytest.mark.parametrize(
    ("find", "message"),
    [
        (
            lambda: find_cases("missing"),
            "protocol missing does not exist; expected one of: .* must be installed",
        ),
        (lambda: exact_law_of("missing"), "protocol missing has no exact law"),
        (lambda: cases_of(replace(PROTOCOL, examples=()), ExactLaw), "has no examples"),
    ],
)
def test_missing_protocol_parts_are_reported(find: Callable[[], object], message: str) -> None:
    with pytest.raises(ProtocolError, match=message):
        find()


def test_built_in_protocols_use_the_installed_exact_distributions() -> None:
    (first, *_) = find_cases("future_rand")
    assert type(first.exact).__module__ == "dpstream.pipeline.conformance.laws.future_rand"


CHECK = {"case": "Case", "return": "None"}


def test_suite_contains_every_check() -> None:
    defined = {
        name
        for module in (checks, running)
        for name, found in vars(module).items()
        if getattr(found, "__annotations__", {}) == CHECK
        and not name.startswith("_")
        and found.__module__ == module.__name__
    }
    assert defined == {check.__name__ for check in CHECKS}
