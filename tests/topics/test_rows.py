"""Test that `NumberRow` behaves like a tuple and is stored as an array."""

from __future__ import annotations

import numpy as np
import pytest

from dpstream.topics.frames import U4_MAX, CodecError
from dpstream.topics.manifests import Manifest, WindowStatus, decode_manifest, encode_manifest


def manifest(populations: object, population: int) -> Manifest:
    inside = np.ones(len(populations), np.bool_)  # type: ignore[arg-type]
    return Manifest(
        bytes(16), bytes(16), 1, WindowStatus.RELEASED,
        0, 1, 1, inside, populations, 1, population, 0,  # type: ignore[arg-type]
    )  # fmt: skip


@pytest.mark.parametrize("make", [list, np.array, lambda values: np.array(values, object)])
def test_manifest_population_out_of_range_is_rejected(make: object) -> None:
    assert callable(make)
    for values, problem in (
        ([1, -1], "smallest population is -1"),
        ([U4_MAX + 1, 1], f"largest population is {U4_MAX + 1}"),
        ([U4_MAX] * 3, f"'population' is {3 * U4_MAX - 1}; expected {3 * U4_MAX}"),
    ):
        with pytest.raises(CodecError, match=problem):
            manifest(make(values), sum(values) - 1)
    most = manifest(make([U4_MAX] * 3), 3 * U4_MAX)
    assert most == manifest((U4_MAX,) * 3, 3 * U4_MAX)
    assert decode_manifest(encode_manifest(most)) == most
