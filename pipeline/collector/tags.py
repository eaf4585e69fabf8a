"""The tags that collectors put in place of devices, of many subjects of one epoch.

As `dpstream.topics.loose_batches.report_tag` and `horizon_tag` say; what is the same for all
subjects is digested once, which makes a tag of a microsecond of four.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Final

import numpy as np
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.hmac import HMAC
from numpy.typing import NDArray

from dpstream.topics.loose_batches import TAG_BYTES

REPORT: Final = b"report\0"
HORIZON: Final = b"horizon\0"


class Tagger:
    """Makes tags of subjects.

    Args:
        key: that collectors share, 32 bytes.
        what: `REPORT` or `HORIZON`.
        deployment: 16 bytes.
        number: of the epoch, from 1 on, or of the horizon, from 0 on.
    """

    def __init__(self, key: bytes, what: bytes, deployment: bytes, number: int) -> None:
        self._begun = HMAC(key, SHA256())
        self._begun.update(b"".join((what, deployment, number.to_bytes(8, "little"))))

    def tags(self, subjects: Iterable[bytes]) -> NDArray[np.uint8]:
        """A tag of each, shape (subjects, 8)."""
        digests = b"".join(map(partial(_finished, self._begun.copy), subjects))
        return np.frombuffer(digests, np.uint8).reshape(-1, 32)[:, :TAG_BYTES]


def _finished(copy: object, subject: bytes) -> bytes:
    begun: HMAC = copy()  # type: ignore[operator]
    begun.update(subject)
    return begun.finalize()
