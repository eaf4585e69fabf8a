"""Document of a device: one JSON text, written as a whole, the same for clients in all languages.

Only the document protects the user from a second draw: keep it secret, never copy it, and never
restore it from a backup.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, Self

from dpstream.randomizers.client.account import Account, AccountEntry
from dpstream.randomizers.client.device_errors import StoreError
from dpstream.randomizers.client.statements import Statement, read_statement
from dpstream.topics.envelopes import decode_body

DOCUMENT_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Waiting:
    """A drawn report that is not known to have arrived.

    Attributes:
        report: Report id, 16 bytes.
        body: Body of the request; every retry sends it unchanged.
    """

    epoch: int
    report: bytes
    body: bytes = field(repr=False)

    @property
    def enrolls(self) -> bool:
        """True if this is an enrollment instead of a report."""
        return not decode_body(self.body).has_report[0]


@dataclass(frozen=True)
class Membership:
    """Membership of a device in a deployment of a job.

    Attributes:
        text: The pinned statement, as signed.
        device: Device id, 16 bytes, drawn on joining.
        epoch: Last drawn epoch, or 0. It never decreases.
        horizon: Horizon for which the state was drawn; None before the first draw.
        state: State of the randomizer.
        waiting: Reports to send, in the order of epochs.
        gone: True if the server announced another deployment.
        enrolled: Epoch of the latest acknowledged enrollment, in jobs where devices enroll before
            their first report; None otherwise.
        history: `EventHistory.to_json`, in jobs with measures; None otherwise.
        public: The device's public attributes by name, in jobs with measures.
    """

    text: bytes = field(repr=False)
    device: bytes
    epoch: int = 0
    horizon: int | None = None
    state: Mapping[str, Any] | None = field(default=None, repr=False)
    waiting: tuple[Waiting, ...] = ()
    gone: bool = False
    enrolled: int | None = None
    history: Mapping[str, Any] | None = field(default=None, repr=False)
    public: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def statement(self) -> Statement:
        """The parsed statement."""
        return read_statement(self.text)

    def to_json(self) -> dict[str, Any]:
        """Return the membership as JSON values."""
        return {
            "statement": self.text.decode(),
            "device": self.device.hex(),
            "epoch": self.epoch,
            "horizon": self.horizon,
            "state": self.state,
            "waiting": [
                {
                    "epoch": waiting.epoch,
                    "report": waiting.report.hex(),
                    "body": base64.b64encode(waiting.body).decode(),
                }
                for waiting in self.waiting
            ],
            "gone": self.gone,
            **({} if self.enrolled is None else {"enrolled": self.enrolled}),
            **({} if self.history is None else {"history": self.history}),
            **({"public": dict(self.public)} if self.public else {}),
        }

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Self:
        """Parse the result of `to_json`."""
        return cls(
            text=body["statement"].encode(),
            device=bytes.fromhex(body["device"]),
            epoch=int(body["epoch"]),
            horizon=body["horizon"],
            state=body["state"],
            waiting=tuple(
                Waiting(
                    int(waiting["epoch"]),
                    bytes.fromhex(waiting["report"]),
                    base64.b64decode(waiting["body"], validate=True),
                )
                for waiting in body["waiting"]
            ),
            gone=bool(body["gone"]),
            enrolled=None if body.get("enrolled") is None else int(body["enrolled"]),
            history=body.get("history"),
            public=body.get("public", {}),
        )


@dataclass(frozen=True)
class Document:
    """Everything that a device stores; `members` has None for a job that the user has left."""

    account: Account = field(default_factory=Account)
    members: Mapping[str, Membership | None] = field(default_factory=dict)

    def member(self, job: str) -> Membership | None:
        """Return the membership in a job, or None if the device is not a member."""
        return self.members.get(job)

    def with_member(self, job: str, member: Membership | None) -> Document:
        """Return the document with a job's membership replaced; None means the user has left."""
        return Document(self.account, {**self.members, job: member})

    def to_text(self) -> str:
        """Return the document as JSON."""
        body = {
            "version": DOCUMENT_VERSION,
            "account": [entry.to_json() for entry in self.account.entries],
            "members": {
                job: None if member is None else member.to_json()
                for job, member in self.members.items()
            },
        }
        return json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False)

    @classmethod
    def from_text(cls, text: str | None) -> Document:
        """Parse the result of `to_text`, or return an empty document for None.

        Raises `StoreError` if the text is malformed or was written by a later version of the app.
        """
        if text is None:
            return cls()
        try:
            body = json.loads(text)
            if body["version"] != DOCUMENT_VERSION:
                raise StoreError(
                    "the device state was written by a later version of the app. Update the app"
                )
            return cls(
                Account(tuple(map(AccountEntry.from_json, body["account"]))),
                {
                    job: None if member is None else Membership.from_json(member)
                    for job, member in body["members"].items()
                },
            )
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            raise StoreError(
                "the device state is damaged. Randomizing again could cost more privacy than the "
                "app allows, so the device does not report"
            ) from None
