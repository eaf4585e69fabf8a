"""Test ``dpstream dead-letters``: rejected records and reasons, without report contents."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpstream.pipeline.actions import LogRecord
from dpstream.pipeline.operations.dead_letter_log import header_of
from dpstream.topics.batches import Batch, Punctuation, encode_batch, encode_punctuation
from dpstream.topics.chunks import Chunk, encode_chunk
from dpstream.topics.messages import Messages
from dpstream.topics.records import DeadLetter, Discard, Reason
from tests.support.commands import Commands
from tests.support.memory_cluster import MemoryCluster

SECRET = 0xABCD
WORDS = Messages(np.full((3, 1), SECRET, np.uint16), None)
IDENTITIES: dict[str, Any] = {"fingerprint": b"f" * 16, "deployment": b"d" * 16}
BATCH = encode_batch(
    Batch(**IDENTITIES, batch=b"b" * 16, enrollment=b"e" * 16, epoch=7, words=WORDS)
)
PUNCTUATION = encode_punctuation(
    Punctuation(
        **IDENTITIES,
        enrollment=b"e" * 16,
        epoch=8,
        batches=1,
        contributors=3,
        population=4,
        drawing=b"d" * 8,
    )
)
CHUNK = encode_chunk(
    Chunk(
        **IDENTITIES, epoch=9, manifest_offset=0, attempt=b"a" * 16, index=0, total=1, words=WORDS
    )
)
SHOWN = {"deployment": "64" * 16, "fingerprint": "66" * 16}
SENT = {"enrollment": "65" * 16}


def letter(value: bytes, reason: Reason, offset: int = 0) -> DeadLetter:
    return DeadLetter("small.reports", 0, offset, reason, "why", value)


@pytest.mark.parametrize(
    ("value", "header"),
    [
        (BATCH, {"kind": "batch", "epoch": 7, **SHOWN, **SENT, "batch": "62" * 16}),
        (PUNCTUATION, {"kind": "punctuation", "epoch": 8, **SHOWN, **SENT}),
        (CHUNK, {"kind": "chunk", "epoch": 9, **SHOWN}),
        (BATCH[:-1], None),
        (b"not a record", None),
        (b"", None),
    ],
)
def test_dead_letter_header_describes_the_record_but_not_its_content(
    value: bytes, header: dict[str, str | int] | None
) -> None:
    assert header_of(letter(value, Reason.EPOCH)) == header


def test_dead_letters_command_lists_counts_by_reason_and_the_latest_records(
    dpstream: Commands, cluster: MemoryCluster, job_file: Path
) -> None:
    assert dpstream("deploy", job_file).code == 0
    assert dpstream("dead-letters", "small").output == "no dead letters\n"
    reject(
        cluster,
        letter(b"secret", Reason.UNREADABLE, 1),
        letter(BATCH, Reason.EPOCH, 2),
        letter(b"secret", Reason.UNREADABLE, 3),
        letter(BATCH, Reason.PROTOCOL, 4),
    )
    output = dpstream("dead-letters", "small", "--limit", 2).output
    assert output.splitlines()[0] == "1 epoch, 1 protocol, 2 unreadable"
    assert "2 earlier records are not listed. To list them: --limit 4" in output
    assert " ".join(output.splitlines()[-2].split()).startswith("reports 0 4 protocol")
    assert "batch of epoch 7" in output
    shown = dpstream("dead-letters", "small", "--json", "--limit", 3)
    assert [each["offset"] for each in shown.json] == [2, 3, 4]
    assert [each["header"] and each["header"]["epoch"] for each in shown.json] == [7, None, 7]
    for text in (output, shown.output, dpstream("dead-letters", "small").output):
        assert "secret" not in text
        assert str(SECRET) not in text
        assert f"{SECRET:x}" not in text.lower()


def test_dead_letters_command_hides_sizes_if_message_counts_are_secret(
    dpstream: Commands, cluster: MemoryCluster, job_file: Path
) -> None:
    """Such reports are private only after the shuffle, and their number is part of the noise."""
    kept = job_file.with_name("kept")
    job_file.write_text(
        "name: small\nprotocol: shuffled_counts\nparameters: {epsilon: 1, delta: 1e-6}\n"
        "epochs: {count: 4}\nshuffle: {minimum: 1000}\ntopics: {partitions: 2}\n"
    )
    assert dpstream("deploy", job_file).code == 0
    reject(cluster, letter(BATCH, Reason.ENROLLMENT, 2))
    (shown,) = dpstream("dead-letters", "small", "--json").json
    assert (shown["size"], shown["header"]["epoch"]) == (None, 7)
    assert f" {len(BATCH)} " not in dpstream("dead-letters", "small").output
    result = dpstream("dead-letters", "small", "--save", kept)
    assert (result.code, result.output, result.errors.count("\n")) == (2, "", 1)
    assert "not private before the shuffle" in result.errors
    assert not kept.exists()


def test_discard_clears_the_warning_until_new_dead_letters_arrive(
    dpstream: Commands, cluster: MemoryCluster, job_file: Path
) -> None:
    assert dpstream("deploy", job_file).code == 0
    assert dpstream("dead-letters", "small", "--discard").output == "no dead letters to discard\n"
    reject(cluster, letter(BATCH, Reason.EPOCH, 2), letter(b"?", Reason.UNREADABLE, 3))
    assert "issue: 2 dead letters" in dpstream("status", "small").output
    output = dpstream("dead-letters", "small", "--discard").output
    assert output == "2 dead letters discarded and deleted; status warns only about later ones\n"
    assert dpstream("dead-letters", "small", "--discard").output == "no dead letters to discard\n"
    status = dpstream("status", "small").output
    assert "dead letters" not in status
    assert dpstream("dead-letters", "small").output == "no dead letters\n"
    assert cluster.start_offsets("small.dead-letters") == [2]

    reject(cluster, letter(b"?", Reason.UNREADABLE, 4))
    status = dpstream("status", "small").output
    assert "issue: 1 dead letter" in status
    assert "dead letters: 1 unreadable" in status
    shown = dpstream("dead-letters", "small", "--json").json
    assert [each["discarded"] for each in shown] == [False]


def test_discard_resumes_deletion_after_an_interruption(
    dpstream: Commands, cluster: MemoryCluster, job_file: Path
) -> None:
    """This includes dead letters that an earlier version discarded but left in place."""
    deployed = dpstream("deploy", job_file, "--json").json
    reject(cluster, *(letter(b"?", Reason.UNREADABLE, offset) for offset in range(3)))
    discard = Discard(bytes.fromhex(deployed["deployment"]), 2)
    cluster.append("small.dead-letters", discard.to_bytes())
    reject(cluster, letter(b"?", Reason.UNREADABLE, 7))
    assert dpstream("dead-letters", "small", "--redrive").code == 0
    assert cluster.start_offsets("small.dead-letters") == [2], "the oldest unhandled dead letter"
    assert dpstream("dead-letters", "small", "--discard", "--json").json == {"discarded": 2}
    assert cluster.start_offsets("small.dead-letters") == [5], "the latest marker stays"


def test_actions_of_the_dead_letters_command_are_mutually_exclusive(dpstream: Commands) -> None:
    result = dpstream("dead-letters", "small", "--discard", "--redrive")
    assert (result.code, result.errors.count("are mutually exclusive")) == (2, 1)


def reject(cluster: MemoryCluster, *letters: DeadLetter) -> None:
    records = cluster.records["small.dead-letters", 0]
    for each in letters:
        value, headers = each.to_record()
        records.append(LogRecord(len(records), value, 0, None, tuple(headers)))
