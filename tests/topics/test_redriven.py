"""Test that markers of requeued records are decoded as written, or rejected."""

from __future__ import annotations

import json

import pytest

from dpstream.topics.frames import CodecError
from dpstream.topics.names import Role
from dpstream.topics.records import DeadLetter
from dpstream.topics.redriven import OFFSETS_MAX, Redriven, markers

DEPLOYMENT = bytes(range(16))
BODY = {
    "version": 1,
    "type": "redriven",
    "deployment": DEPLOYMENT.hex(),
    "partition": 2,
    "offsets": [3, 5],
}


def test_redrive_marker_bytes_are_pinned() -> None:
    marker = Redriven(DEPLOYMENT, 2, (3, 5))
    assert marker.to_bytes() == json.dumps(BODY, separators=(",", ":")).encode()
    assert Redriven.from_bytes(marker.to_bytes()) == marker


def test_redrive_marker_contains_the_role_of_its_topic() -> None:
    marker = Redriven(DEPLOYMENT, 2, (3, 5), Role.REPORTS_2)
    assert json.loads(marker.to_bytes()) == BODY | {"role": "reports-2"}
    assert Redriven.from_bytes(marker.to_bytes()) == marker
    assert next(markers(DEPLOYMENT, 2, (3, 5), Role.REPORTS_2)) == marker
    with pytest.raises(CodecError, match="role is shuffled; expected one of"):
        Redriven(DEPLOYMENT, 2, (3, 5), Role.SHUFFLED)


def test_redrive_marker_is_not_read_as_a_dead_letter() -> None:
    with pytest.raises(CodecError):
        DeadLetter.from_record(Redriven(DEPLOYMENT, 2, (3,)).to_bytes(), ())


@pytest.mark.parametrize(
    "changed",
    [
        {"version": 2},
        {"type": "deregistration"},
        {"deployment": "00"},
        {"deployment": 5},
        {"deployment": "zz" * 16},
        {"partition": -1},
        {"partition": True},
        {"partition": "2"},
        {"offsets": []},
        {"offsets": [1.5]},
        {"offsets": [-1]},
        {"offsets": 5},
        {"offsets": list(range(OFFSETS_MAX + 1))},
        {"more": 1},
        {"role": "shuffled"},
        {"role": 2},
    ],
)
def test_redrive_marker_with_an_invalid_field_is_rejected(changed: dict[str, object]) -> None:
    with pytest.raises(CodecError):
        Redriven.from_bytes(json.dumps(BODY | changed).encode())


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b"\xff", b"[" * 100_000])
def test_non_object_json_is_rejected(data: bytes) -> None:
    with pytest.raises(CodecError):
        Redriven.from_bytes(data)


def test_many_offsets_are_split_over_several_redrive_markers() -> None:
    offsets = range(2 * OFFSETS_MAX + 1)
    made = list(markers(DEPLOYMENT, 1, offsets))
    assert [len(marker.offsets) for marker in made] == [OFFSETS_MAX, OFFSETS_MAX, 1]
    assert [offset for marker in made for offset in marker.offsets] == list(offsets)
