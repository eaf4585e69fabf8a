"""Write the golden bytes of a protocol.

They pin formats that must stay readable: constants in job records, device state on disk, reports
and batches on the wire, aggregator state in partials. Changed bytes break running deployments, so
only this command writes the files::

    python -m tests.conformance.golden [PROTOCOL ...]
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from dpstream.pipeline.protocols.protocol import Law
from dpstream.pipeline.protocols.registry import PROTOCOLS
from dpstream.randomizers.counted_messages import CountedMessages
from dpstream.randomizers.randomness import seeded_generator
from dpstream.topics.batches import Batch, encode_batch
from dpstream.topics.messages import Messages
from tests.conformance.cases import CASES, Case, MessageArray

DEVICES = 24


def golden_file(protocol: str) -> Path:
    return Path(__file__).parent / "golden" / f"{protocol}.json"


def golden_bytes(case: Case, law: Law) -> dict[str, Any]:
    """Return what the current code writes for a mechanism: bytes in hexadecimal, and JSON."""
    protocol, parameters = case.protocol, case.parameters
    devices, aggregator = protocol.randomizer(law), protocol.aggregation.make(law, parameters)
    devices.enroll(DEVICES, seeded_generator(0))
    drawn = {
        name: [array.dtype.str, list(array.shape), array.tobytes().hex()]
        for name, array in devices.state_arrays().items()
    }
    reports, batches = [], []
    for epoch, values in enumerate(case.mixed_values(DEVICES), start=1):
        words = as_words(devices.report(epoch, values, None, seeded_generator(epoch)))
        (given,) = case.released([words.values], seeded_generator(epoch))
        aggregator.add(epoch, given, words.counts)
        reports.append(written_out_bytes(words).hex())
        batches.append(encode_batch(batch_of(epoch, words)).hex())
    return {
        "parameters": asdict(parameters),
        "last_epoch": case.last_epoch,
        "law": law.to_json(),
        "devices": drawn,
        "reports": reports,
        "batches": batches,
        "state": aggregator.to_bytes().hex(),
    }


def flattened(constants: Any, name: str) -> Iterator[tuple[str, Any]]:
    if isinstance(constants, dict):
        parts = list(constants.items())
    elif isinstance(constants, list):
        parts = list(enumerate(constants))
    else:
        yield name, constants
        return
    for key, part in parts:
        yield from flattened(part, f"{name}/{key}")


def as_words(reports: MessageArray | CountedMessages) -> Messages:
    if isinstance(reports, CountedMessages):
        return Messages(reports.values, reports.counts)
    return Messages(reports)


def written_out_bytes(words: Messages) -> bytes:
    if words.counts is None:
        return words.values.tobytes()
    return np.repeat(words.values, words.counts.astype(np.intp), axis=0).tobytes()


def batch_of(epoch: int, words: Messages) -> Batch:
    fingerprint, deployment, batch, enrollment = (bytes([number] * 16) for number in range(1, 5))
    return Batch(fingerprint, deployment, batch, enrollment, epoch, words)


def main(names: list[str]) -> None:
    for name in names or PROTOCOLS:
        cases = [golden_bytes(case, case.law) for case in CASES if case.protocol.name == name]
        if not cases:
            sys.exit(f"protocol {name} has no examples; expected one of: {', '.join(PROTOCOLS)}")
        golden_file(name).parent.mkdir(exist_ok=True)
        golden_file(name).write_text(json.dumps(cases, indent=1) + "\n")
        print(f"{golden_file(name)}: {len(cases)} examples")


if __name__ == "__main__":
    main(sys.argv[1:])
