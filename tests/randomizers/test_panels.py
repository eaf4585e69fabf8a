"""Test panels: parameters, rows of the results, public draws, and messages of devices."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from dpstream.randomizers.panels import (
    ONE,
    PanelDevices,
    PanelGroup,
    PanelQuestion,
    PanelsLaw,
    PanelsParameters,
    SampledPanelDevices,
    SampledPanelsParameters,
    unasked,
)
from dpstream.randomizers.panels.calibration import calibrate, calibrate_sampled
from dpstream.randomizers.randomness import seeded_generator
from dpstream.randomizers.value_stream import ValueStream, ValueStreamLaw
from dpstream.randomizers.value_stream.hadamard_values import HadamardValuesLaw

FALSE_ALARM = 1e-12
EPOCHS = 4
WAU, MAU = PanelQuestion("wau", "boolean"), PanelQuestion("mau", "boolean", share=3)
SPENT = PanelQuestion("spent", "mean", 0, 80)
SIZE = PanelQuestion("size", "labels", labels=("S", "M", "L"))
PLANS = tuple(f"wau={yes},plan={plan}" for yes in ("no", "yes") for plan in ("free", "pro"))
BY_PLAN = PanelQuestion("wau", "labels", labels=PLANS, by=("plan",))
GROUPS = tuple(
    PanelGroup({"os": os, "arm": arm}) for os in ("ios", "web", "other") for arm in ("A", "B")
)
BOOLEANS = PanelsParameters(2.0, 2, (WAU, MAU), GROUPS, (("os",), ("os", "arm")))
EVERYTHING = PanelsParameters(2.0, 2, (WAU, SPENT, SIZE))


def enrolled(law: PanelsLaw, count: int, seed: int = 1) -> PanelDevices:
    devices = PanelDevices(law)
    devices.enroll(count, seeded_generator(seed), {"group": np.arange(count) % law.groups})
    return devices


def some_answers(law: PanelsLaw, count: int, seed: int) -> NDArray[np.int64]:
    largest = [question.largest + 1 for question in law.questions]
    return np.random.default_rng(seed).integers(0, largest, (count, len(largest)))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"questions": ()}, "questions is empty"),
        ({"questions": (WAU, WAU)}, "questions: 'wau' occurs twice"),
        ({"by": (("plan",),)}, r"by: \['plan'\] is not a list of public attributes"),
        ({"by": ((),)}, "by: .* expected some of"),
        ({"by": (("os", "os"),)}, "by: 'os' occurs twice"),
        ({"groups": (*GROUPS, PanelGroup({"os": "tv"}))}, "groups: 'os=tv' has other attributes"),
        ({"groups": (*GROUPS, GROUPS[0])}, "groups: 'os=ios, arm=A' occurs twice"),
        ({"by_minimum": 0}, "by_minimum is 0"),
        ({"max_changes": 0}, "max_changes is 0"),
        ({"questions": (replace(BY_PLAN, by=("plan",)), SPENT), "by": ()}, None),
        (
            {
                "questions": tuple(PanelQuestion(f"q{at}", "boolean") for at in range(128)),
                "groups": GROUPS[:2],
                "by": (),
            },
            "groups: 128 questions in 2 groups make 256 panels; expected at most 255",
        ),
    ],
)
def test_parameters_that_cannot_be_are_rejected(
    changed: dict[str, Any], message: str | None
) -> None:
    if message is None:
        replace(BOOLEANS, **changed)
        return
    with pytest.raises(ValueError, match=message):
        replace(BOOLEANS, **changed)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"name": ""}, "name: got ''"),
        ({"answer": "number"}, "'answer' is 'number'"),
        ({"share": 0}, "share is 0"),
        ({"low": 0.0, "high": 1.0}, "low and high are for a mean"),
        ({"answer": "mean", "low": 1, "high": 1}, "low is 1 and high is 1; expected low < high"),
        ({"answer": "mean", "low": 0, "high": float("inf")}, "high is inf"),
        ({"answer": "labels", "labels": ("a",)}, "expected 2 to 4,096"),
        ({"labels": ("a", "b")}, "labels and by are for answer 'labels'"),
        ({"answer": "labels", "labels": ("wau=a", "wau=b"), "by": ("plan",)}, "labels has 'wau=a'"),
    ],
)
def test_questions_that_cannot_be_are_rejected(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(WAU, **changed)


def test_rows_are_totals_then_the_cells_of_each_breakdown() -> None:
    rows = replace(BOOLEANS, questions=(WAU, BY_PLAN, SIZE), by=(("os",),)).rows
    assert [row.label for row in rows] == [
        *("wau", "wau: os=ios", "wau: os=web", "wau: os=other"),
        *("wau=no: plan=free", "wau=no: plan=pro", "wau: plan=free", "wau: plan=pro"),
        *("wau=no: os=ios, plan=free", "wau=no: os=ios, plan=pro"),
        *("wau: os=ios, plan=free", "wau: os=ios, plan=pro"),
        *("wau=no: os=web, plan=free", "wau=no: os=web, plan=pro"),
        *("wau: os=web, plan=free", "wau: os=web, plan=pro"),
        *("wau=no: os=other, plan=free", "wau=no: os=other, plan=pro"),
        *("wau: os=other, plan=free", "wau: os=other, plan=pro"),
        *("size=S", "size=M", "size=L"),
        *(f"size={label}: os={os}" for os in ("ios", "web", "other") for label in "SML"),
    ]
    assert rows[2].groups == (2, 3)
    assert rows[0].groups == tuple(range(6))
    assert (rows[11].measure, rows[11].value, rows[11].attributes) == (
        *("wau", None),
        {"os": "ios", "plan": "pro"},
    )


def test_every_question_has_all_of_epsilon_and_changes_count_from_nothing_on() -> None:
    law = calibrate(EVERYTHING, EPOCHS)
    booleans, mean, labels = (question.law for question in law.questions)
    assert isinstance(booleans, ValueStreamLaw)
    assert booleans == mean
    assert (booleans.epsilon, booleans.max_changes) == (2.0, 2)
    assert isinstance(labels, HadamardValuesLaw)
    assert (labels.booleans.epsilon, labels.max_changes) == (2.0, 2)
    assert PanelsLaw.from_json(json.loads(json.dumps(law.to_json()))) == law
    assert PanelDevices(law).guarantee.epsilon == 2.0


def test_messages_start_with_the_number_of_group_and_question() -> None:
    law = calibrate(BOOLEANS, EPOCHS)
    devices = enrolled(law, 6_000)
    words = devices.report(1, some_answers(law, 6_000, 1), None, seeded_generator(2))
    assert (words.dtype.str, words.shape) == ("<u2", (6_000, 1))
    counts = np.bincount(words[:, 0] >> 8, minlength=14)
    assert (counts[0], counts[13]) == (0, 0)
    # One device in four is asked the first question, in each of the groups of 1,000.
    asked = counts[1:13].reshape(6, 2)
    assert (asked.sum(axis=1) == 1_000).all()
    assert (stats.binom.cdf(asked[:, 0], 1_000, 0.25) > FALSE_ALARM).all()
    assert (stats.binom.sf(asked[:, 0], 1_000, 0.25) > FALSE_ALARM).all()
    place = devices.due(1)
    question = devices.state_arrays()["question"][place].astype(np.intp)
    assert (words[:, 0] >> 8 == 2 * (place % 6) + question).all()


@pytest.mark.parametrize(
    ("questions", "dtype"),
    [
        ((WAU,), np.uint8),
        ((SPENT,), np.uint8),
        ((SIZE,), np.uint32),
        ((WAU, SIZE), np.uint32),
        ((WAU, SPENT), np.uint16),
    ],
)
def test_single_panel_sends_the_message_of_its_mechanism(
    questions: tuple[PanelQuestion, ...], dtype: type[np.unsignedinteger]
) -> None:
    law = calibrate(PanelsParameters(2.0, 2, questions), EPOCHS)
    words = enrolled(law, 100).report(1, some_answers(law, 100, 1), None, seeded_generator(2))
    assert words.dtype == law.message_format.dtype == dtype
    if questions == (WAU,):
        inner, rng = ValueStream(law.questions[0].law), seeded_generator(1)  # type: ignore[arg-type]
        rng.integers(0, 1 << 64, 100, dtype=np.uint64)  # The draw of the only question.
        inner.enroll(100, rng)
        answers = some_answers(law, 100, 1)[:, 0]
        assert (words == inner.report(1, answers, None, seeded_generator(2))).all()


def test_everything_but_the_answer_to_the_own_question_leaves_reports_unchanged() -> None:
    law = calibrate(replace(EVERYTHING, groups=GROUPS), EPOCHS)
    one, other = enrolled(law, 900), enrolled(law, 900)
    question = one.state_arrays()["question"].astype(np.intp) - 1
    own = np.arange(3) == question[:, None]
    for epoch in range(1, EPOCHS + 1):
        answers = some_answers(law, 900, epoch)
        changed = np.where(own, answers, some_answers(law, 900, 50 + epoch))
        assert (changed != answers).any()
        words = one.report(epoch, answers, None, seeded_generator(epoch))
        assert np.array_equal(words, other.report(epoch, changed, None, seeded_generator(epoch)))
    for name, array in one.state_arrays().items():
        assert np.array_equal(array, other.state_arrays()[name])


def test_group_question_and_threshold_never_change() -> None:
    law = calibrate(replace(EVERYTHING, groups=GROUPS), EPOCHS)
    devices = enrolled(law, 900)
    names = ("group", "question", "threshold")
    before = {name: devices.state_arrays()[name].copy() for name in names}
    for epoch in range(1, EPOCHS + 1):
        devices.report(epoch, some_answers(law, 900, epoch), None, seeded_generator(epoch))
    assert all(np.array_equal(devices.state_arrays()[name], before[name]) for name in names)


def test_threshold_is_uniform_and_gives_the_expected_share_of_yes() -> None:
    law = calibrate(PanelsParameters(2.0, 2, (SPENT,)), EPOCHS)
    thresholds = enrolled(law, 50_000).state_arrays()["threshold"].astype(np.float64) / ONE
    assert stats.kstest(thresholds, "uniform").pvalue > FALSE_ALARM
    tracked = enrolled(law, 50_000)
    tracked.report(1, np.full((50_000, 1), ONE // 5), None, seeded_generator(1))
    ones = int((tracked.state_arrays()["value"] == 1).sum())
    assert stats.binomtest(ones, 50_000, 0.2).pvalue > FALSE_ALARM


def test_number_that_stays_is_compared_with_the_same_threshold_at_all_epochs() -> None:
    devices = enrolled(calibrate(PanelsParameters(2.0, 2, (SPENT,)), EPOCHS), 1_000)
    for epoch in range(1, EPOCHS + 1):
        devices.report(epoch, np.full((1_000, 1), ONE // 2), None, seeded_generator(epoch))
    assert np.unique(devices.state_arrays()["changes"]).tolist() == [0, 1]


@pytest.mark.parametrize(("answer", "yes"), [(0, 0), (ONE, 100)])
def test_ends_of_a_range_are_certain(answer: int, yes: int) -> None:
    devices = enrolled(calibrate(PanelsParameters(2.0, 2, (SPENT,)), EPOCHS), 100)
    devices.report(1, np.full((100, 1), answer), None, seeded_generator(1))
    assert int((devices.state_arrays()["value"] == 1).sum()) == yes


def test_devices_need_a_group_that_exists() -> None:
    devices = PanelDevices(calibrate(BOOLEANS, EPOCHS))
    with pytest.raises(ValueError, match="devices have no group; expected a number from 0 to 5"):
        devices.enroll(3, seeded_generator(1))
    for groups in (np.array([0, 1, 6]), np.array([0, 1])):
        with pytest.raises(ValueError, match=r"expected \(3,\), with numbers from 0 to 5"):
            devices.enroll(3, seeded_generator(1), {"group": groups})
    assert devices.population == 0


@pytest.mark.parametrize(
    ("place", "answer", "expected"),
    [(0, 2, "0 to 1"), (1, ONE + 1, "0 to 4294967296"), (2, 4, "0 to 3"), (2, -1, "0 to 3")],
)
def test_answers_out_of_range_are_rejected(place: int, answer: int, expected: str) -> None:
    devices = enrolled(calibrate(EVERYTHING, EPOCHS), 3)
    answers = np.zeros((3, 3), np.int64)
    answers[1, place] = answer
    with pytest.raises(ValueError, match=f"device 1 has value {answer} at epoch 1; .*{expected}"):
        devices.report(1, answers, None, seeded_generator(1))
    with pytest.raises(ValueError, match=r"expected integers of shape \(3, 3\)"):
        devices.report(1, answers[:, :2], None, seeded_generator(1))


SAMPLED = SampledPanelsParameters(2.0, (WAU, SPENT, SIZE), GROUPS[:2], reports=1)


def test_sampled_devices_answer_once_in_a_horizon() -> None:
    law = calibrate_sampled(SAMPLED, EPOCHS)
    devices = SampledPanelDevices(law)
    devices.enroll(1_200, seeded_generator(1), {"group": np.arange(1_200) % 2})
    points = np.array([unasked(question.law) for question in law.questions])  # type: ignore[arg-type]
    answered = np.zeros(1_200, np.int64)
    for epoch in range(1, EPOCHS + 1):
        present = np.arange(1_200) % 5 > 0
        answers = some_answers(law, 1_200, epoch)
        words = devices.report(epoch, answers, present, seeded_generator(epoch))[:, 0]
        # Devices report in the order of `due`, in the panel of their group and question.
        place = devices.due(epoch)[present[devices.due(epoch)]]
        question = devices.state_arrays()["question"][place].astype(np.intp)
        assert (words >> law.shift == 3 * (place % 2) + question).all()
        asked = (words & ((1 << law.shift) - 1)) < points[question - 1]
        phase = devices.state_arrays()["phase"][place]
        assert np.array_equal(asked, phase == epoch - 1)
        answered[place] += asked
    assert set(answered[np.arange(1_200) % 5 > 0]) == {1}


def test_phases_last_and_questions_are_drawn_again() -> None:
    law = calibrate_sampled(SAMPLED, EPOCHS)
    earlier, later = SampledPanelDevices(law), SampledPanelDevices(law)
    assert earlier.rolling is not None
    assert (earlier.rolling.epochs, earlier.rolling.epsilon) == (EPOCHS, earlier.guarantee.epsilon)
    earlier.enroll(600, seeded_generator(1), {"group": np.arange(600) % 2})
    kept = {name: earlier.state_arrays()[name] for name in earlier.lasting}
    assert set(kept) == {"group", "phase"}
    for start in (0, 300):
        part = {name: values[start : start + 300] for name, values in kept.items()}
        later.enroll(300, seeded_generator(2 + start), part)
    arrays = later.state_arrays()
    assert all(np.array_equal(arrays[name], values) for name, values in kept.items())
    assert not np.array_equal(arrays["question"], earlier.state_arrays()["question"])
    twice = calibrate_sampled(replace(SAMPLED, reports=2), EPOCHS)
    assert SampledPanelDevices(twice).rolling is None


def test_panels_of_different_kinds_are_rejected() -> None:
    sampled, followed = calibrate_sampled(SAMPLED, EPOCHS), calibrate(EVERYTHING, EPOCHS)
    assert PanelsLaw.from_json(json.loads(json.dumps(sampled.to_json()))) == sampled
    with pytest.raises(ValueError, match="questions are sampled and followed"):
        PanelsLaw(1, (sampled.questions[0], followed.questions[1]))
    with pytest.raises(ValueError, match="constants of another answer"):
        replace(sampled.questions[0], law=sampled.questions[2].law)
