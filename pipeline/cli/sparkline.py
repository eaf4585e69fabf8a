"""A plot in one line of text."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

_BARS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float], width: int) -> str:
    """Bars from 0 to the largest value, at most `width` of them: each shows the largest of a part.

    >>> sparkline([1, 2, 4, 8], 4), sparkline([1, 2, 4, 8], 2), sparkline([0.0, 0.0], 9)
    ('▁▂▄█', '▂█', '▁▁')
    """
    count = min(width, len(values))
    bounds = [len(values) * part // count for part in range(count + 1)] if count else [0]
    shown = [max(values[low:high]) for low, high in pairwise(bounds)]
    top = max(shown, default=0.0) or 1.0
    steps = len(_BARS)
    return "".join(_BARS[max(0, min(steps, -int(-steps * each // top)) - 1)] for each in shown)
