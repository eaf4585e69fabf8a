"""Test a device in a job: every event that the package docstring lists."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.descriptions import described, restated
from dpstream.randomizers.client import (
    ClosedError,
    Device,
    DeviceError,
    Limit,
    LimitError,
    NotJoinedError,
    ServerResponse,
    StatementError,
    StoreError,
    UnreachableError,
    ValueRejectedError,
    steps,
)
from dpstream.randomizers.client.account import Account
from dpstream.randomizers.client.document import Document, Membership, Waiting
from dpstream.randomizers.client.statements import Statement, read_statement, signed_statement
from dpstream.randomizers.client.steps import (
    LAST_MOMENT,
    MOST_WAITING,
    sealing_info,
)
from dpstream.randomizers.client.terms import terms_of
from dpstream.topics.envelopes import decode_body
from dpstream.topics.sealing import device_context, key_id, unseal
from tests.randomizers.client.conftest import Phone
from tests.randomizers.javascript.client_vectors import JOBS
from tests.support.small_collector import (
    ASKED,
    DAY,
    OPERATOR,
    SETS,
    SIGNER,
    START,
    STREAM,
    SmallCollector,
    deployed,
    problem,
)

MakePhone = Callable[..., Phone]


def bodies(phone: Phone) -> list[bytes]:
    return [body for method, _, _, body in phone.collector.requests if method == "POST"]


def document(phone: Phone) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(phone.store.text)
    return read


def test_device_joins_once_and_reports_once_per_epoch(phone: Phone) -> None:
    device = phone.joined()
    first, second = device.report(True), device.report(False)
    assert (first.epoch, first.drawn, first.sending.waiting) == (1, True, 0)
    assert (second.epoch, second.drawn) == (1, False)
    phone.start().join()
    assert len(bodies(phone)) == 1
    assert str(device.account()) == (
        "population logins: epsilon 1 spent, epsilon 100, delta 0.001 allowed\n"
        "  job logins, deployment 00000000: epsilon 1"
    )


def test_only_the_first_report_of_a_horizon_enrolls_the_device(phone: Phone) -> None:
    device = phone.joined()
    enrolls, devices = [], set()
    for day in range(6):
        phone.collector.dead = day == 0
        device.report(True)
        phone.wait(DAY)
    for body in bodies(phone)[1:]:
        envelopes = decode_body(body)
        enrolls.append((envelopes.epoch, bool(envelopes.enrolls[0])))
        devices.add(envelopes.devices.tobytes())
    # The first epoch's envelope is late when the server returns, but remains the only one that
    # enrolls: a second one would link the two epochs. The second horizon starts at epoch 5.
    assert enrolls == [(1, True), (2, False), (3, False), (4, False), (5, True), (6, False)]
    assert len(devices) == 1
    assert str(device.account().entries[0]) == "job logins, deployment 00000000: 2 x epsilon 1"


def asked(phone: Phone) -> tuple[list[tuple[int, int]], list[int]]:
    """Return epochs and numbers of messages of acknowledged reports, and epochs of enrollments."""
    form = phone.collector.job.content_format
    reports = [
        (epoch, int(form.unpack(decode_body(body).contents)[1][0]))
        for (epoch, _), body in sorted(phone.collector.taken.items())
    ]
    return reports, sorted(epoch for epoch, _ in phone.collector.enrolled)


def test_device_that_answers_later_enrolls_at_once_and_reports_at_every_epoch(
    make_phone: MakePhone,
) -> None:
    phone = make_phone({"values": ASKED})
    device = phone.joined()
    assert asked(phone) == ([], [1])
    for _ in range(8):
        device.report(True)
        device.report(False)
        phone.wait(DAY)
    reports, enrollments = asked(phone)
    assert [epoch for epoch, _ in reports] == list(range(1, 9))
    assert [sum(count for _, count in reports[at : at + 4]) for at in (0, 4)] == [1, 1]
    first, second = (epoch for epoch, count in reports if count)
    assert second == first + 4
    assert enrollments == [1, 5]
    assert len({len(body) for body in bodies(phone)}) == 1
    assert len(bodies(phone)) == 10
    assert str(device.account().entries[0]).endswith("2 x epsilon 1")


def test_device_that_answers_later_sends_no_report_before_it_is_enrolled(
    make_phone: MakePhone,
) -> None:
    phone = make_phone({"values": ASKED})
    device = phone.start()
    terms = device.terms()
    phone.collector.dead = True
    device.join(terms)
    device.report(True)
    phone.wait(DAY)
    device.report(True)
    # Without an acknowledged enrollment, no report is sent.
    assert len(set(bodies(phone))) == 1
    phone.collector.dead = False
    phone.wait(DAY // 2)
    phone.start().send()
    # The first epoch is over, with its enrollment; only a report behind its own is accepted.
    assert [epoch for epoch, _ in asked(phone)[0]] == asked(phone)[1] == [2]
    phone.wait(DAY)
    phone.start().report(False)
    assert asked(phone)[1] == [2]
    assert [epoch for epoch, _ in asked(phone)[0]] == [2, 3]


def test_report_waits_for_its_enrollment_when_an_intermediary_rejects_it(
    make_phone: MakePhone,
) -> None:
    phone = make_phone({"values": ASKED})
    phone.collector.answer = lambda _: ServerResponse(403)
    device = phone.joined()
    for _ in range(2):
        phone.seconds += 4000
        assert device.report(True).sending.waiting == 2
    assert (len(bodies(phone)), len(set(bodies(phone)))) == (3, 1)


def test_enrollment_is_resent_unchanged_until_it_is_acknowledged(make_phone: MakePhone) -> None:
    phone = make_phone({"values": ASKED})
    phone.collector.answer = lambda _: problem(503, "busy")
    phone.joined()
    state = document(phone)["members"]["visits"]["state"]
    for _ in range(3):
        phone.seconds += 4000
        phone.start().send()
    assert (len(bodies(phone)), len(set(bodies(phone)))) == (4, 1)
    phone.collector.answer = lambda answer: answer
    phone.seconds += 4000
    assert phone.start().send().waiting == 0
    member = document(phone)["members"]["visits"]
    assert (member["state"], member["enrolled"], member["epoch"]) == (state, 1, 0)


def test_device_that_joins_late_draws_among_all_epochs_when_to_answer(
    make_phone: MakePhone,
) -> None:
    answered = {}
    for phase in range(4):
        phone = make_phone(
            {"values": ASKED}, more={"read": lambda count, to=phase: bytes([to] * count)}
        )
        phone.wait(2 * DAY)
        device = phone.joined()
        phone.more = {}
        device = phone.start()
        for _ in range(2):
            device.report(True)
            phone.wait(DAY)
        reports, enrollments = asked(phone)
        assert enrollments == [3]
        answered[phase] = [epoch for epoch, count in reports if count]
        assert [epoch for epoch, _ in reports] == [3, 4]
    assert answered == {0: [], 1: [], 2: [3], 3: [4]}


def test_value_for_an_ended_epoch_is_reported_for_that_epoch_or_lost(
    make_phone: MakePhone,
) -> None:
    phone = make_phone({"values": ASKED})
    phone.collector.open_before = 2
    device = phone.joined()
    phone.wait(DAY)
    with pytest.raises(ClosedError, match="has not started"):
        device.report(True, ago=2)
    assert device.report(True, ago=1).epoch == 1
    assert not device.report(False, ago=1).drawn
    phone.wait(2 * DAY)
    assert [device.report(True, ago=ago).epoch for ago in (2, 1)] == [2, 3]
    assert not device.report(True, ago=2).drawn
    phone.wait(3 * DAY)
    before = document(phone)
    # Two days after epoch 4, its answer is lost: it is neither drawn nor sent for another epoch.
    with pytest.raises(ClosedError, match="no longer accepts reports for epoch 4: the device was"):
        phone.start().report(True, ago=2 + 1)
    assert document(phone) == before
    assert device.report(True, ago=2).epoch == 5
    # The first horizon is over for a device that has reported to the second.
    reports, enrollments = asked(phone)
    assert [epoch for epoch, _ in reports] == [1, 2, 3, 5]
    assert enrollments == [1, 5]
    for wrong in (-1, 1.0, True, "1"):
        with pytest.raises(ValueError, match="expected a number of epochs, 0 or more"):
            device.report(True, ago=wrong)  # type: ignore[arg-type]


def test_terms_state_when_a_device_answers_and_the_loss_over_a_few_epochs(
    make_phone: MakePhone,
) -> None:
    terms = make_phone({"values": ASKED}).start().terms()
    assert terms.answers == 1
    assert terms.description.startswith(
        "Job visits asks every day, with no end date, starting 2026-03-01 00:00 UTC. In a round of "
        "4 times, this device answers 1, drawn at random when it joins, and the same in all later "
        "rounds. An answer whose time has passed by then is skipped, and an answer that has not "
        "arrived 2 days after its time is lost. An answer is random: the user's value at that time "
        "only makes some answers likelier. Each time, the device sends an envelope of the same "
        "size, with or without an answer. It sends one more when it joins and again every 4 times, "
        "to count the user as a participant. "
    )
    assert (
        " Whatever the user does within any 4 times in a row costs epsilon 1 in total, even if "
        "everything that this device ever sends is seen. What lasts longer costs more: epsilon 2 "
        "for 5 to 8 times in a row, and so on. If the app is installed again, the device draws "
        "again, and its costs are added to the earlier ones. "
    ) in terms.description
    ending = {**ASKED, "epochs": {**ASKED["epochs"], "renew": False}}
    described = make_phone({"values": ending}).start().terms().description
    assert "when it joins. An answer" in described
    assert "rounds" not in described


def test_terms_state_what_part_of_a_value_an_answer_concerns() -> None:
    parameters = {"epsilon": 1, "domain": ["a", "b", "c"], "items": 2}
    told = deployed({**ASKED, "parameters": parameters}).signed_description
    assert told is not None
    statement = read_statement(told.statement.encode())
    leveled = replace(statement, law={"code": {}, "levels": [{}, {}, {}]})

    def sentences(statement: Statement) -> str:
        return terms_of(statement, Account(), Limit.of(4)).description

    slot = "It is about one of 2 places for items, drawn at random, which may be empty."
    part = (
        "It is about a part of all possible values. Which of 3 divisions into such parts is used "
        "is drawn at random, and public."
    )
    assert slot in sentences(statement)
    assert part not in sentences(statement)
    assert f"{slot} {part}" in sentences(leveled)


@pytest.mark.parametrize(
    ("section", "change", "why"),
    [
        ("epochs", {"answers": 2}, "disagree on how often a device answers"),
        ("epochs", {"count": 2}, "an epsilon for consecutive epochs"),
        ("epochs", {"answers": None}, "disagree on how often a device answers"),
        ("epochs", {"answers": 5}, "expected at most the horizon's number of epochs"),
        (
            "guarantee",
            {"rolling": {"epochs": 5, "epsilon": 1}},
            "an epsilon for consecutive epochs",
        ),
        (
            "guarantee",
            {"rolling": {"epochs": 4, "epsilon": 0.9}},
            "an epsilon for consecutive epochs",
        ),
        ("guarantee", {"rolling": {"epochs": 0, "epsilon": 1}}, "expected a positive integer"),
    ],
)
def test_statement_that_promises_more_than_the_mechanism_is_rejected(
    make_phone: MakePhone, section: str, change: dict[str, Any], why: str
) -> None:
    phone = make_phone({"values": ASKED})
    told = phone.statement()
    told[section] |= change
    with pytest.raises(StatementError, match=why):
        phone.start().join(json.dumps(told).encode())


def test_device_does_not_report_epochs_before_it_joined(make_phone: MakePhone) -> None:
    for values, days in ((ASKED, 1), (ASKED, 4), (STREAM, 4)):
        phone = make_phone({"values": {**values, "shuffle": {"grace": "4d"}}})
        phone.collector.open_before = 2
        phone.wait(days * DAY)
        device = phone.joined()
        if values is STREAM:
            device.report(True)
            assert not device.report(True, ago=1).drawn
            continue
        with pytest.raises(ClosedError, match=f"had not joined job visits at epoch {days}"):
            device.report(True, ago=1)
        assert not phone.collector.taken
        phone.collector.dead = True
        phone.wait(DAY)
        assert device.report(True, ago=1).drawn


def test_unacknowledged_report_is_resent_unchanged(phone: Phone) -> None:
    device = phone.joined()
    phone.collector.answer = lambda _: problem(503, "busy")
    assert device.report(True).sending.waiting == 1
    assert device.send().after == 1.0
    assert len(bodies(phone)) == 1
    for _ in range(5):
        phone.seconds += 4000
        device = phone.start()
        assert device.send().waiting == 1
    phone.collector.answer = lambda answer: answer
    phone.seconds += 4000
    assert phone.start().send().waiting == 0
    assert len(bodies(phone)) == 7
    assert len(set(bodies(phone))) == 1


def test_late_report_is_dropped_and_not_randomized_again(phone: Phone) -> None:
    device = phone.joined()
    phone.collector.dead = True
    assert device.report(True).sending.waiting == 1
    phone.collector.dead = False
    phone.collector.time += DAY
    phone.seconds += 100
    assert device.send().waiting == 0
    phone.collector.time -= DAY
    assert not device.report(False).drawn
    assert len(phone.collector.drawn) == 1
    assert not phone.collector.taken


def test_offline_device_drops_its_oldest_reports(phone: Phone) -> None:
    device = phone.joined()
    phone.collector.dead = True
    for _ in range(MOST_WAITING + 3):
        device.report(True)
        phone.wait(DAY)
    waiting = document(phone)["members"]["logins"]["waiting"]
    assert [each["epoch"] for each in waiting] == list(range(4, MOST_WAITING + 4))


def test_rejected_report_does_not_delay_the_next_one(phone: Phone) -> None:
    device = phone.joined()
    phone.collector.answer = lambda _: ServerResponse(400, b"of a proxy")
    device.report(True)
    phone.wait(DAY)
    phone.collector.answer = lambda answer: (
        answer if answer.status == 202 else ServerResponse(403, b"of a proxy")
    )
    assert device.report(True).sending.waiting == 1
    assert 2 in [epoch for epoch, _ in phone.collector.taken]


@pytest.mark.parametrize("wrong", [-40 * DAY, -DAY, -61_000, 61_000, DAY, 40 * DAY])
def test_server_time_replaces_a_wrong_device_clock(phone: Phone, wrong: int) -> None:
    phone.collector.time += 10 * DAY + DAY // 2
    phone.time = phone.collector.time + wrong
    device = phone.joined()
    assert device.report(True).epoch == 11
    assert device.report(True).sending.waiting == 0
    assert len(phone.collector.taken) == 1


@pytest.mark.parametrize("time", [-5, LAST_MOMENT + 1, 10**400, True, 5.5, "soon", None, [1]])
def test_device_clock_is_used_if_there_is_no_valid_server_time(phone: Phone, time: object) -> None:
    phone.collector.tell = lambda _: time
    device = phone.joined()
    assert device.report(True).epoch == 1


def test_early_report_waits_until_its_epoch_starts(phone: Phone) -> None:
    device = phone.joined()
    phone.collector.dead = True
    phone.time += 2 * DAY
    assert device.report(True).epoch == 3
    phone.collector.dead = False
    phone.seconds += 1e6
    assert device.send().waiting == 1
    assert device.send().after == pytest.approx(1.1 * 86_400)
    requested = len(bodies(phone))
    phone.time -= 2 * DAY
    assert device.report(True) == device.report(True)
    # The server is not queried again before the epoch can have started.
    phone.seconds += 86_400
    assert device.send().waiting == 1
    assert len(bodies(phone)) == requested
    phone.wait(2 * DAY)
    assert device.send().waiting == 0
    assert [epoch for epoch, _ in phone.collector.taken] == [3]


def test_charges_caused_by_false_server_times_stay_within_the_limit(make_phone: MakePhone) -> None:
    for job, affordable in ((STREAM, 3), (SETS, 3)):
        phone = make_phone({"values": job}, limit=Limit.of(3, 1))
        # The clock is certainly wrong, so the server's time is used.
        phone.time = 0
        device = phone.joined()
        drawn = 0
        for _ in range(40):
            try:
                drawn += device.report(1).drawn
            except LimitError:
                break
            phone.collector.time += DAY
        else:
            pytest.fail("it reports without end")
        assert device.account().spent.epsilon == 3_000_000_000
        assert drawn == affordable * (4 if job is STREAM else 1)


@pytest.mark.parametrize("lie", [10 * DAY, 400 * DAY, LAST_MOMENT])
def test_one_false_server_time_loses_at_most_one_day_of_reports(phone: Phone, lie: int) -> None:
    device = phone.joined()
    honest = phone.collector.tell
    phone.collector.tell = lambda now: min(now + lie, LAST_MOMENT)
    assert device.report(True).epoch == 2
    phone.collector.tell = honest
    phone.wait(DAY)
    assert not device.report(True).drawn
    phone.wait(DAY)
    assert device.report(True).epoch == 3
    assert [epoch for epoch, _ in phone.collector.taken] == [2, 3]


def test_privacy_account_survives_new_deployments(make_phone: MakePhone) -> None:
    phone = make_phone(limit=Limit.of(2))
    device = phone.joined()
    device.report(True)
    for number in (2, 3):
        phone.collector.job = deployed(number=number)
        phone.wait(DAY)
        assert device.report(True).sending.gone
        with pytest.raises(
            NotJoinedError, match=("that the device joined has ended: call join for the next one")
        ):
            device.report(True)
        if number == 2:
            device.join()
            assert device.report(True).drawn is True
    with pytest.raises(LimitError, match="that this app allows is already spent"):
        device.join()
    assert [str(each) for each in device.account().entries] == [
        "job logins, deployment 00000000: epsilon 1"
    ] * 2


def test_changed_statement_of_a_joined_deployment_is_rejected(phone: Phone) -> None:
    device = phone.joined()
    phone.collector.answer = lambda _: problem(410, "deployment")
    device.report(True)
    phone.collector.job = deployed(shuffle={"minimum": 5})
    with pytest.raises(
        StatementError,
        match=("the server's statement of this deployment changed since the device joined: the"),
    ):
        device.join()


def restated_job(job: DeployedJob, horizons: int) -> DeployedJob:
    return restated(job.model_copy(update={"horizons": horizons}), OPERATOR)


def test_later_revision_of_a_statement_can_change_only_the_last_epoch(phone: Phone) -> None:
    first = described(phone.collector.job.model_copy(update={"horizons": 1}), OPERATOR)
    second = restated_job(first, 2)
    third = restated_job(second, 1)
    phone.collector.job = first
    device = phone.joined()
    device.report(True)
    phone.wait(4 * DAY)
    with pytest.raises(ClosedError, match="has ended"):
        device.report(True)
    phone.collector.job = second
    assert device.join().clock.last == 8
    assert device.report(True).drawn
    # An older description is rejected; a newer one is accepted even if it removes epochs.
    for stale in (first, second):
        phone.collector.job = stale
        told = stale.signed_description
        assert told is not None
        if stale is first:
            with pytest.raises(
                StatementError,
                match=("the server's statement of this deployment is older than the device's"),
            ):
                device.join(told.statement.encode())
        else:
            device.join(told.statement.encode())
    told = third.signed_description
    assert told is not None
    assert device.join(told.statement.encode()).clock.last == 4
    phone.wait(DAY)
    with pytest.raises(ClosedError, match="has ended"):
        device.report(True)
    changes: list[dict[str, Any]] = [{"late": 5}, {"deployed": START + 1}, {"law": {}}]
    for change in changes:
        other = {**json.loads(told.statement), "revision": 9, **change}
        with pytest.raises((StatementError, DeviceError)):
            device.join(json.dumps(other).encode())
    assert str(device.account().spent) == "epsilon 2"


def test_return_to_an_older_deployment_is_rejected(phone: Phone) -> None:
    phone.collector.job = deployed(number=2, at=START + 5)
    device = phone.joined()
    phone.collector.answer = lambda _: problem(410, "deployment")
    device.report(True)
    phone.collector.job = deployed(number=1, at=START + 4)
    before = phone.store.text
    for leaves in (False, True):
        if leaves:
            device.leave()
            before = phone.store.text
        for act in (device.terms, device.join, lambda: device.join(again=True)):
            with pytest.raises(
                StatementError,
                match=("that is older than one the device joined: the device does not join"),
            ):
                act()
        assert phone.store.text == before
    phone.collector.job = deployed(number=3, at=START + 5)
    device.join(again=True)


def test_device_joins_the_deployment_whose_terms_it_was_shown(phone: Phone) -> None:
    device = phone.start()
    terms = device.terms()
    assert phone.store.text is None
    assert (terms.epsilon, terms.delta, terms.unit) == (1.0, 0.0, "stream")
    assert (terms.charges, terms.recurring, terms.sealed, terms.tokens) == (100, True, False, False)
    assert (terms.epochs.count, terms.deployed) == (4, START)
    assert str(terms) == terms.description
    assert terms.description.startswith(
        "Job logins asks every day, with no end date, starting 2026-03-01 00:00 UTC. All answers "
        "before 2026-03-05 00:00 UTC together cost epsilon 1: a guess about the user that was 50 % "
        "likely is right in at most 73.2 % of cases. Every further 4 times cost the same again."
    )
    assert terms.description.endswith("Collectors see the network address and a random id.")
    phone.collector.job = deployed(number=2, parameters={"epsilon": 8, "max_changes": 2})
    assert device.join(terms).deployment == (1).to_bytes(16, "big")
    assert device.account().spent.epsilon == 10**9
    later = device.terms()
    assert (later.charges, later.spent.epsilon) == (12, 10**9)
    assert device.report(True).sending.gone
    assert device.join(later).deployment == (2).to_bytes(16, "big")
    assert device.account().spent.epsilon == 9 * 10**9


def test_device_does_not_report_without_an_account_entry(phone: Phone) -> None:
    told = phone.collector.job.signed_description
    assert told is not None
    with pytest.raises(
        DeviceError,
        match=("the account has no entry for the joined deployment: the device does not report"),
    ):
        Account().charged(read_statement(told.statement.encode()), 1, phone.limit)


def test_statement_by_an_unknown_signer_is_rejected(phone: Phone) -> None:
    phone.collector.job = deployed(key=Ed25519PrivateKey.from_private_bytes(bytes(32)))
    with pytest.raises(StatementError, match="not signed by the key"):
        phone.start().join()
    assert phone.store.text is None


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"[]",
        b"{}",
        b'{"statement": ""}',
        b'{"statement": 1, "signature": 2}',
        b'{"statement": "$", "signature": ""}',
        b"[" * 100_000,
    ],
)
def test_invalid_job_description_is_rejected(answer: bytes) -> None:
    with pytest.raises(StatementError, match="the server's response is not a job description"):
        signed_statement(answer, [bytes.fromhex(SIGNER)])


@pytest.mark.parametrize(
    "more", [{"name": "others"}, {"population": "everybody"}, {"population": "zebras"}]
)
def test_statement_about_another_job_or_population_is_rejected(
    phone: Phone, more: dict[str, Any]
) -> None:
    told = deployed(**more).signed_description
    assert told is not None
    with pytest.raises(StatementError, match="the statement is about job"):
        phone.start().join(told.statement.encode())


@pytest.mark.parametrize("text", [b"", b"{}", b"[]", b'{"version": 2}', b"\xff", b"[" * 100_000])
def test_invalid_statement_is_rejected(phone: Phone, text: bytes) -> None:
    with pytest.raises(StatementError):
        phone.start().join(text)


def test_statement_with_a_missing_key_is_rejected(phone: Phone) -> None:
    whole = phone.statement()
    for part in whole.keys() - {"minimum", "late"}:
        if part in ("content", "epochs", "guarantee", "values", "deployment", "fingerprint"):
            others: list[Any] = [None, 5, "text", [], {}]
            for other in others:
                with pytest.raises(StatementError):
                    phone.start().join(json.dumps({**whole, part: other}).encode())
        with pytest.raises(StatementError):
            phone.start().join(json.dumps({k: v for k, v in whole.items() if k != part}).encode())


@pytest.mark.parametrize(
    "wrong",
    [{"slots": 0}, {"slots": -1}, {"width": 0}, {"width": 1.0}, {"word_bytes": 3}],
)
def test_statement_with_an_invalid_content_size_is_rejected(
    phone: Phone, wrong: dict[str, Any]
) -> None:
    whole = phone.statement()
    whole["content"] |= wrong
    with pytest.raises(StatementError, match="content sizes are"):
        phone.start().join(json.dumps(whole).encode())


def test_report_outside_the_epochs_of_a_job_is_rejected(make_phone: MakePhone) -> None:
    phone = make_phone({"epochs": {**STREAM["epochs"], "renew": False}})
    device = phone.joined()
    phone.time = phone.collector.time = phone.time - 1
    with pytest.raises(ClosedError, match="has not started"):
        device.report(True)
    phone.wait(4 * DAY + 1)
    with pytest.raises(ClosedError, match="has ended"):
        device.report(True)
    phone.collector.job = deployed(number=2)
    device.join()
    assert device.report(True).drawn
    phone.collector.job = deployed(number=3, epochs={**STREAM["epochs"], "renew": False})
    phone.collector.answer = lambda _: problem(410, "deployment")
    phone.wait(DAY)
    device.report(True)
    with pytest.raises(ClosedError, match="has ended"):
        device.join()


def test_leaving_deletes_the_membership_but_not_the_account(phone: Phone) -> None:
    device = phone.joined()
    phone.collector.dead = True
    device.report(True)
    before = document(phone)["members"]["logins"]
    device.leave()
    assert before["device"] not in phone.store.text
    assert document(phone)["members"] == {"logins": None}
    assert device.account().spent.epsilon == 1_000_000_000
    assert device.send().waiting == 0
    phone.collector.dead = False
    for again in (False, True):
        with pytest.raises((NotJoinedError, StatementError)):
            device.join(again=again)
    phone.collector.job = deployed(number=2)
    with pytest.raises(NotJoinedError, match="the user has left"):
        device.join()
    device.join(again=True)
    assert device.report(True).drawn


def test_invalid_value_is_rejected_before_any_charge(phone: Phone) -> None:
    device = phone.joined()
    before, requested = phone.store.text, len(phone.collector.requests)
    with pytest.raises(ValueRejectedError, match="expected True or False"):
        device.report("secret")
    assert phone.store.text == before
    assert len(phone.collector.requests) == requested


def test_report_before_joining_is_rejected(phone: Phone) -> None:
    with pytest.raises(NotJoinedError, match="call join first"):
        phone.start().report(True)
    assert phone.collector.requests == []
    phone.collector.dead = True
    with pytest.raises(UnreachableError):
        phone.start().join()


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"version": 2}', '{"version": 1}', "[" * 99_999])
def test_malformed_state_document_is_rejected_and_left_unchanged(phone: Phone, text: str) -> None:
    phone.store.revision, phone.store.text = 1, text
    with pytest.raises(StoreError, match=r"damaged|later version"):
        phone.start().join()
    assert phone.store.text == text


def test_state_document_of_a_newer_version_is_rejected(phone: Phone) -> None:
    phone.start().join()
    kept = {**document(phone), "version": 2}
    with pytest.raises(StoreError, match="later version of the app"):
        Document.from_text(json.dumps(kept))


@pytest.mark.parametrize("more", [{"protocol": "later"}, {"law": {}}, {"law": {"horizon": 1}}])
def test_job_without_a_randomizer_is_rejected_before_any_charge(
    phone: Phone, more: dict[str, Any]
) -> None:
    told = phone.collector.job.signed_description
    assert told is not None
    with pytest.raises(DeviceError, match="this app has no randomizer for job"):
        phone.start().join(json.dumps({**json.loads(told.statement), **more}).encode())
    assert phone.store.text is None


def test_uncharged_epoch_is_not_randomized(make_phone: MakePhone) -> None:
    for job, epoch in ((STREAM, 5), (SETS, 2)):
        phone = make_phone({"values": job})
        device = phone.joined()
        device.report(None if job is SETS else 1)
        name = phone.collector.job.name
        kept = Document.from_text(phone.store.text)
        with pytest.raises(LimitError):
            steps.drawn(kept, name, epoch, 1, Limit.of(1, 1), bytes, None)
        # Account and state contradict each other: the horizon or epoch was paid for and used.
        wrong = document(phone)
        wrong["members"][name]["epoch"] = 0
        if job is STREAM:
            wrong["members"][name]["horizon"] = None
        kept = Document.from_text(json.dumps(wrong))
        with pytest.raises(DeviceError, match=r"does not match the saved draws|already has a draw"):
            steps.drawn(kept, name, 1, 1, Limit.of(100, 1), bytes, None)


def test_false_server_time_when_joining_causes_no_additional_charge(
    make_phone: MakePhone,
) -> None:
    for days in (-3, 1, 400, 100_000):
        for job in (STREAM, SETS):
            phone = make_phone({"values": job}, limit=Limit.of(2, 1))
            phone.collector.time += days * DAY
            device = phone.joined()
            phone.collector.time -= days * DAY
            drawn = []
            for _ in range(12):
                try:
                    drawn.append(device.report(0).epoch)
                except LimitError:
                    break
                phone.wait(DAY)
            assert drawn == list(range(1, 9 if job is STREAM else 3))
            assert device.account().spent.epsilon == 2_000_000_000


@pytest.mark.parametrize("protocol", sorted(JOBS))
def test_statement_that_understates_the_loss_is_rejected(
    make_phone: MakePhone, protocol: str
) -> None:
    phone = make_phone({"values": JOBS[protocol][0]})
    whole = phone.statement()
    promised = whole["guarantee"]
    other = {"stream": "epoch", "epoch": "stream"}[promised["unit"]]
    wrong = [{"epsilon": 0}, {"epsilon": promised["epsilon"] * (1 - 1e-6)}, {"unit": other}]
    if promised["delta"]:
        wrong += [{"delta": 0}, {"delta": promised["delta"] * (1 - 1e-6)}]
    for change in wrong:
        text = json.dumps({**whole, "guarantee": {**promised, **change}}).encode()
        with pytest.raises(StatementError, match=r"the mechanism of job .* has epsilon"):
            phone.start().join(text)
        assert phone.store.text is None
    more = {"epsilon": promised["epsilon"] + 1, "delta": 1e-3}
    phone.start().join(json.dumps({**whole, "guarantee": {**promised, **more}}).encode())


@pytest.mark.parametrize("protocol", ["count_min", "single_message", "shuffled_counts"])
def test_mechanism_with_too_little_noise_is_rejected(make_phone: MakePhone, protocol: str) -> None:
    """The device computes a lower bound on delta, so a signature does not help."""
    phone = make_phone({"values": JOBS[protocol][0]})
    whole = phone.statement()
    odds = {"weights": [[1, str(10**30)], [1, "1"]]}
    quiet = (
        {"odds": odds}
        if "odds" in whole["law"]
        else {"noise": {**whole["law"]["noise"], "mean": 1e-9}}
    )
    text = json.dumps({**whole, "law": {**whole["law"], **quiet}}).encode()
    with pytest.raises(
        StatementError, match=r"the noise of job .* is too small for epsilon 1, delta 1e-06"
    ):
        phone.start().join(text)
    text = json.dumps({**whole, "minimum": whole["minimum"] - 1}).encode()
    with pytest.raises(StatementError, match=r"assumes [\d,]+ contributors .* requires"):
        phone.start().join(text)
    assert phone.store.text is None


@pytest.mark.parametrize("protocol", sorted(JOBS))
def test_mechanism_shorter_than_the_horizon_is_rejected(
    make_phone: MakePhone, protocol: str
) -> None:
    """Otherwise a device would be charged but could not report after the last epoch."""
    phone = make_phone({"values": JOBS[protocol][0]})
    whole = phone.statement()
    longer = {**whole, "epochs": {**whole["epochs"], "count": 1_000}}
    with pytest.raises(
        StatementError, match=r"the mechanism of job .* ends with epoch [48], .* has 1,000"
    ):
        phone.start().join(json.dumps(longer).encode())
    assert phone.store.text is None


def laws_of_booleans(law: dict[str, Any]) -> list[dict[str, Any]]:
    if "levels" in law:
        return [level["booleans"] for level in law["levels"]]
    return [law.get("booleans", law)]


@pytest.mark.parametrize("protocol", ["value_stream", "hadamard_values", "range_values"])
def test_constants_with_a_loss_above_epsilon_are_rejected(
    make_phone: MakePhone, protocol: str
) -> None:
    phone = make_phone({"values": JOBS[protocol][0]})
    whole = phone.statement()
    for name, constant in (("theta", "0x1.8p+1"), ("noise", 1 << 60)):
        forged = copy.deepcopy(whole)
        for law in laws_of_booleans(forged["law"]):
            law[name] = constant
        with pytest.raises(DeviceError, match="this app has no randomizer for job"):
            phone.start().join(json.dumps(forged).encode())
        assert phone.store.text is None
    # A smaller goal has a smaller loss.
    for law in laws_of_booleans(whole["law"]):
        law["theta"] = "0x1.8p-30"
    phone.start().join(json.dumps(whole).encode())


def test_damaged_state_is_rejected_without_randomizing_again(phone: Phone) -> None:
    device = phone.joined()
    device.report(True)
    wrong = document(phone)
    wrong["members"]["logins"]["state"]["arrays"] = {}
    phone.store.text = json.dumps(wrong)
    phone.wait(DAY)
    said = set()
    for value in (True, False):
        with pytest.raises(DeviceError, match="nothing was sent") as rejection:
            device.report(value)
        said.add(str(rejection.value))
    assert len(said) == 1, "the same, whatever the value is"
    assert len(bodies(phone)) == 1


def test_only_the_shuffler_can_decrypt_sealed_reports(make_phone: MakePhone) -> None:
    keys = [X25519PrivateKey.from_private_bytes(bytes([number]) * 32) for number in (1, 2)]
    public = [key.public_key().public_bytes_raw().hex() for key in keys]
    phone = make_phone({"devices": {"seal": public, "rotate": 2}})
    device = phone.start()
    statement = device.join()
    for day in range(3):
        device.report(True)
        envelopes = decode_body(bodies(phone)[-1])
        key = keys[day // 2]
        assert envelopes.key == key_id(key.public_key().public_bytes_raw())
        parts = statement.deployment, statement.fingerprint, day + 1, envelopes.reports.tobytes()
        assert sealing_info(statement, day + 1, parts[3]) == device_context(*parts)
        content = unseal(envelopes.contents.tobytes(), key, device_context(*parts))
        assert content is not None
        assert len(content) == statement.content_format.size
        phone.wait(DAY)


def test_tokens_are_sent_only_with_reports(phone: Phone) -> None:
    tokens = iter(["one", "two"])
    phone.more["token"] = lambda: next(tokens)
    device = phone.joined()
    phone.collector.answer = lambda _: problem(401, "token")
    assert device.report(True).sending.waiting == 1
    phone.collector.answer = lambda answer: answer
    phone.seconds += 10
    assert device.send().waiting == 0
    said = [headers.get("Authorization") for _, _, headers, _ in phone.collector.requests]
    assert [each for each in said if each] == ["Bearer one", "Bearer two"]
    assert [method for method, _, headers, _ in phone.collector.requests if headers] == ["POST"] * 2


@pytest.mark.parametrize(
    ("answer", "after"),
    [
        (problem(503, "busy"), 1.0),
        (problem(429, "rate", **{"retry-after": "20"}), 22.0),
        (problem(503, "busy", **{"retry-after": "999999999"}), 95_040.0),
        (problem(503, "busy", **{"retry-after": "soon"}), 1.0),
        (problem(503, "busy", **{"retry-after": "-5"}), 1.0),
        (ServerResponse(202 + 1, b""), 1.0),
        (ServerResponse(301, b"", {"location": "https://elsewhere"}), 1.0),
        (ServerResponse(403, b"of a proxy"), 1.0),
        (ServerResponse(413, b'{"type": "about:blank"}'), 1.0),
        (ServerResponse(409, b"[" * 99_999), 1.0),
        (ServerResponse(409, b'{"type": 5}'), 1.0),
        (ServerResponse(500, b"\xff"), 1.0),
    ],
)
def test_report_is_resent_after_temporary_failures_of_the_server(
    phone: Phone, answer: ServerResponse, after: float
) -> None:
    device = phone.joined()
    phone.collector.answer = lambda _: answer
    sending = device.report(True).sending
    assert (sending.waiting, sending.gone) == (1, False)
    assert sending.after == pytest.approx(after)
    phone.seconds += after - 0.001
    device.send()
    assert len(bodies(phone)) == 1
    phone.seconds += 0.002
    device.send()
    assert len(bodies(phone)) == 2


def test_device_waits_for_the_time_in_a_retry_after_header(
    phone: Phone, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []

    def passing() -> float:
        phone.seconds += 0.001
        return phone.seconds

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        phone.seconds += seconds
        if len(slept) == 2:
            phone.collector.answer = lambda answer: answer

    phone.more["monotonic"] = passing
    monkeypatch.setattr("dpstream.randomizers.client.device.time.sleep", sleep)
    device = phone.joined()
    phone.collector.answer = lambda _: problem(503, "busy")
    device.report(True)
    assert device.deliver(60).waiting == 0
    assert slept == pytest.approx([1.0, 2.0], abs=0.1)
    assert len(bodies(phone)) == 3


@pytest.mark.parametrize("url", ["http://example.org", "example.org", "ftp://example.org", ""])
def test_unencrypted_addresses_and_invalid_jobs_are_rejected(phone: Phone, url: str) -> None:
    with pytest.raises(ValueError, match=r"https"):
        Device(url, "logins", signers=[], limit=phone.limit, store=phone.store)
    for name in ("", "a/b", "..", "A", "a?b"):
        with pytest.raises(
            ValueError,
            match=("is not a job name; expected lower-case letters"),
        ):
            Device("https://a.org", name, signers=[], limit=phone.limit, store=phone.store)


def test_observable_traffic_is_independent_of_the_value() -> None:
    numbers = JOBS["range_values"][0]
    given: list[tuple[dict[str, Any], list[Any]]] = [
        (STREAM, [True, False]),
        (SETS, ["apple", None]),
        # One of the two sets or numbers is valid in the job.
        (SETS, [["plum"], [], ["apple", "pear", "plum"], ["pear", "pear"]]),
        (numbers, [0.5, -1e9, 1, 1e300, float("nan"), float("inf")]),
    ]
    for job, values in given:
        seen = []
        for value in values:
            phone = Phone(SmallCollector(deployed(job)))
            counter = iter(range(1 << 20))
            phone.more["read"] = lambda count, counter=counter: hashlib.shake_128(
                str(next(counter)).encode()
            ).digest(count)
            device = phone.joined()
            stored = []
            for day in range(6):
                phone.collector.dead = day == 2
                device.report(value)
                stored.append(len(phone.store.text))
                phone.wait(DAY)
            requests = [
                # Everything except the random report id and the content.
                (method, path, headers, len(body), body[:72], body[88:89])
                for method, path, headers, body in phone.collector.requests
            ]
            seen.append((requests, stored, phone.seconds))
        assert all(each == seen[0] for each in seen)


def test_repr_of_a_membership_omits_its_state_and_reports() -> None:
    waiting = Waiting(7, b"name", body=b"what it says")
    member = Membership(b"statement", b"id", state={"memo": "what it drew"}, waiting=(waiting,))
    written = f"{member} {member!r}"
    assert "epoch=7" in written
    assert "what it" not in written
