"""Verify tokens for jobs that require tokens: JWTs signed with one of a job's keys.

The signature algorithm is determined by the type of the job's key, never by the token.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final

import jwt
import numpy as np
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.hmac import HMAC
from numpy.typing import NDArray

from dpstream.pipeline.collector.responses import HttpResponse, RequestProblem
from dpstream.pipeline.jobs.device_reports import ALGORITHMS, Tokens
from dpstream.topics.loose_batches import TAG_BYTES

REPORT: Final = b"report\0"
HORIZON: Final = b"horizon\0"


class Tagger:
    """Compute tags of the kind `what` (`REPORT` or `HORIZON`); `number` is the epoch or horizon."""

    def __init__(self, key: bytes, what: bytes, deployment: bytes, number: int) -> None:
        self._begun = HMAC(key, SHA256())
        self._begun.update(b"".join((what, deployment, number.to_bytes(8, "little"))))

    def tags(self, subjects: Iterable[bytes]) -> NDArray[np.uint8]:
        digests = b"".join(map(partial(_finished, self._begun.copy), subjects))
        return np.frombuffer(digests, np.uint8).reshape(-1, 32)[:, :TAG_BYTES]


def _finished(copy: object, subject: bytes) -> bytes:
    begun: HMAC = copy()  # type: ignore[operator]
    begun.update(subject)
    return begun.finalize()


LONGEST: Final = 8 << 10
"""Maximum bytes in a token."""
SUBJECT_MAX: Final = 1 << 10
LEEWAY_SECONDS: Final = 30
"""Tolerated difference between the clocks of token issuers and collectors, in seconds."""
_SCHEME: Final = b"bearer"
_CURVES: Final = {"ES256": ("P-256",), "EdDSA": ("Ed25519",), "RS256": (None,)}
_REQUIRED: Final = ("exp", "aud", "sub")


class TokenError(Exception):
    def __init__(self, problem: RequestProblem) -> None:
        super().__init__(problem.kind)
        bearer = "Bearer" if problem is RequestProblem.NO_TOKEN else 'Bearer error="invalid_token"'
        self.answer: HttpResponse = problem.answer(headers=(("WWW-Authenticate", bearer),))


class TokenCheck:
    """Verify tokens for a job; raises ValueError if a key of the job is invalid."""

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
                raise ValueError(
                    f"devices.tokens: key {key['kid']!a} is invalid; expected a public key of "
                    "type EC (P-256), OKP (Ed25519) or RSA"
                ) from None

    def subject(self, authorization: bytes | None) -> str:
        scheme, _, token = (authorization or b"").strip().partition(b" ")
        if scheme.lower() != _SCHEME or not token.strip():
            raise TokenError(RequestProblem.NO_TOKEN)
        claims = self._claims(token.strip())
        subject = claims.get("sub")
        if not isinstance(subject, str) or not 1 <= len(subject) <= SUBJECT_MAX:
            raise TokenError(RequestProblem.TOKEN)
        now = self._now() / 1000
        expires, begins = _moment(claims.get("exp")), _moment(claims.get("nbf", now))
        if expires <= now - LEEWAY_SECONDS or begins > now + LEEWAY_SECONDS:
            raise TokenError(RequestProblem.TOKEN)
        return subject

    def _claims(self, token: bytes) -> dict[str, Any]:
        if len(token) > LONGEST:
            raise TokenError(RequestProblem.TOKEN)
        try:
            key = self._keys[jwt.get_unverified_header(token)["kid"]]
            claims: dict[str, Any] = jwt.decode(
                token,
                key,
                algorithms=[key.algorithm_name],
                audience=self._audience,
                issuer=self._issuer,
                # Times are verified by the broker's clock, not by that of this machine.
                options={
                    "require": list(_REQUIRED),
                    "verify_exp": False,
                    "verify_nbf": False,
                    "verify_iat": False,
                },
            )
        except (jwt.PyJWTError, LookupError, ValueError, TypeError, RecursionError):
            raise TokenError(RequestProblem.TOKEN) from None
        # Subjects are hashed as UTF-8, which cannot encode a lone surrogate.
        try:
            str(claims["sub"]).encode()
        except UnicodeEncodeError:
            raise TokenError(RequestProblem.TOKEN) from None
        return claims


def _moment(value: object) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return value
    raise TokenError(RequestProblem.TOKEN)
