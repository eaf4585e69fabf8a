"""Test intake of bodies: every rejection, the records, and their independence of values."""

import secrets

import numpy as np
import pytest

from dpstream.pipeline.collector.intake import Intake, IntakeRules, Taken
from dpstream.pipeline.collector.responses import HttpResponse, RequestProblem
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.key_files import CollectorKey, WrongKeyError
from dpstream.topics.envelopes import HEADER_BYTES, encode_body, encode_envelope
from dpstream.topics.loose_batches import (
    LOOSE_PAYLOAD_TARGET,
    decode_enrollments,
    decode_loose_batch,
    horizon_tag,
    report_tag,
    subject_of_device,
    subject_of_token,
)
from dpstream.topics.sealing import key_id
from tests.support.device_jobs import BEGIN, DAY, KEY, LATE, body, device_job, envelope, messages_of

PUBLIC_KEYS = ("aa" * 32, "bb" * 32)
NOW = BEGIN + DAY // 2
TOKENS = {
    "audience": "reports",
    "keys": [{"kty": "OKP", "crv": "Ed25519", "kid": "1", "x": "A" * 43}],
}


@pytest.fixture(scope="module")
def job() -> DeployedJob:
    return device_job()


@pytest.fixture(scope="module")
def sealing() -> DeployedJob:
    return device_job(seal=list(PUBLIC_KEYS), rotate=2)


def passed(intake: Intake, data: bytes, now: int = NOW) -> IntakeRules:
    rules = intake.rules(data)
    assert isinstance(rules, IntakeRules), rules
    assert rules.rejection(len(data), now) is None
    return rules


def taken(intake: Intake, *bodies: bytes, subjects: list[str | None] | None = None) -> Taken:
    rules = passed(intake, bodies[0])
    return intake.take(rules, bodies, subjects or [None] * len(bodies))


def said(answer: HttpResponse | IntakeRules | None) -> tuple[int, str] | None:
    return (answer.status, answer.reason or "") if isinstance(answer, HttpResponse) else None


def test_unsealed_reports_are_written_with_tags(job: DeployedJob) -> None:
    devices = [secrets.token_bytes(16) for _ in range(5)]
    bodies = [
        body(job, 1, [envelope(job, 1, [word % 2], device, enrolls=word != 2)])
        for word, device in enumerate(devices)
    ]
    found = taken(Intake(job, KEY), *bodies)
    assert list(found.rejections) == [None] * 5
    assert found.reports == 5
    (batch,) = map(decode_loose_batch, found.batches)
    assert (batch.deployment, batch.fingerprint) == (job.deployment, job.fingerprint)
    assert (batch.epoch, batch.key) == (1, None)
    subjects = list(map(subject_of_device, devices))
    slots, used, good = job.content_format.unpack(batch.contents)
    assert good.all()
    assert used.tolist() == [1] * 5
    tags = [report_tag(KEY.secret, job.deployment, 1, subject) for subject in subjects]
    told = dict(
        zip((row[:8].tobytes() for row in batch.rows), slots[:, 0, 0].tolist(), strict=True)
    )
    assert told == dict(zip(tags, [0, 1, 0, 1, 0], strict=True))
    (enrolled,) = map(decode_enrollments, found.enrollments)
    wanted = {horizon_tag(KEY.secret, job.deployment, 0, subjects[i]) for i in (0, 1, 3, 4)}
    assert {tag.tobytes() for tag in enrolled.tags} == wanted


def test_device_tags_differ_between_epochs(job: DeployedJob) -> None:
    device = secrets.token_bytes(16)
    tags = []
    for epoch in (1, 2, 3):
        data = body(job, epoch, [envelope(job, epoch, [0], device, enrolls=False)])
        intake = Intake(job, KEY)
        found = intake.take(passed(intake, data, NOW + (epoch - 1) * DAY), [data], [None])
        (batch,) = map(decode_loose_batch, found.batches)
        tags.append(batch.rows[0, :8].tobytes())
    subject = subject_of_device(device)
    assert tags == [report_tag(KEY.secret, job.deployment, epoch, subject) for epoch in (1, 2, 3)]
    assert len(set(tags)) == 3


