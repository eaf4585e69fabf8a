from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dpstream.topics.message_formats import MessageFormat


def test_report_size_is_width_times_integer_size() -> None:
    assert MessageFormat(np.dtype("<u8"), width=5).report_bytes == 40
    assert str(MessageFormat(np.dtype("<u4"))) == "1 x uint32"


@pytest.mark.parametrize("distinct", [1, 255, 256])
def test_message_format_accepts_a_number_of_distinct_messages(distinct: int) -> None:
    assert MessageFormat(np.dtype("u1"), distinct=distinct).distinct == distinct


@pytest.mark.parametrize(
    "arguments",
    [
        ("<i4",),
        ("<f8",),
        (">u4",),
        ("?",),
        ("u1", 0),
        ("u1", 1, 0),
        ("u1", 1, 257),
        ("u1", 2, 3),
    ],
)
def test_invalid_message_formats_are_rejected(arguments: tuple[Any, ...]) -> None:
    dtype, *others = arguments
    with pytest.raises(ValueError, match=r"reports have|'distinct' is"):
        MessageFormat(np.dtype(dtype), *others)
