"""Golden vectors of measures: recorded events and the answers of each epoch.

Each file has the measures of one type, and histories: the events recorded before an epoch is
closed, as epoch, microseconds, name, numbers and labels, and the answers of all measures then.
Epochs and days are in UTC. Write the files with::

    python -m tests.randomizers.javascript.measure_vectors
"""

from __future__ import annotations

import json
from random import Random
from typing import Any, Final

from tests.randomizers.javascript.vectors import FOLDER
from tests.support.random_events import MEASURES, actions

MEASURE_FOLDER: Final = FOLDER / "measures"
_HISTORIES = 6
_LAST_EPOCH = 8


def measure_vectors(kind: str) -> dict[str, Any]:
    """Return the vectors of a type of measure, the same in every call."""
    measures = [measure for measure in MEASURES if measure.type == kind]
    random = Random(f"measures {kind}")
    return {
        "measures": [measure.to_json() for measure in measures],
        "answer": [measure.answer for measure in measures],
        "labels": [list(measure.labels) for measure in measures],
        "histories": [actions(random, measures, _LAST_EPOCH) for _ in range(_HISTORIES)],
    }


def main() -> None:
    MEASURE_FOLDER.mkdir(exist_ok=True)
    for kind in sorted({measure.type for measure in MEASURES}):
        text = json.dumps(measure_vectors(kind), separators=(",", ":"))
        (MEASURE_FOLDER / f"{kind}.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
