"""Views of single parties on encrypted reports and shares of tables, and what they reveal.

The attacker is one of the parties, and decrypts what is encrypted to it. The next shuffler and the
aggregator must not learn the sender of a report. To each of the two aggregators, its shares must
look random. A shuffler that forwards the shares of few devices must not learn their sum. A correct
program fails with a probability below 2^-100.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from dpstream.pipeline.jobs.sealing_keys import public_bytes
from dpstream.pipeline.stages.added_shares import partial_of
from dpstream.topics.sealed_messages import open_rows, seal_rows
from dpstream.topics.sealing import Lock, sealing_context, unseal_all
from dpstream.topics.shares import (
    Counts,
    PartialSum,
    ShareFormat,
    ShareSum,
    ciphertexts_of,
    share_table,
)
from tests.attacks.promises import broken
from tests.attacks.scenarios import scenario_job

# Enough reports that two random orders are never the same.
_REPORTS = 40
_CELLS, _MINIMUM = 64, 4
# Bytes of a share's name, and of the header that precedes the share.
_NAME, _ABOUT = 16, 8
_CONTEXTS = tuple(sealing_context(name, bytes(16), bytes(16), 1) for name in ("a", "b"))


def attack_ciphertexts_and_shares() -> Iterator[str]:
    promises = {
        "ciphertext order is independent of report order": _order_of_ciphertexts,
        "shares of equal tables are random, with unique names": _shares_alone,
        "no party forwards the sum of fewer devices than the minimum": _sums_of_few,
    }
    return broken(promises)


def _order_of_ciphertexts() -> str:
    key = X25519PrivateKey.generate()
    lock = Lock(public_bytes(key), _CONTEXTS[0])
    rows = np.arange(2 * _REPORTS, dtype="<u8").reshape(_REPORTS, 2)
    orders = rows, rows[::-1]
    opened = [open_rows(seal_rows(each, [lock]), key, lock.context).tolist() for each in orders]
    if any(sorted(each) != rows.tolist() for each in opened):
        return "ciphertexts decrypt to rows other than those encrypted"
    places = [
        [found_rows.index(row) for row in order.tolist()]
        for found_rows, order in zip(opened, orders, strict=True)
    ]
    if places[0] == places[1]:
        return "ciphertexts keep the order of their reports: their recipient can link senders"
    if opened[0] == opened[1]:
        return "the order of ciphertexts depends on their contents"
    return ""


def _shares_alone() -> str:
    """Check shares of a table of zeros, of a full table, and of zeros again."""
    form = ShareFormat(_CELLS)
    tables = [np.full(_CELLS, count, "<u4") for count in (0, 1 << 20, 0)]
    keys, names, shares = _keys(), list[bytes](), list[bytes]()
    for table in tables:
        opened = _opened(table, 1, form, keys)
        names += [content[:_NAME] for content in opened[0]]
        # Both parties also see the index of the chunk and the number of devices.
        shares += [content[_NAME + _ABOUT :] for contents in opened for content in contents]
    if len({*shares}) < len(shares):
        return "two tables have the same share: one party can compute the other's share"
    if len({*names}) < len(names):
        return "shares of two devices have the same name: the second can vanish undetected"
    return ""


def _sums_of_few() -> str:
    keys = _keys()
    sealed = {"shares": [public_bytes(key).hex() for key in keys]}
    parameters = {"epsilon": 1, "delta": 1e-6, "domain": ["a", "b"]}
    job = scenario_job("count_min", parameters, minimum=_MINIMUM, sealed=sealed)
    form = job.table_format
    for devices in (1, _MINIMUM - 1, _MINIMUM):
        sums = [ShareSum.empty(form, party) for party in range(len(keys))]
        for _ in range(devices):
            opened = _opened(np.ones(form.cells, "<u4"), 1, form, keys)
            for total, contents in zip(sums, opened, strict=True):
                # Copies of a share must not count as more devices.
                total.add([*contents, *contents])
        for total in sums:
            handed_on = PartialSum.from_bytes(form, partial_of(job, total, None)).chunks is not None
            if handed_on != (devices >= _MINIMUM):
                did = "forwards" if handed_on else "suppresses"
                return f"a party {did} the sum of {devices} devices with a minimum of {_MINIMUM}"
    return ""


def _keys() -> list[X25519PrivateKey]:
    return [X25519PrivateKey.generate() for _ in _CONTEXTS]


def _opened(
    table: Counts, devices: int, form: ShareFormat, keys: Sequence[X25519PrivateKey]
) -> list[list[bytes]]:
    """Split a table into two shares, and return the contents that each party decrypts."""
    first, second = (
        Lock(public_bytes(key), context) for key, context in zip(keys, _CONTEXTS, strict=True)
    )
    rows = share_table(table, devices, form, (first, second), secrets.token_bytes)
    return [
        [
            content
            for content in unseal_all(ciphertexts_of(rows, party), key, context)
            if content is not None
        ]
        for party, (key, context) in enumerate(zip(keys, _CONTEXTS, strict=True))
    ]
