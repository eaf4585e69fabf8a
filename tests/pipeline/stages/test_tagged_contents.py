"""Test that the first content of each tag is stored, in minimal memory."""

from __future__ import annotations

import os
import tracemalloc
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpstream.pipeline.actions import LogRecord
from dpstream.pipeline.stages import populations, tagged_contents
from dpstream.pipeline.stages.device_admission import AdmittedReports
from dpstream.pipeline.stages.device_windows import DeviceWindow
from dpstream.pipeline.stages.environment import temporary_file
from dpstream.pipeline.stages.multisets import MessageMultiset
from dpstream.pipeline.stages.populations import Population
from dpstream.pipeline.stages.tagged_contents import TaggedContents
from dpstream.topics.loose_batches import Enrollments, encode_enrollments, horizon_tag
from tests.support.device_world import COLLECTOR_KEY, device_job

TAGS = st.lists(st.sampled_from([*range(5), *((n << 58) + n for n in range(1, 64)), 2**64 - 1]))


def first_of_each(contents: TaggedContents) -> list[list[int]]:
    return sorted(row for chunk in contents.first_of_each() for row in chunk.tolist())


@settings(max_examples=60, deadline=None)
@given(st.lists(TAGS, max_size=6), st.integers(1, 200))
def test_first_content_of_every_tag_is_stored_once(batches: list[list[int]], limit: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tagged_contents, "_MEMORY_LIMIT", limit)
        contents = TaggedContents(2)
        first: dict[int, list[int]] = {}
        place = 0
        for tags in batches:
            rows = [[place + i >> 8, place + i & 255] for i in range(len(tags))]
            place += len(tags)
            contents.add(np.array(tags, np.uint64), np.array(rows, np.uint8).reshape(-1, 2))
            for tag, row in zip(tags, rows, strict=True):
                first.setdefault(tag, row)
            # Lookups change nothing.
            assert first_of_each(contents) == sorted(first.values())
        assert len(contents) == place
        contents.close()
        assert first_of_each(contents) == []


def test_contents_that_are_added_after_a_read_are_counted() -> None:
    job = device_job()
    form = job.content_format
    window = DeviceWindow(
        1, 0.0, form, partial(MessageMultiset, job.message_format), temporary_file
    )

    def come(*tags: int) -> None:
        content = np.frombuffer(form.pack(np.array([[1]], form.dtype)), np.uint8)
        contents = np.tile(content, (len(tags), 1))
        window.add(AdmittedReports(1, np.array(tags, np.uint64), contents, 0))

    come(1, 2)
    assert (window.devices, window.words.sorted().messages) == (2, 2)
    come(2, 3)
    assert (window.devices, window.words.sorted().messages) == (3, 3)
    window.close()


def test_memory_limit_does_not_change_which_copy_counts() -> None:
    job = device_job()
    form = job.content_format
    rng = np.random.default_rng(3)
    tags = rng.integers(2**64, size=500, dtype=np.uint64)
    ciphertexts = rng.integers(100, size=500).astype(np.uint64)
    words = rng.integers(2, size=500)
    packed = [form.pack(np.array([[word]], form.dtype)) for word in words.tolist()]
    contents = np.frombuffer(b"".join(packed), np.uint8).reshape(500, -1)
    lowest = {
        ciphertext: words[ciphertexts == ciphertext][np.argmin(tags[ciphertexts == ciphertext])]
        for ciphertext in set(ciphertexts)
    }
    results = set()
    for spilled_after in (None, 1, 250):
        window = DeviceWindow(
            1, 0.0, form, partial(MessageMultiset, job.message_format), temporary_file, sealed=True
        )
        for at in range(0, 500, 50):
            part = slice(at, at + 50)
            window.add(AdmittedReports(1, tags[part], contents[part], 0, ciphertexts[part]))
            if spilled_after is not None and at >= spilled_after:
                window.drop_messages()
        assert window.devices == len(lowest)
        taken = window.take_messages().sorted()
        results.add(
            np.repeat(taken.values[:, 0], 1 if taken.counts is None else taken.counts).tobytes()
        )
    assert results == {
        np.sort([int(word) for word in lowest.values()]).astype(form.dtype).tobytes()
    }


DEVICES = 10_000_000


