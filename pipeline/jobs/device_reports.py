"""Section of a job file for devices that randomize themselves and report through collectors.

::

    devices: {}

is sufficient. Collectors then accept any identity that a device claims, once per epoch. With a key
from ``dpstream keygen``, reports are sealed to the shuffler, so that collectors cannot read them::

    devices: {seal: stage.pub}
    devices: {seal: [stage-1.pub, stage-2.pub], rotate: 90}

With tokens signed by the app's own backend, the identity of devices is verified::

    devices: {tokens: {keys: jwks.json}}
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Self

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from dpstream.pipeline.jobs.job_problems import JobError, Problem, read_settings, shown
from dpstream.pipeline.jobs.sealed import PublicKey, read_periods
from dpstream.pipeline.jobs.shuffle import FIXED_DURATION, Seconds
from dpstream.pipeline.jobs.wording import Section

ALGORITHMS: Final = {"EC": "ES256", "OKP": "EdDSA", "RSA": "RS256"}
"""Signature algorithm of tokens, by key type (``kty``)."""


class Tokens(Section):
    """Restriction of reports to devices that have a token (a JWT) signed with one of the keys.

    `keys` are in JSON Web Key Set format, each with an ID. Without `audience`, the audience of a
    token must be the job's name, so that tokens for another job are invalid. Without `issuer`, the
    issuer is not checked.
    """

    keys: tuple[dict[str, Any], ...] = Field(
        min_length=1,
        max_length=16,
        description="a file with a JSON Web Key Set of up to 16 public keys",
    )
    audience: str | None = Field(
        default=None,
        min_length=1,
        max_length=200,
        description="the audience (aud) of tokens, 1 to 200 characters",
    )
    issuer: str | None = Field(
        default=None,
        min_length=1,
        max_length=200,
        description="the issuer (iss) of tokens, 1 to 200 characters",
    )

    @model_validator(mode="after")
    def _public_keys_of_known_types(self) -> Self:
        for key in self.keys:
            if "d" in key or "k" in key:
                raise ValueError("keys must be public; one has a private part, 'd' or 'k'")
            if key.get("kty") not in ALGORITHMS:
                raise ValueError(
                    f"keys contains a key with 'kty' {shown(key.get('kty'))}; expected one of: "
                    f"{', '.join(ALGORITHMS)}"
                )
            if not isinstance(key.get("kid"), str):
                raise ValueError("keys contains a key without 'kid', the id that tokens refer to")
        if len({key["kid"] for key in self.keys}) < len(self.keys):
            raise ValueError("keys contains two keys with the same 'kid'; expected distinct ids")
        return self


class DeviceReports(Section):
    """Settings for devices that report for themselves.

    Attributes:
        late: Seconds after the end of an epoch during which collectors accept its reports; None
            means half of the shuffler's grace period.
        seal: The shuffler's public keys, one per key period. If empty, collectors can read reports.
        rotate: Number of epochs per key; the last key has no end.
        tokens: Tokens that devices must present to report; None accepts reports without a token.
    """

    late: Seconds | None = Field(default=None, description=FIXED_DURATION)
    seal: tuple[PublicKey, ...] = Field(
        default=(), description="a public key, or a list of successive keys"
    )
    rotate: int | None = Field(
        default=None, ge=1, description="epochs per key period, an integer of at least 1"
    )
    tokens: Tokens | None = None

    @model_validator(mode="after")
    def _keys_have_periods(self) -> Self:
        if len(self.seal) > 1 and self.rotate is None:
            raise ValueError(
                "rotate is missing; expected the number of epochs for which each key in 'seal' "
                "is used"
            )
        if len(set(self.seal)) < len(self.seal):
            raise ValueError("seal lists a key twice; expected a new key for each key period")
        return self

    @model_serializer(mode="wrap")
    def _without_what_is_left_out(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        values: dict[str, Any] = write(self)
        return {key: value for key, value in values.items() if value not in (None, [], ())}

    @property
    def keys(self) -> tuple[bytes, ...]:
        return tuple(map(bytes.fromhex, self.seal))

    def key_at(self, epoch: int) -> bytes | None:
        if not self.seal:
            return None
        period = 0 if self.rotate is None else (epoch - 1) // self.rotate
        return self.keys[min(period, len(self.seal) - 1)]

    def periods(self) -> list[tuple[bytes, int, int | None]]:
        rotate, last = self.rotate or 1, len(self.seal) - 1
        return [
            (key, 1 + period * rotate, None if period == last else (period + 1) * rotate)
            for period, key in enumerate(self.keys)
        ]

    @property
    def trust(self) -> str:
        """Assumption about collectors that a guarantee makes if it relies on the shuffler."""
        if self.seal:
            return "collectors cannot read reports, which are sealed to the shuffler"
        return "it also relies on the collectors, which can read every report and see its sender"


def with_device_keys(values: Mapping[str, Any], folder: Path) -> Mapping[str, Any]:
    """Return a job file's values, with the file names in `devices` replaced by the files' keys."""
    devices = values.get("devices")
    if not isinstance(devices, Mapping):
        return values
    read: dict[str, Any] = dict(devices)
    if "seal" in devices:
        read["seal"] = read_periods(devices["seal"], folder, "devices", "seal")
    tokens = devices.get("tokens")
    if isinstance(tokens, Mapping) and isinstance(tokens.get("keys"), str):
        read["tokens"] = {**tokens, "keys": _key_set(folder / tokens["keys"])}
    return {**values, "devices": read}


def _key_set(path: Path) -> list[object]:
    where = ("devices", "tokens", "keys")
    try:
        text = read_settings(path, "key set")
    except JobError as error:
        raise JobError([replace(each, path=where) for each in error.problems]) from None
    try:
        keys = json.loads(text)["keys"]
        if not isinstance(keys, list):
            raise TypeError
    except (ValueError, LookupError, TypeError):
        message = f'{path} is not a JSON Web Key Set; expected {{"keys": [...]}}'
        raise JobError([Problem(where, message)]) from None
    return keys