def test_written_reports_are_sorted_by_tag(job: DeployedJob) -> None:
    """Positions in the two records then do not link devices, and the first report counts."""
    devices = [secrets.token_bytes(16) for _ in range(200)]
    bodies = [body(job, 1, [envelope(job, 1, [0], device)]) for device in devices]
    again = [body(job, 1, [envelope(job, 1, [1], device)]) for device in devices]
    found = taken(Intake(job, KEY), *bodies, *again)
    (batch,) = map(decode_loose_batch, found.batches)
    tags = np.ascontiguousarray(batch.rows[:, :8]).view("<u8")[:, 0]
    assert (np.diff(tags.astype(object)) >= 0).all()
    slots, _, _ = job.content_format.unpack(batch.contents)
    assert slots[:, 0, 0].tolist() == [0, 1] * 200
    (enrolled,) = map(decode_enrollments, found.enrollments)
    numbers = np.frombuffer(enrolled.tags.tobytes(), "<u8")
    assert len(numbers) == 400
    assert (np.diff(numbers.astype(object)) >= 0).all()


def test_reports_are_sorted_by_tag_across_records() -> None:
    wide = device_job(protocol="shuffled_counts")
    bodies = [body(wide, 1, [envelope(wide, 1, [0])]) for _ in range(4000)]
    batches = [decode_loose_batch(record) for record in taken(Intake(wide, KEY), *bodies).batches]
    assert len(batches) > 1
    tags = b"".join(row[:8].tobytes() for batch in batches for row in batch.rows)
    assert (np.diff(np.frombuffer(tags, "<u8").astype(object)) > 0).all()


def test_reports_without_a_token_are_rejected_individually() -> None:
    asking = device_job(tokens=TOKENS)
    bodies = [body(asking, 1, [envelope(asking)]) for _ in range(3)]
    found = taken(Intake(asking, KEY), *bodies, subjects=[None, "ann", None])
    assert [said(rejection) for rejection in found.rejections] == [
        (401, "no_token"),
        None,
        (401, "no_token"),
    ]
    assert found.reports == 1


def test_settling_time_is_shortened_to_end_within_the_grace_period(job: DeployedJob) -> None:
    rules = Intake(job, KEY).rules(body(job))
    assert isinstance(rules, IntakeRules)
    assert rules.settles - rules.closes == 1000
    for late, settling in ((3600.0, 0), (3599.0, 500), (3598.9, 550), (3590.0, 1000)):
        assert job.devices is not None
        devices = job.devices.model_copy(update={"late": late})
        near = Intake(job.model_copy(update={"devices": devices}), KEY)
        assert near.settles(1) - near.closes(1) == settling


def test_sealed_reports_keep_their_ids_and_ciphertexts(sealing: DeployedJob) -> None:
    reports = [secrets.token_bytes(16) for _ in range(3)]
    envelopes = [envelope(sealing, 3, [1], report=report, enrolls=False) for report in reports]
    intake = Intake(sealing, KEY)
    data = body(sealing, 3, envelopes)
    rules = passed(intake, data, BEGIN + 2 * DAY)
    found = intake.take(rules, [data], [None])
    assert not found.enrollments
    (batch,) = map(decode_loose_batch, found.batches)
    assert batch.key == key_id(bytes.fromhex(PUBLIC_KEYS[1]))
    found_ciphertexts = zip(batch.reports, batch.contents, strict=True)
    ciphertexts = {
        report.tobytes(): ciphertext.tobytes() for report, ciphertext in found_ciphertexts
    }
    assert ciphertexts == dict(zip(reports, [each[33:] for each in envelopes], strict=True))


