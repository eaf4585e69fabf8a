"""Who may report to a job that asks for tokens: whoever has a JWT that one of its keys signed.

Which algorithm a signature is checked by follows from the type of the key that the job names, and
never from what a token says of itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import jwt

from dpstream.pipeline.collector.answers import Answer, Problem
from dpstream.pipeline.jobs.device_reports import ALGORITHMS, Tokens

LONGEST: Final = 8 << 10
"""Bytes of a token."""
SUBJECT_MAX: Final = 1 << 10
"""Characters of a subject."""
LEEWAY_SECONDS: Final = 30
"""By which clocks of whoever signs and of collectors may differ."""
_SCHEME: Final = b"bearer"
_CURVES: Final = {"ES256": ("P-256",), "EdDSA": ("Ed25519",), "RS256": (None,)}
_REQUIRED: Final = ("exp", "aud", "sub")


class TokenError(Exception):
    """A token is missing or not valid.

    Attributes:
        answer: that it is given.
    """

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.kind)
        bearer = "Bearer" if problem is Problem.NO_TOKEN else 'Bearer error="invalid_token"'
        self.answer: Answer = problem.answer(headers=(("WWW-Authenticate", bearer),))


class TokenCheck:
    """Checks tokens of a job.

    Args:
        tokens: what the job says of them.
        job: its name.
        now: milliseconds since 1970.

    Raises:
        ValueError: a key of the job is none.
    """

    def __init__(self, tokens: Tokens, job: str, now: Callable[[], int]) -> None:
        self._audience = tokens.audience or job
        self._issuer = tokens.issuer
        self._now = now
        self._keys: dict[str, jwt.PyJWK] = {}
        for key in tokens.keys:
            algorithm = ALGORITHMS[key["kty"]]
            try:
                if key.get("crv") not in _CURVES[algorithm]:
                    raise ValueError
                self._keys[key["kid"]] = jwt.PyJWK(key, algorithm=algorithm)
            except (jwt.PyJWTError, ValueError, TypeError):
                raise ValueError(f"key {key['kid']!a} of devices.tokens is none") from None

    def subject(self, authorization: bytes | None) -> str:
        """Who a token says it is from.

        Args:
            authorization: the header of the request.

        Raises:
            TokenError: there is none, or it is not valid.
        """
        scheme, _, token = (authorization or b"").strip().partition(b" ")
        if scheme.lower() != _SCHEME or not token.strip():
            raise TokenError(Problem.NO_TOKEN)
        claims = self._claims(token.strip())
        subject = claims.get("sub")
        if not isinstance(subject, str) or not 1 <= len(subject) <= SUBJECT_MAX:
            raise TokenError(Problem.TOKEN)
        now = self._now() / 1000
        expires, begins = _moment(claims.get("exp")), _moment(claims.get("nbf", now))
        if expires <= now - LEEWAY_SECONDS or begins > now + LEEWAY_SECONDS:
            raise TokenError(Problem.TOKEN)
        return subject

    def _claims(self, token: bytes) -> dict[str, Any]:
        if len(token) > LONGEST:
            raise TokenError(Problem.TOKEN)
        try:
            key = self._keys[jwt.get_unverified_header(token)["kid"]]
            claims: dict[str, Any] = jwt.decode(
                token,
                key,
                algorithms=[key.algorithm_name],
                audience=self._audience,
                issuer=self._issuer,
                # By the broker's clock, and not by this machine's.
                options={
                    "require": list(_REQUIRED),
                    "verify_exp": False,
                    "verify_nbf": False,
                    "verify_iat": False,
                },
            )
        except (jwt.PyJWTError, LookupError, ValueError, TypeError, RecursionError):
            raise TokenError(Problem.TOKEN) from None
        # A subject is digested as UTF-8, which half a surrogate has none of.
        try:
            str(claims["sub"]).encode()
        except UnicodeEncodeError:
            raise TokenError(Problem.TOKEN) from None
        return claims


def _moment(value: object) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return value
    raise TokenError(Problem.TOKEN)
