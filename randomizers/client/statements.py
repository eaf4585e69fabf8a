"""What a job's operator has signed for devices: read, checked, and pinned by whoever joins."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from dpstream.randomizers.client.amounts import DELTA_DIGITS, EPSILON_DIGITS, spent
from dpstream.randomizers.client.device_errors import StatementError
from dpstream.randomizers.client.ed25519 import is_good
from dpstream.randomizers.client.epoch_clock import EpochClock
from dpstream.randomizers.client.values import DeviceValues
from dpstream.topics.envelopes import ContentForm

STATEMENT_VERSION: Final = 1
_LABEL: Final = b"dpstream job description\0"
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]*", re.ASCII)


@dataclass(frozen=True, slots=True)
class SealingTurn:
    """A public key of the shuffle stage, and the epochs it serves; `last` None: it goes on."""

    key: bytes
    first: int
    last: int | None


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement that is believed.

    Attributes:
        text: as it was signed; two statements are the same if this is.
        job: name.
        deployment: 16 bytes.
        deployed: when, in milliseconds since 1970.
        revision: of what is said of the deployment: the largest is the newest.
        fingerprint: 16 bytes.
        protocol: name.
        law: constants, as JSON values.
        values: of users.
        form: of the content of a report.
        clock: when epochs begin.
        renews: whether another horizon follows each.
        late: seconds after the end of an epoch in which its reports are taken.
        guarantee: as people read it.
        epsilon: in 10^-9, rounded up.
        delta: in 10^-18, rounded up.
        unit: "stream": spent once a horizon; "epoch": at every epoch that is reported.
        population: the people whose budget it is.
        minimum: contributors that a window is released with, at least.
        seal: whom reports are sealed to; empty where they are not.
        tokens: whether collectors ask for a token.
    """

    text: bytes = field(repr=False)
    job: str
    deployment: bytes
    deployed: int
    revision: int
    fingerprint: bytes
    protocol: str
    law: Mapping[str, Any] = field(repr=False)
    values: DeviceValues = field(repr=False)
    form: ContentForm
    clock: EpochClock
    renews: bool
    late: float
    guarantee: Mapping[str, Any]
    epsilon: int
    delta: int
    unit: str
    population: str
    minimum: int
    seal: tuple[SealingTurn, ...]
    tokens: bool

    @property
    def sealed(self) -> bool:
        """Whether collectors cannot read reports."""
        return bool(self.seal)

    def key_at(self, epoch: int) -> bytes | None:
        """The public key that the report of an epoch is sealed to; None where it is not."""
        for turn in self.seal:
            if turn.first <= epoch and (turn.last is None or epoch <= turn.last):
                return turn.key
        return None

    def differs_in_last_epoch_alone(self, other: Statement) -> bool:
        """Whether two statements are the same but for their revision and the last epoch."""
        bodies = [json.loads(each.text) for each in (self, other)]
        for body in bodies:
            body["revision"] = body["epochs"]["last"] = None
        return json.dumps(bodies[0], sort_keys=True) == json.dumps(bodies[1], sort_keys=True)

    def charge_index(self, epoch: int) -> int:
        """What a report of an epoch is charged for: its horizon, or the epoch itself."""
        return self.clock.horizon(epoch) if self.unit == "stream" else epoch


def signed_statement(description: bytes, signers: Iterable[bytes]) -> bytes:
    """The statement of a job's public description, if one of the app's signers has signed it.

    Args:
        description: the answer of a collector.
        signers: public keys of 32 bytes, built into the app. The one that the answer names is not
            looked at: whoever answers could name its own.

    Raises:
        StatementError: it is no description, or nobody whom the app believes has signed it.
    """
    try:
        body = json.loads(description)
        statement = base64.b64decode(body["statement"], validate=True)
        signature = base64.b64decode(body["signature"], validate=True)
    except (ValueError, LookupError, TypeError, RecursionError):
        raise StatementError("the server's answer is no description of a job") from None
    if not any(is_good(signature, _LABEL + statement, signer) for signer in signers):
        raise StatementError(
            "the description of the job is not signed by the key that this app has built in: the "
            "server is not the operator's, or the operator has a new key and the app is too old"
        )
    return statement


def read_statement(text: bytes) -> Statement:
    """What a statement says.

    Raises:
        StatementError: it is none of this version, or a device cannot do what it says.
    """
    try:
        body = json.loads(text)
        if body["version"] != STATEMENT_VERSION:
            raise StatementError(
                f"a statement of version {body['version']!r}, this app knows "
                f"{STATEMENT_VERSION}: update the app"
            )
        return _read(text, body)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise StatementError(
            f"the statement of the job is not of the known form: {error}"
        ) from None


def _read(text: bytes, body: Mapping[str, Any]) -> Statement:
    content, epochs, guarantee = body["content"], body["epochs"], body["guarantee"]
    sizes = (content["slots"], content["width"], content["word_bytes"])
    if not all(type(size) is int and size > 0 for size in sizes) or sizes[2] not in (1, 2, 4, 8):
        raise ValueError("content of no size")
    if guarantee["unit"] not in ("stream", "epoch"):
        raise ValueError(f"a loss for every {guarantee['unit']}, which no account can be kept of")
    if not isinstance(body["job"], str) or not _NAME.fullmatch(body["job"]):
        raise ValueError("job without a name")
    if not isinstance(body["population"], str) or not isinstance(body["protocol"], str):
        raise ValueError("names are not text")
    for number in (body["deployed"], body["revision"], body["minimum"]):
        if type(number) is not int or number < 0:
            raise ValueError("no number of a statement")
    if not isinstance(body["law"], dict):
        raise ValueError("no law")
    seal = tuple(
        SealingTurn(_bytes(turn["key"], 32), int(turn["first"]), turn["last"])
        for turn in body["seal"]
    )
    return Statement(
        text=text,
        job=body["job"],
        deployment=_bytes(body["deployment"], 16),
        deployed=body["deployed"],
        revision=body["revision"],
        fingerprint=_bytes(body["fingerprint"], 16),
        protocol=body["protocol"],
        law=body["law"],
        values=DeviceValues.from_statement(body["values"]),
        form=ContentForm(*sizes),
        clock=EpochClock(
            epochs["start"],
            epochs["months"],
            epochs["milliseconds"],
            epochs["count"],
            epochs["first"],
            epochs["last"],
        ),
        renews=bool(epochs["renew"]),
        late=float(body["late"]),
        guarantee=guarantee,
        epsilon=spent(guarantee["epsilon"], EPSILON_DIGITS),
        delta=spent(guarantee["delta"], DELTA_DIGITS),
        unit=guarantee["unit"],
        population=body["population"],
        minimum=body["minimum"],
        seal=seal,
        tokens=bool(body["tokens"]),
    )


def _bytes(text: str, length: int) -> bytes:
    data = bytes.fromhex(text)
    if len(data) != length or data.hex() != text:
        raise ValueError(f"not {length} bytes in hexadecimal")
    return data