def test_intake_opens_and_closes_by_the_clock(job: DeployedJob) -> None:
    data = body(job, 2)
    rules = Intake(job, KEY).rules(data)
    assert isinstance(rules, IntakeRules)
    begins = BEGIN + DAY
    early = rules.rejection(len(data), begins - 60_001)
    assert said(early) == (409, "early")
    assert early is not None
    assert b'"begins":%d' % begins in early.body
    assert rules.rejection(len(data), begins - 60_000) is None
    closes = BEGIN + 2 * DAY + LATE
    assert rules.rejection(len(data), closes - 1) is None
    assert said(rules.rejection(len(data), closes)) == (409, "late")


def test_reports_of_another_job_are_rejected(job: DeployedJob, sealing: DeployedJob) -> None:
    intake = Intake(job, KEY)
    of = encode_body
    one = [envelope(job)]
    other = secrets.token_bytes(16)
    gone = intake.rules(of(other, job.fingerprint, 1, None, one))
    assert said(gone) == (410, "deployment")
    assert isinstance(gone, HttpResponse)
    assert job.deployment.hex().encode() in gone.body
    assert other.hex().encode() not in gone.body
    assert said(intake.rules(of(job.deployment, other, 1, None, one))) == (409, "fingerprint")
    assert said(intake.rules(body(job, 17, one))) == (400, "epoch")
    assert said(intake.rules(body(job, 2**62, one))) == (400, "epoch")
    sealed = of(job.deployment, job.fingerprint, 1, b"k" * 8, one)
    assert said(intake.rules(sealed)) == (400, "sealed")
    longer = of(job.deployment, job.fingerprint, 1, None, [one[0] + b"\0"])
    assert said(intake.rules(longer)) == (400, "malformed")
    assert said(intake.rules(b"")) == (400, "malformed")
    strict = Intake(sealing, KEY)
    boxed = [envelope(sealing, 3)]
    for key in (None, b"k" * 8, key_id(bytes.fromhex(PUBLIC_KEYS[0]))):
        data = of(sealing.deployment, sealing.fingerprint, 3, key, boxed)
        assert said(strict.rules(data)) == (400, "sealed")
    plain = [encode_envelope(b"d" * 16, b"r" * 16, True, b"\0" * sealing.content_format.size)]
    key = key_id(bytes.fromhex(PUBLIC_KEYS[0]))
    data = of(sealing.deployment, sealing.fingerprint, 1, key, plain)
    assert said(strict.rules(data)) == (400, "malformed")


def test_reports_for_epochs_before_the_deployment_are_late(job: DeployedJob) -> None:
    later = job.model_copy(update={"deployed_at": BEGIN + 3 * DAY})
    assert said(Intake(later, KEY).rules(body(later, 3))) == (409, "late")
    assert isinstance(Intake(later, KEY).rules(body(later, 4)), IntakeRules)


def test_bodies_with_an_already_accepted_header_are_still_validated(job: DeployedJob) -> None:
    intake = Intake(job, KEY)
    data = body(job)
    rules = passed(intake, data)
    for wrong in (data[:HEADER_BYTES], data[:-1], data + b"\0"):
        assert intake.rules(wrong) in (rules, RequestProblem.MALFORMED.answer())
        assert said(rules.rejection(len(wrong), NOW)) == (400, "malformed")


def test_body_with_an_invalid_envelope_is_rejected_entirely(job: DeployedJob) -> None:
    device = secrets.token_bytes(16)
    form = job.content_format
    crowded = encode_envelope(secrets.token_bytes(16), b"r" * 16, False, b"\2\0\1")
    unclean = encode_envelope(secrets.token_bytes(16), b"r" * 16, False, b"\0\0\1")
    strange = bytearray(envelope(job))
    strange[32] = 2
    foreign = encode_envelope(
        secrets.token_bytes(16), b"r" * 16, False, form.pack(messages_of(job, [77]))
    )
    good = [envelope(job) for _ in range(3)]
    bodies = [
        body(job, 1, good),
        body(job, 1, [*good, crowded]),
        body(job, 1, [*good, unclean]),
        body(job, 1, [good[0]])[:HEADER_BYTES] + good[0] + bytes(strange),
        body(job, 1, [foreign, *good]),
        body(job, 1, [envelope(job, 1, [], device), envelope(job, 1, [1], device)]),
        body(job, 1, [envelope(job, 1, [1], device)]),
    ]
    found = taken(Intake(job, KEY), *bodies)
    reasons = [said(rejection) for rejection in found.rejections]
    malformed, twice, words = (400, "malformed"), (400, "twice"), (400, "foreign")
    assert reasons == [None, malformed, malformed, malformed, words, twice, None]
    (batch,) = map(decode_loose_batch, found.batches)
    assert len(batch.rows) == found.reports == 4
    tag = report_tag(KEY.secret, job.deployment, 1, subject_of_device(device))
    assert tag in {row[:8].tobytes() for row in batch.rows}


