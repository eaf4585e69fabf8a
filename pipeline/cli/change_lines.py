"""Changes as lines of text: those of estimates, which say that they are changes, and since when."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator


def change_lines(lines: Iterable[str], format: str, lag: int) -> Iterator[str]:
    """Lines of records whose estimates are changes.

    Args:
        lines: as `dpstream.pipeline.cli.answer_lines.printed_lines` makes them.
        format: "table", "csv" or "json".
        lag: since how many epochs ago.
    """
    for place, line in enumerate(lines):
        if format == "json":
            yield json.dumps({**json.loads(line), "change_since": lag}, allow_nan=False)
        elif place == 0:
            yield line.replace("estimate", "  change" if format == "table" else "change", 1)
        else:
            yield line
    if format == "table":
        epochs = "the epoch before" if lag == 1 else f"{lag:,} epochs ago"
        yield f"\nchange: since {epochs}; ± sd, low and high are its own"
