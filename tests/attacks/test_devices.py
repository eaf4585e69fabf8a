"""Test that attacks on collectors, clients, producers and files find broken guarantees only."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpstream.pipeline.collector import intake
from dpstream.pipeline.collector.batch_writer import BatchWriter
from dpstream.pipeline.collector.intake import Intake, IntakeRules, Taken
from dpstream.pipeline.collector.responses import HttpResponse, RequestProblem
from dpstream.pipeline.collector.tokens import Tagger
from dpstream.pipeline.conformance.finding import find_cases
from dpstream.pipeline.devices import sealed_records
from dpstream.pipeline.devices.producer import Producer, ProducerError
from dpstream.pipeline.devices.producer_store import ProducerStore
from dpstream.pipeline.jobs import key_files
from dpstream.pipeline.jobs.key_files import CollectorKey, NoiseKey
from dpstream.pipeline.protocols.registry import PROTOCOLS
from dpstream.pipeline.whole_files import write_new
from dpstream.randomizers.client import DeviceError, statements, steps
from dpstream.randomizers.client.account import Account
from dpstream.randomizers.client.amounts import allowed
from dpstream.randomizers.client.document import Document
from dpstream.topics import fixed_sizes
from dpstream.topics.envelopes import encode_envelope
from dpstream.topics.fixed_sizes import CountTable, FixedSize, split_fixed
from dpstream.topics.messages import Messages
from dpstream.topics.sealed_messages import pack_reports
from tests.attacks import collected_reports, stored_files
from tests.attacks.collected_reports import attack_collector
from tests.attacks.device_clients import attack_client
from tests.attacks.interrupted_producers import attack_interrupted, attack_renewal
from tests.attacks.presence import attack_presence
from tests.attacks.record_sizes import attack_ciphertexts, attack_sizes
from tests.attacks.stored_files import attack_files
from tests.support.thinned import thinned

Patch = pytest.MonkeyPatch


ATTACKS: Mapping[str, Callable[[], Iterator[str]]] = {
    "collected reports": attack_collector,
    "device clients": attack_client,
    "stored files": attack_files,
    "presence": attack_presence,
    "renewed horizons": attack_renewal,
    "ciphertexts of shufflers": attack_ciphertexts,
}


@pytest.mark.parametrize("name", ATTACKS)
def test_attack_finds_no_violation(name: str) -> None:
    assert list(ATTACKS[name]()) == []


@pytest.mark.parametrize("name", PROTOCOLS)
def test_interruption_does_not_change_what_a_producer_sends(name: str) -> None:
    assert list(attack_interrupted(find_cases(name)[0])) == []


@pytest.mark.parametrize("name", PROTOCOLS)
def test_record_sizes_are_the_same_for_all_values(name: str) -> None:
    assert list(attack_sizes(find_cases(name)[0])) == []


def written_as_they_come(patch: Patch) -> str:
    """Write each report as a separate record."""

    class AtOnce(Intake):
        def take(
            self, rules: IntakeRules, bodies: Sequence[bytes], subjects: Sequence[str | None]
        ) -> Taken:
            each = [
                super(AtOnce, self).take(rules, [body], [subject])
                for body, subject in zip(bodies, subjects, strict=True)
            ]
            return Taken(
                [taken.rejections[0] for taken in each],
                [record for taken in each for record in taken.enrollments],
                [record for taken in each for record in taken.batches],
                sum(taken.reports for taken in each),
            )

    patch.setattr(collected_reports, "Intake", AtOnce)
    return "reports are recorded in order of arrival"


def tagged_with_any_key(patch: Patch) -> str:
    patch.setattr(intake, "Tagger", lambda key, *rest: Tagger(bytes(32), *rest))
    return "tags do not depend on the key"


def tagged_with_a_public_key(patch: Patch) -> str:
    """Tag with the digest of the key, which is in the deployed job."""

    def tagger(key: bytes, *rest: Any) -> Tagger:
        return Tagger(CollectorKey(key).digest, *rest)

    patch.setattr(intake, "Tagger", tagger)
    return "can be computed from its id and public job data"


def tagged_permanently(patch: Patch) -> str:
    def tagger(key: bytes, what: bytes, deployment: bytes, number: int) -> Tagger:
        return Tagger(key, what, deployment, 1)

    patch.setattr(intake, "Tagger", tagger)
    return "a report of epoch 1 and a report of epoch 2 have the same tag"


def accepted_with_any_key(patch: Patch) -> str:
    class Trusting(Intake):
        def __post_init__(self) -> None:
            self.job = self.job.model_copy(update={"collector_key": self.key.digest})
            super().__post_init__()

    patch.setattr(collected_reports, "Intake", Trusting)
    return "a collector with another key accepts reports"


def rejected_by_name(patch: Patch) -> str:
    """Include the content of the body in a rejection."""

    class Talking(Intake):
        def take(
            self, rules: IntakeRules, bodies: Sequence[bytes], subjects: Sequence[str | None]
        ) -> Taken:
            taken = super().take(rules, bodies, subjects)
            rejections = [
                None if rejection is None else RequestProblem.FOREIGN.answer(word=body[-1])
                for rejection, body in zip(taken.rejections, bodies, strict=True)
            ]
            return Taken(rejections, taken.enrollments, taken.batches, taken.reports)

    patch.setattr(collected_reports, "Intake", Talking)
    return "a rejection depends on the content of a report"


def written_first_for_value_1(patch: Patch) -> str:
    class Hasty(BatchWriter):
        def offer(self, body: bytes, *rest: Any) -> HttpResponse | None:
            answer = super().offer(body, *rest)
            for rules, group in list(self._groups.items()) if body[-1] else []:
                self._seal(rules, group)
            return answer

    patch.setattr(collected_reports, "BatchWriter", Hasty)
    return "write times or sizes of records depend on contents"


def always_acknowledged(patch: Patch) -> str:
    class Sure(BatchWriter):
        async def _write(self, rules: IntakeRules, taken: Taken) -> None:
            await super()._write(rules, taken)

    patch.setattr(collected_reports, "BatchWriter", Sure)
    return "acknowledged although its window may have closed"


def enrolled_in_every_envelope(patch: Patch) -> str:
    def always(device: bytes, report: bytes, enrolls: bool, content: bytes, **more: bool) -> bytes:
        return encode_envelope(device, report, True, content, **more)

    patch.setattr(steps, "encode_envelope", always)
    return "enrolls twice in a horizon"


def any_limit(patch: Patch) -> str:
    patch.setattr(Account, "check_room", lambda *arguments: None)
    return "exceed its app's limit of epsilon"


def charged_rounded_down(patch: Patch) -> str:
    patch.setattr(statements, "spent", allowed)
    return "records less epsilon than its reports cost"


def any_promise(patch: Patch) -> str:
    patch.setattr(steps, "check_randomizer", lambda statement: None)
    return "joins a job that declares another unit"


def dropped_with_its_cost(patch: Patch) -> str:
    patch.setattr(steps, "left", lambda document, job: Document())
    return "rejoins a deployment that it left"


def error_with_the_value(patch: Patch) -> str:
    drawn = steps.drawn

    def telling(document: Document, job: str, epoch: int, value: Any, *rest: Any) -> Document:
        try:
            return drawn(document, job, epoch, value, *rest)
        except DeviceError as error:
            raise DeviceError(f"{value}: {error}") from None

    patch.setattr(steps, "drawn", telling)
    return "an error, which apps log, depends on the value"


def written_for_a_group(patch: Patch) -> str:
    patch.setattr(
        key_files, "write_new", lambda path, data, mode: write_new(path, data, mode | 0o040)
    )
    return "a file of secrets is created with mode 640"


def stored_in_open_folder(patch: Patch) -> str:
    def folder(path: Path) -> Path:
        path.mkdir(parents=True, exist_ok=True)
        return path

    patch.setattr(key_files, "private_folder", folder)
    return "a folder of secrets is created with mode 777"


def always_read(patch: Patch) -> str:
    patch.setitem(stored_files._KEYS, "the noise key", (NoiseKey.at, Path.read_bytes))
    return "the noise key is used with mode 601"


def shown_in_logs(patch: Patch) -> str:
    patch.setattr(CollectorKey, "__repr__", lambda key: f"CollectorKey({key.secret!r})")
    return "the collectors' key is displayed"


COLLECTOR = (
    written_as_they_come,
    tagged_with_any_key,
    tagged_with_a_public_key,
    tagged_permanently,
    accepted_with_any_key,
    rejected_by_name,
    written_first_for_value_1,
    always_acknowledged,
)
CLIENT = (
    enrolled_in_every_envelope,
    any_limit,
    charged_rounded_down,
    any_promise,
    dropped_with_its_cost,
    error_with_the_value,
)
FILES = written_for_a_group, stored_in_open_folder, always_read, shown_in_logs


@pytest.mark.parametrize(
    ("attack", "culprit"),
    thinned(
        [
            *((attack_collector, culprit) for culprit in COLLECTOR),
            *((attack_client, culprit) for culprit in CLIENT),
            *((attack_files, culprit) for culprit in FILES),
        ],
        2,
    ),
    ids=lambda each: each.__name__,
)
def test_violation_of_the_guarantee_by_device_software_is_detected(
    attack: Callable[[], Iterator[str]],
    culprit: Callable[[Patch], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reason = culprit(monkeypatch)
    assert reason in next(attack(), "")


def interrupted(name: str) -> str:
    return next(attack_interrupted(find_cases(name)[0]), "")


def test_producer_that_loses_state_on_restart_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    save_arrays = ProducerStore.save_arrays

    def once(store: ProducerStore, arrays: Any) -> None:
        if not store.arrays():
            save_arrays(store, arrays)

    monkeypatch.setattr(ProducerStore, "save_arrays", once)
    assert "a restart loses" in interrupted("future_rand")


def test_producer_that_reports_from_unsaved_state_is_detected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @contextmanager
    def kept(producer: Producer) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise ProducerError("no room") from error

    monkeypatch.setattr(Producer, "_storing", kept)
    assert "use the state of an epoch that could not be stored" in interrupted("future_rand")


def test_producer_that_randomizes_an_epoch_again_is_detected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    close_steps = Producer.close_steps

    def again(producer: Producer, epoch: int, *rest: Any) -> Any:
        if epoch <= producer.closed_epoch:
            law, protocol = producer.job.law, producer.job.protocol_entry
            producer._randomizer = protocol.randomizer(law).restored(
                producer.store.arrays(), epoch - 1
            )
        return close_steps(producer, epoch, *rest)

    monkeypatch.setattr(Producer, "_check_open", lambda producer, epoch: None)
    monkeypatch.setattr(Producer, "close_steps", again)
    assert "randomized again when its values arrive twice" in interrupted("split_budget")


def test_reuse_of_device_state_in_the_next_horizon_is_detected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    renew = Producer._renew

    def keeping(producer: Producer, epoch: int) -> None:
        before, horizon = producer._randomizer.state_arrays(), producer._horizon
        renew(producer, epoch)
        if producer._horizon != horizon:
            law, protocol = producer.job.law, producer.job.protocol_entry
            producer._randomizer = protocol.randomizer(law).restored(before, 0)

    monkeypatch.setattr(Producer, "_renew", keeping)
    assert "a horizon reuses the" in next(attack_renewal(), "")


def test_presence_that_depends_on_values_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    report, close = Producer.report, Producer.close

    def lingering(producer: Producer, epoch: int) -> None:
        close(producer, epoch)
        producer._present[:] = True

    def welcoming(producer: Producer, epoch: int, values: Any) -> None:
        producer.enroll([user for user, value in values.items() if value])
        report(producer, epoch, values)

    def by_value(producer: Producer, generator: Any) -> None:
        producer._present[producer._leaving] = producer._values[producer._leaving] > 0

    for name, culprit, reason in (
        ("close", lingering, "reports at another while absent"),
        ("report", welcoming, "enrollment or rejection depends on the value"),
        ("_speak_for_leaving", by_value, "depends on the last value"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(Producer, name, culprit)
            assert reason in next(attack_presence(), "")


def test_record_sizes_that_depend_on_values_are_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    def as_wide_as_the_largest(words: Messages, size: FixedSize) -> Any:
        assert isinstance(size, CountTable)
        assert words.counts is not None
        width = np.min_scalar_type(int(words.counts.max(initial=1))).itemsize
        return split_fixed(words, replace(size, count_bytes=width))

    monkeypatch.setattr(fixed_sizes, "split_fixed", as_wide_as_the_largest)
    case = find_cases("shuffled_counts")[0]
    assert "number or length of records" in next(attack_sizes(case), "")


def test_missing_cover_traffic_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        sealed_records,
        "pack_reports",
        lambda values, cover_traffic, form: pack_reports(values, 0, form),
    )
    assert "number of ciphertexts reveals the number of messages" in next(attack_ciphertexts(), "")