def test_enrollment_without_a_report_is_counted_if_only_some_devices_answer() -> None:
    few = device_job(protocol="sampled_response")
    devices = [secrets.token_bytes(16) for _ in range(2)]
    content = few.content_format.empty
    enrolling = encode_envelope(devices[0], b"r" * 16, True, content, has_report=False)
    found = taken(
        Intake(few, KEY),
        body(few, 1, [enrolling]),
        body(few, 1, [envelope(few, 1, [], devices[0], enrolls=False)]),
        body(few, 1, [envelope(few, 1, [1], devices[1])]),
    )
    assert list(found.rejections) == [None, None, None]
    (batch,) = map(decode_loose_batch, found.batches)
    assert len(batch.rows) == found.reports == 2
    (enrollments,) = map(decode_enrollments, found.enrollments)
    assert sorted(enrollments.tags.tolist()) == sorted(
        int.from_bytes(
            horizon_tag(KEY.secret, few.deployment, 0, subject_of_device(each)), "little"
        )
        for each in devices
    )
    alone = taken(Intake(few, KEY), body(few, 1, [enrolling]))
    assert (alone.reports, alone.batches, len(alone.enrollments)) == (0, [], 1)


def test_rejection_does_not_echo_the_report(job: DeployedJob) -> None:
    bodies = [
        body(
            job,
            1,
            [
                encode_envelope(
                    b"d" * 16, b"r" * 16, False, job.content_format.pack(messages_of(job, [w]))
                )
            ],
        )
        for w in (77, 99)
    ]
    assert (
        list(taken(Intake(job, KEY), *bodies).rejections) == [RequestProblem.FOREIGN.answer()] * 2
    )


def test_intake_without_accepted_reports_writes_no_records(job: DeployedJob) -> None:
    foreign = encode_envelope(
        b"d" * 16, b"r" * 16, True, job.content_format.pack(messages_of(job, [9]))
    )
    found = taken(Intake(job, KEY), body(job, 1, [foreign]))
    assert (found.reports, found.batches, found.enrollments) == (0, (), ())


def test_token_subject_identifies_the_device(job: DeployedJob) -> None:
    asking = device_job(tokens=TOKENS)
    device = secrets.token_bytes(16)
    two = body(asking, 1, [envelope(asking), envelope(asking)])
    one = body(asking, 1, [envelope(asking, 1, [1], device)])
    found = taken(Intake(asking, KEY), two, one, one, subjects=["eve", "ann", "bob"])
    assert [said(rejection) for rejection in found.rejections] == [(403, "several"), None, None]
    (batch,) = map(decode_loose_batch, found.batches)
    deployment = asking.deployment
    wanted = {report_tag(KEY.secret, deployment, 1, subject_of_token(n)) for n in ("ann", "bob")}
    assert {row[:8].tobytes() for row in batch.rows} == wanted
    (enrolled,) = map(decode_enrollments, found.enrollments)
    wanted = {horizon_tag(KEY.secret, deployment, 0, subject_of_token(n)) for n in ("ann", "bob")}
    assert {tag.tobytes() for tag in enrolled.tags} == wanted