@pytest.mark.verify
@pytest.mark.parametrize("sealed", [False, True], ids=["open", "sealed"])
@pytest.mark.parametrize(
    ("protocol", "parameters"),
    [
        ("future_rand", {"epsilon": 4, "max_changes": 2}),
        (
            "hadamard_values",
            {"epsilon": 4, "max_changes": 2, "domain": [f"{n}" for n in range(1_000)]},
        ),
    ],
)
def test_window_with_ten_million_devices_fits_in_300_mb_of_memory(
    protocol: str, parameters: dict[str, object], sealed: bool
) -> None:
    job = device_job(protocol, parameters)
    form = job.content_format
    rng = np.random.default_rng(1)
    packed = [form.pack(np.array([[word]], form.dtype)) for word in range(2)]
    contents = np.frombuffer(b"".join(packed), np.uint8).reshape(2, -1)
    tracemalloc.start()
    window = DeviceWindow(
        1, 0.0, form, partial(MessageMultiset, job.message_format), temporary_file, sealed=sealed
    )
    for start in range(0, DEVICES, 50_000):
        numbers = np.arange(start, start + 50_000, dtype=np.uint64) + np.uint64(1)
        tags = numbers * np.uint64(0x9E3779B97F4A7C15)
        ciphertexts = numbers * np.uint64(0xBF58476D1CE4E5B9) if sealed else None
        window.add(AdmittedReports(1, tags, contents[rng.integers(0, 2, 50_000)], 0, ciphertexts))
    assert window.devices == DEVICES
    words = window.take_messages()
    assert words.sorted().messages == DEVICES
    words.close()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    print(f"{protocol}, {'sealed' if sealed else 'open'}: {peak / 1e6:.0f} MB")
    assert peak < 300e6


@pytest.mark.verify
def test_population_of_ten_million_devices_fits_in_120_mb_of_memory() -> None:
    population = Population(device_job())
    tracemalloc.start()
    job = device_job()
    for start in range(0, DEVICES, 30_000):
        stop = min(start + 30_000, DEVICES)
        tags = (np.arange(start, stop, dtype=np.uint64) + np.uint64(1)) * np.uint64(
            0x9E3779B97F4A7C15
        )
        record = Enrollments(job.fingerprint, job.deployment, 1, tags)
        population.apply(LogRecord(0, encode_enrollments(record)))
    assert population.count(1) == DEVICES
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 120e6


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 8), TAGS.filter(bool)), max_size=8), st.integers(1, 60))
def test_population_counts_the_first_enrollment_of_every_tag(
    records: list[tuple[int, list[int]]], limit: int
) -> None:
    job = device_job(
        epochs={"count": 4, "start": "2023-11-14T22:13:20Z", "length": "PT100S", "renew": True}
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(populations, "_WAITING_LIMIT", limit)
        population = Population(job)
        first: dict[tuple[int, int], int] = {}
        for epoch, tags in records:
            record = Enrollments(job.fingerprint, job.deployment, epoch, np.array(tags, np.uint64))
            population.apply(LogRecord(0, encode_enrollments(record)))
            for tag in tags:
                first.setdefault((job.epochs.horizon_of(epoch), tag), epoch)
            for requested in range(1, 9):
                expected = sum(
                    horizon == job.epochs.horizon_of(requested) and epoch <= requested
                    for (horizon, _), epoch in first.items()
                )
                assert population.count(requested) == expected
        population.forget_before(5)
        assert population.count(4) == 0
        population.apply(
            LogRecord(
                0,
                encode_enrollments(
                    Enrollments(job.fingerprint, job.deployment, 2, np.array([1], np.uint64))
                ),
            )
        )
        assert population.count(4) == 0


def test_records_of_other_deployments_are_skipped() -> None:
    job = device_job()
    population = Population(job)
    tags = np.array([3], np.uint64)
    for record in (
        b"nonsense",
        encode_enrollments(Enrollments(bytes(16), job.deployment, 1, tags)),
        encode_enrollments(Enrollments(job.fingerprint, bytes(16), 1, tags)),
        encode_enrollments(Enrollments(job.fingerprint, job.deployment, 9, tags)),
    ):
        population.apply(LogRecord(0, record))
    assert population.count(8) == 0


def test_tags_of_a_device_differ_across_horizons() -> None:
    device = os.urandom(16)
    tags = [horizon_tag(COLLECTOR_KEY, bytes(16), horizon, b"d" + device) for horizon in range(64)]
    assert len(set(tags)) == 64


@pytest.mark.parametrize("spilled", [False, True])
def test_rows_that_contradict_the_first_row_with_their_tag_are_counted(spilled: bool) -> None:
    contents = TaggedContents(content_bytes=1)
    tags = np.array([7, 9, 7, 7, 1 << 63], np.uint64)
    for values in ([1, 2, 1, 3, 4], [1, 2, 1, 1, 5]):
        contents.add(tags, np.array(values, np.uint8)[:, None])
        if spilled:
            contents.spill()
    for _ in range(2):
        assert sum(map(len, contents.first_of_each())) == 3
        assert contents.contradicting == 2
    contents.close()
