"""Statements that a job's operator signs for devices: verify, parse and pin them."""

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
from dpstream.randomizers.client.events import DeviceEvents, same_but_for_names
from dpstream.randomizers.client.values import DeviceValues
from dpstream.topics.envelopes import ContentFormat

STATEMENT_VERSION: Final = 1
_LABEL: Final = b"dpstream job description\0"
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]*", re.ASCII)


@dataclass(frozen=True, slots=True)
class SealingPeriod:
    """A shuffler's public key and the epochs it is for; `last` is None if there is no end."""

    key: bytes
    first: int
    last: int | None


@dataclass(frozen=True, slots=True)
class Statement:
    """A parsed statement.

    Attributes:
        text: The exact signed bytes; two statements are the same if their bytes are.
        deployment, fingerprint: Id and configuration hash of the deployment, 16 bytes each.
        deployed: Time of deployment, milliseconds since 1970.
        revision: Revision of the deployment's statement; the largest is the newest.
        law: Constants of the mechanism, as JSON values.
        recurring: True if each horizon is followed by another.
        answers: Number of epochs in a horizon in which a device answers; None if it answers in all.
        late: Seconds after the end of an epoch during which its reports are accepted.
        epsilon, delta: Cost of one charge in units of 10^-9 and 10^-18, rounded up.
        unit: "stream" (charged once per horizon) or "epoch" (charged at every reported epoch).
        rolling: Number of consecutive epochs, and the cost that covers any run of this length,
            across all horizons, in units of 10^-9, rounded up; None if no such guarantee is stated.
        minimum: Minimum number of contributors to a released window.
        seal: Public keys for sealing reports; empty if reports are not sealed.
        tokens: True if collectors require a token.
        events: Questions that the device answers from recorded events; None if the app passes
            values.
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
    content_format: ContentFormat
    clock: EpochClock
    recurring: bool
    answers: int | None
    late: float
    guarantee: Mapping[str, Any]
    epsilon: int
    delta: int
    unit: str
    rolling: tuple[int, int] | None
    population: str
    minimum: int
    seal: tuple[SealingPeriod, ...]
    tokens: bool
    events: DeviceEvents | None

    @property
    def sealed(self) -> bool:
        """True if collectors cannot read reports."""
        return bool(self.seal)

    def key_at(self, epoch: int) -> bytes | None:
        """Return the public key for sealing an epoch's report; None if the epoch has no key."""
        for period in self.seal:
            if period.first <= epoch and (period.last is None or epoch <= period.last):
                return period.key
        return None

    def is_revision_of(self, other: Statement) -> bool:
        """Return whether two statements are the same except for what a revision can change.

        These are the last epoch, and the values that spare cells have.
        """
        bodies = [json.loads(each.text) for each in (self, other)]
        events = [body.pop("events", None) for body in bodies]
        for body in bodies:
            body["revision"] = body["epochs"]["last"] = None
        one, second = (json.dumps(body, sort_keys=True) for body in bodies)
        same = events[0] == events[1]
        return one == second and (same or (None not in events and same_but_for_names(*events)))

    def charge_index(self, epoch: int) -> int:
        """Return the horizon or epoch that is charged for an epoch's report."""
        return self.clock.horizon(epoch) if self.unit == "stream" else epoch


def signed_statement(description: bytes, signers: Iterable[bytes]) -> bytes:
    """Return the statement in a job's public description, if one of the app's signers signed it.

    Args:
        description: Response of a collector.
        signers: 32-byte public keys, built into the app. The key in the response is ignored,
            because a malicious server could send its own.

    Raises:
        StatementError: If the description is malformed, or none of the signers signed it.
    """
    try:
        body = json.loads(description)
        statement = base64.b64decode(body["statement"], validate=True)
        signature = base64.b64decode(body["signature"], validate=True)
    except (ValueError, LookupError, TypeError, RecursionError):
        raise StatementError("the server's response is not a job description") from None
    if not any(is_good(signature, _LABEL + statement, signer) for signer in signers):
        raise StatementError(
            "the job description is not signed by the key built into this app: the server does "
            "not belong to the operator, or the operator has a new key and the app is outdated"
        )
    return statement


def read_statement(text: bytes) -> Statement:
    """Parse a statement; raise `StatementError` if it is malformed or has another version."""
    try:
        body = json.loads(text)
        if body["version"] != STATEMENT_VERSION:
            raise StatementError(
                f"the job statement has version {body['version']!r}; this app supports "
                f"{STATEMENT_VERSION}. Update the app"
            )
        return _read(text, body)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise StatementError(f"the job statement is malformed: {error}") from None


def _read(text: bytes, body: Mapping[str, Any]) -> Statement:
    content, epochs, guarantee = body["content"], body["epochs"], body["guarantee"]
    sizes = (content["slots"], content["width"], content["word_bytes"])
    if not all(type(size) is int and size > 0 for size in sizes) or sizes[2] not in (1, 2, 4, 8):
        raise ValueError(f"content sizes are {sizes}; expected positive integers")
    if guarantee["unit"] not in ("stream", "epoch"):
        raise ValueError(f"unit is {guarantee['unit']!r}; expected 'stream' or 'epoch'")
    if not isinstance(body["job"], str) or not _NAME.fullmatch(body["job"]):
        raise ValueError("the job name is invalid; expected lower-case letters and digits")
    if not isinstance(body["population"], str) or not isinstance(body["protocol"], str):
        raise ValueError("'population' and 'protocol' must be text")
    for number in (body["deployed"], body["revision"], body["minimum"]):
        if type(number) is not int or number < 0:
            raise ValueError("'deployed', 'revision' and 'minimum' must be non-negative integers")
    answers = epochs.get("answers")
    if answers is not None and (type(answers) is not int or not 1 <= answers <= epochs["count"]):
        raise ValueError(
            f"'answers' is {answers!r}; expected at most the horizon's number of epochs"
        )
    if not isinstance(body["law"], dict):
        raise ValueError("'law' must be an object")
    seal = tuple(
        SealingPeriod(_bytes(period["key"], 32), int(period["first"]), period["last"])
        for period in body["seal"]
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
        content_format=ContentFormat(*sizes),
        clock=EpochClock(
            epochs["start"],
            epochs["months"],
            epochs["milliseconds"],
            epochs["count"],
            epochs["first"],
            epochs["last"],
        ),
        recurring=bool(epochs["renew"]),
        answers=answers,
        late=float(body["late"]),
        guarantee=guarantee,
        epsilon=spent(guarantee["epsilon"], EPSILON_DIGITS),
        delta=spent(guarantee["delta"], DELTA_DIGITS),
        unit=guarantee["unit"],
        rolling=_rolling(guarantee.get("rolling")),
        population=body["population"],
        minimum=body["minimum"],
        seal=seal,
        tokens=bool(body["tokens"]),
        events=DeviceEvents.from_statement(body) if "events" in body else None,
    )


def _rolling(body: Mapping[str, Any] | None) -> tuple[int, int] | None:
    if body is None:
        return None
    epochs = body["epochs"]
    if type(epochs) is not int or epochs < 1:
        raise ValueError(f"'rolling' covers {epochs!r} epochs; expected a positive integer")
    return epochs, spent(body["epsilon"], EPSILON_DIGITS)


def _bytes(text: str, length: int) -> bytes:
    data = bytes.fromhex(text)
    if len(data) != length or data.hex() != text:
        raise ValueError(f"expected {length} bytes in hexadecimal")
    return data