def test_batch_records_are_filled_to_the_target_size(job: DeployedJob) -> None:
    envelopes = [envelope(job) for _ in range(5000)]
    found = taken(Intake(job, KEY), body(job, 1, envelopes[:2500]), body(job, 1, envelopes[2500:]))
    batches = list(map(decode_loose_batch, found.batches))
    assert [len(batch.rows) for batch in batches] == [5000]
    wide = device_job(protocol="shuffled_counts")
    envelopes = [envelope(wide, 1, [0]) for _ in range(4000)]
    found = taken(Intake(wide, KEY), *(body(wide, 1, [each]) for each in envelopes))
    batches = list(map(decode_loose_batch, found.batches))
    row = 8 + wide.content_format.size
    most = LOOSE_PAYLOAD_TARGET // row
    assert [len(batch.rows) for batch in batches] == [most, most, 4000 - 2 * most]


def test_collector_key_of_another_deployment_is_rejected(job: DeployedJob) -> None:
    with pytest.raises(WrongKeyError, match="collector key does not match"):
        Intake(job, CollectorKey(b"x" * 32))


@pytest.mark.parametrize(("protocol", "most"), [("future_rand", 1), ("shuffled_counts", 0)])
def test_record_sizes_and_answers_do_not_depend_on_values(protocol: str, most: int) -> None:
    """`most` is the largest possible message at the first epoch."""
    job = device_job(protocol=protocol)
    intake = Intake(job, KEY)
    slots = job.content_format.slots
    generator = np.random.default_rng(3)
    devices = [secrets.token_bytes(16) for _ in range(300)]
    seen = set()
    for words in ([], [0], [most] * slots, None):
        bodies = []
        for at in range(0, 300, 3):
            values = (
                generator.integers(0, most + 1, generator.integers(0, slots + 1)).tolist()
                if words is None
                else words
            )
            each = [envelope(job, 1, values, device) for device in devices[at : at + 3]]
            bodies.append(body(job, 1, each))
        found = taken(intake, *bodies)
        enrollments = [decode_enrollments(record) for record in found.enrollments]
        batches = [decode_loose_batch(record) for record in found.batches]
        seen.add(
            (
                tuple(map(len, bodies)),
                tuple(map(said, found.rejections)),
                found.reports,
                tuple(map(len, found.batches)),
                tuple(record.tags.tobytes() for record in enrollments),
                tuple(batch.rows[:, :8].tobytes() for batch in batches),
            )
        )
    assert len(seen) == 1


def test_mutated_bodies_never_cause_server_errors(job: DeployedJob, sealing: DeployedJob) -> None:
    generator = np.random.default_rng(11)
    for which in (job, sealing):
        intake = Intake(which, KEY)
        originals = [body(which, 1, [envelope(which, 1, [1]) for _ in range(n)]) for n in (1, 2, 9)]
        statuses = set()
        for _ in range(10_000):
            data = bytearray(originals[generator.integers(3)])
            for _ in range(generator.integers(1, 4)):
                data[generator.integers(len(data))] = generator.integers(256)
            if generator.integers(4) == 0:
                del data[generator.integers(len(data)) :]
            if generator.integers(8) == 0:
                data += generator.bytes(int(generator.integers(1, 300)))
            whole = bytes(data)
            rules = intake.rules(whole)
            rejection = (
                rules if isinstance(rules, HttpResponse) else rules.rejection(len(whole), NOW)
            )
            if isinstance(rules, IntakeRules) and rejection is None:
                found = intake.take(rules, [whole], [None])
                (rejection,) = found.rejections
                if rejection is None:
                    assert sum(len(decode_loose_batch(b).rows) for b in found.batches) > 0
                else:
                    assert not found.batches
            statuses.add(None if rejection is None else rejection.status)
            assert rejection is None or rejection.status in (400, 409, 410)
        assert statuses >= {None, 400, 409, 410}


def test_intake_caches_epoch_rules_for_a_limited_number_of_epochs(job: DeployedJob) -> None:
    many = job.model_copy(update={"epochs": job.epochs.model_copy(update={"count": 2000})})
    intake = Intake(many, KEY)
    for epoch in range(1, 1000):
        intake.rules(body(many, epoch, [envelope(job)]))
    assert len(intake._rules) <= 256
