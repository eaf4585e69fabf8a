"""Guarantees of collectors to the devices that report to them.

The attackers observe a collector from outside: its records together with the access log of a proxy,
ids of devices, responses and rejections, times and sizes of records. One attacker is a device that
wants to count twice. The collector's core is the installed one, and writes to topics in memory.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from dpstream.pipeline.collector.batch_writer import BatchWriter, IntakeCapacity
from dpstream.pipeline.collector.intake import Intake
from dpstream.pipeline.collector.responses import HttpResponse
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.epoch_times import times_of
from dpstream.pipeline.jobs.key_files import CollectorKey, WrongKeyError
from dpstream.pipeline.jobs.sealing_keys import public_bytes
from dpstream.topics.envelopes import decode_body
from dpstream.topics.loose_batches import (
    TAG_BYTES,
    decode_enrollments,
    decode_loose_batch,
    horizon_tag,
    report_tag,
    subject_of_device,
)
from dpstream.topics.names import Role
from tests.attacks.attacked_devices import EPOCHS, body_of, device_job, identity, noon
from tests.attacks.promises import broken

_DEVICES: Final = range(16)
_TURNS: Final = 20
"""Number of event loop iterations after which a writer without a delay has written."""
_LONG: Final = 3_600.0
_ACCEPTED: Final = 202
_TOKENS: Final = {
    "audience": "reports",
    "keys": [{"kty": "OKP", "crv": "Ed25519", "kid": "1", "x": "A" * 43}],
}


def attack_collector() -> Iterator[str]:
    return broken(
        {
            "record contents are independent of arrival order": _order,
            "device ids do not reveal tags without the collectors' key": _unkeyed,
            "tags differ between epochs and enrollments": _linked,
            "a device counts once: one key, one content per body, one token": _twice,
            "responses and rejections are independent of contents": _answers,
            "write times and sizes of records are independent of contents": _sizes,
            "a report written after its window could have closed is not acknowledged": _late,
        },
    )


@dataclass
class Topics:
    """In-memory topics of a collector that claim a time of writing (milliseconds since 1970)."""

    appended: int | None = None
    records: list[tuple[str, bytes]] = field(default_factory=list)

    async def write(self, topic: str, partition: int, value: bytes) -> int | None:
        self.records.append((topic, value))
        return self.appended


@dataclass(frozen=True, slots=True)
class _Collected:
    """Outcome of request bodies, in order of arrival.

    `written` has the number of records right after each body, before time passes.
    """

    answers: list[HttpResponse]
    records: list[tuple[str, bytes]]
    written: list[int]

    def tags(self, job: DeployedJob) -> tuple[list[bytes], list[bytes]]:
        reports: list[bytes] = []
        enrollments: list[bytes] = []
        for topic, value in self.records:
            if topic == job.topic(Role.REPORTS):
                rows = decode_loose_batch(value).rows
                reports += [row[:TAG_BYTES].tobytes() for row in rows]
            else:
                enrollments += [tag.tobytes() for tag in decode_enrollments(value).tags]
        return reports, enrollments

    @property
    def taken(self) -> list[bool]:
        return [answer.status == _ACCEPTED for answer in self.answers]


def _key(number: int) -> CollectorKey:
    return CollectorKey(hashlib.sha256(f"collector key {number}".encode()).digest())


def _collected(
    job: DeployedJob,
    epoch: int,
    bodies: Sequence[bytes],
    *,
    subjects: Sequence[str] | None = None,
    key: CollectorKey | None = None,
    appended: int | None = None,
) -> _Collected:
    """Let a collector of the job receive bodies at noon of an epoch, before time passes.

    Args:
        subjects: Subjects of the bodies' tokens; None for no tokens.
        key: Key shared by all collectors of the job.
        appended: Time at which the broker claims to have written the records.
    """
    key = key or _key(1)
    intake = Intake(job.model_copy(update={"collector_key": key.digest}), key)
    topics = Topics(appended)
    now = noon(job, epoch)
    answers: dict[int, HttpResponse] = {}
    written: list[int] = []

    async def offered() -> None:
        batch_writer = BatchWriter(intake, topics, IntakeCapacity(), _raised, lambda: now, _LONG)
        for index, body in enumerate(bodies):
            subject = None if subjects is None else subjects[index]
            rejection = batch_writer.offer(body, subject, now, partial(answers.__setitem__, index))
            if rejection is not None:
                answers[index] = rejection
            for _ in range(_TURNS):
                await asyncio.sleep(0)
            written.append(len(topics.records))
        await batch_writer.finish()

    asyncio.run(offered())
    return _Collected([answers[index] for index in range(len(bodies))], topics.records, written)


def _raised(error: Exception) -> None:
    raise error


def _order() -> str:
    job = device_job()
    orders = _DEVICES, _DEVICES[::-1], [*_DEVICES[::2], *_DEVICES[1::2]]
    seen = [_collected(job, 1, [body_of(job, 1, [device]) for device in order]) for order in orders]
    for topic, what in ((Role.REPORTS, "reports"), (Role.DEVICES, "enrollments")):
        name = job.topic(topic)
        first, *others = ([value for at, value in each.records if at == name] for each in seen)
        if not first:
            return f"writes no {what}"
        if any(first != other for other in others):
            return (
                f"{what} are recorded in order of arrival: an access log reveals the sender of "
                "each row"
            )
    return ""


def _unkeyed() -> str:
    job = device_job()
    bodies = [body_of(job, 1, [device]) for device in _DEVICES]
    reports, enrollments = _collected(job, 1, bodies, key=_key(1)).tags(job)
    written = {*reports, *enrollments}
    others = _collected(job, 1, bodies, key=_key(2)).tags(job)
    if written & {*others[0], *others[1]}:
        return "tags do not depend on the key: a device's id reveals them"
    guesses = b"", bytes(32), _key(1).digest, job.deployment, job.fingerprint
    for device in _DEVICES:
        subject = subject_of_device(identity("device", device))
        for guess in guesses:
            tags = {
                report_tag(guess, job.deployment, 1, subject),
                horizon_tag(guess, job.deployment, 0, subject),
            }
            if tags & written:
                return "a device's tag can be computed from its id and public job data"
    return ""


def _linked() -> str:
    """Check that all tags of a device differ, even if its horizon and epoch numbers agree."""
    job = device_job()
    found: dict[bytes, str] = {}
    for epoch in range(1, 2 * EPOCHS + 1):
        enrolls = epoch % EPOCHS == 1
        bodies = [body_of(job, epoch, [device], enrolls=enrolls) for device in _DEVICES]
        reports, enrollments = _collected(job, epoch, bodies).tags(job)
        seen = [(tag, f"a report of epoch {epoch}") for tag in reports]
        seen += [(tag, f"an enrollment of epoch {epoch}") for tag in enrollments]
        for tag, where in seen:
            if tag in found:
                return f"{found[tag]} and {where} have the same tag and are linkable"
            found[tag] = where
    return ""


def _twice() -> str:
    job, asking = device_job(), device_job(devices={"tokens": _TOKENS})
    if _starts(job.model_copy(update={"collector_key": _key(1).digest}), _key(2)):
        return "a collector with another key accepts reports: a device can count twice"
    if any(_collected(job, 1, [body_of(job, 1, [3, 4, 3])]).records):
        return "two contents of one device are accepted in one body"
    if any(_collected(asking, 1, [body_of(asking, 1, [3])]).taken):
        return "a report without the required token is accepted"
    if any(_collected(asking, 1, [body_of(asking, 1, [3, 4])], subjects=["ann"]).taken):
        return "several devices report with one token"
    bodies = [body_of(asking, 1, [device]) for device in (3, 4, 3)]
    tags, _ = _collected(asking, 1, bodies, subjects=["ann", "ann", "bob"]).tags(asking)
    if len(tags) != len(bodies) or len(set(tags)) != len({"ann", "bob"}):
        return "devices are identified by their self-chosen id instead of their token"
    return ""


def _starts(job: DeployedJob, key: CollectorKey) -> bool:
    try:
        Intake(job, key)
    except WrongKeyError:
        return False
    return True


def _answers() -> str:
    job = device_job()
    for what, contents in (
        ("a response depends on", ([], [0], [1])),
        ("a rejection depends on", ([2], [7], [255])),
    ):
        seen = [_collected(job, 1, [body_of(job, 1, [3], words)]) for words in contents]
        if any(each.answers != seen[0].answers for each in seen):
            return f"{what} the content of a report, and proxies log it"
    return ""


def _sizes() -> str:
    job = device_job()
    seen = set()
    for words in ([], [0], [1]):
        bodies = [body_of(job, 1, [device], words) for device in _DEVICES]
        found = _collected(job, 1, bodies)
        lengths = [(topic, len(value)) for topic, value in found.records]
        seen.add((*found.written, *lengths))
    if len(seen) > 1:
        return "write times or sizes of records depend on contents"
    sealing = device_job(devices={"seal": [_public_key()]})
    if not all(_collected(sealing, 1, [body_of(sealing, 1, [3])]).taken):
        return "a ciphertext of the correct size is rejected"
    whole = decode_body(body_of(sealing, 1, [3])).rows.shape[1]
    # A row of twice the size could pass for two rows.
    for longer in (1, 16, whole):
        if any(_collected(sealing, 1, [body_of(sealing, 1, [3], longer=longer)]).taken):
            return "ciphertexts of several sizes are accepted: a size can reveal the content"
    return ""


def _public_key() -> str:
    private = X25519PrivateKey.from_private_bytes(hashlib.sha256(b"stage").digest())
    return public_bytes(private).hex()


def _late() -> str:
    job = device_job()
    times = times_of(job)
    assert times is not None
    end = times.start(2)
    assert end is not None
    cut = end + round(1000 * job.shuffle.grace)
    collectors_done = Intake(
        job.model_copy(update={"collector_key": _key(1).digest}), _key(1)
    ).settles(1)
    if collectors_done > cut:
        return "collectors close an epoch after its window could have closed"
    body = body_of(job, 1, [3])
    for appended in (end, collectors_done, collectors_done + 1, cut, cut + 1_000):
        taken = any(_collected(job, 1, [body], appended=appended).taken)
        if taken and appended >= collectors_done:
            return "a report is acknowledged although its window could have closed"
        if not taken and appended == end:
            return "a report written in time is not acknowledged"
    return ""
