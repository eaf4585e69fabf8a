"""Test that tokens are valid only if signed by a key of the job, for the job, and unexpired."""

import json
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import ECAlgorithm, HMACAlgorithm, OKPAlgorithm, RSAAlgorithm

from dpstream.pipeline.collector.tokens import LEEWAY_SECONDS, TokenCheck, TokenError
from dpstream.pipeline.jobs.device_reports import Tokens

NOW = 1_800_000_000
EC = ec.generate_private_key(ec.SECP256R1())
ED = ed25519.Ed25519PrivateKey.generate()
RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
OTHER = ec.generate_private_key(ec.SECP256R1())
KEYS = [
    {**json.loads(ECAlgorithm.to_jwk(EC.public_key())), "kid": "ec"},
    {**json.loads(OKPAlgorithm.to_jwk(ED.public_key())), "kid": "ed"},
    {**json.loads(RSAAlgorithm.to_jwk(RSA.public_key())), "kid": "rsa"},
]
CLAIMS = {"sub": "ann", "aud": "reports", "iss": "backend", "exp": NOW + 60}
SIGNERS: dict[str, tuple[Any, str]] = {
    "ec": (EC, "ES256"),
    "ed": (ED, "EdDSA"),
    "rsa": (RSA, "RS256"),
}


def check(**settings: Any) -> TokenCheck:
    said = {"keys": KEYS, "audience": "reports", "issuer": "backend", **settings}
    said["keys"] = tuple(said["keys"])
    return TokenCheck(Tokens.model_validate(said), "logins", lambda: NOW * 1000)


def token(kid: str = "ec", **changes: Any) -> str:
    key, algorithm = SIGNERS[kid]
    claims = {key: value for key, value in {**CLAIMS, **changes}.items() if value is not None}
    return jwt.encode(claims, key, algorithm, headers={"kid": kid})


def bearer(text: str) -> bytes:
    return b"Bearer " + text.encode()


@pytest.mark.parametrize("kid", list(SIGNERS))
def test_tokens_are_verified_for_every_key_type(kid: str) -> None:
    assert check().subject(bearer(token(kid))) == "ann"
    assert check().subject(b"bearer  " + token(kid).encode()) == "ann"


def test_any_issuer_is_accepted_if_none_is_configured() -> None:
    assert check(issuer=None).subject(bearer(token(iss="x"))) == "ann"


def test_default_token_audience_is_the_job_name() -> None:
    assert check(audience=None).subject(bearer(token(aud="logins"))) == "ann"
    assert check(audience=None).subject(bearer(token(aud=["x", "logins"]))) == "ann"
    for audience in ("payments", "reports", None, "", [], ["login"]):
        with pytest.raises(TokenError):
            check(audience=None).subject(bearer(token(aud=audience)))


@pytest.mark.parametrize(
    "changes",
    [
        {"aud": "other"},
        {"aud": None},
        {"iss": "other"},
        {"iss": None},
        {"exp": None},
        {"exp": NOW - LEEWAY_SECONDS},
        {"exp": "soon"},
        {"exp": True},
        {"nbf": NOW + LEEWAY_SECONDS + 1},
        {"sub": None},
        {"sub": ""},
        {"sub": "a" * 1025},
        {"sub": 7},
        {"sub": "\ud800"},
    ],
)
def test_tokens_with_wrong_claims_are_rejected(changes: dict[str, Any]) -> None:
    rejected(bearer(token(**changes)), 'Bearer error="invalid_token"')


def rejected(authorization: bytes | None, challenge: str) -> None:
    with pytest.raises(TokenError) as caught:
        check().subject(authorization)
    answer = caught.value.answer
    assert answer.status == 401
    assert dict(answer.headers)["WWW-Authenticate"] == challenge
    assert b"ann" not in answer.body


def test_clock_skew_is_tolerated() -> None:
    assert check().subject(bearer(token(exp=NOW - LEEWAY_SECONDS + 1))) == "ann"
    assert check().subject(bearer(token(nbf=NOW + LEEWAY_SECONDS))) == "ann"


@pytest.mark.parametrize("header", [None, b"", b"Bearer", b"Bearer ", b"Basic YTpi", b"\xff\xfe"])
def test_missing_token_is_rejected(header: bytes | None) -> None:
    rejected(header, "Bearer")


def test_signature_algorithm_is_determined_by_the_key() -> None:
    wrong = 'Bearer error="invalid_token"'
    none = jwt.encode(CLAIMS, "", "none", headers={"kid": "ec"})
    rejected(bearer(none), wrong)
    # The public key used as a shared secret.
    pem = RSA.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    header, payload = (
        jwt.utils.base64url_encode(json.dumps(part).encode())
        for part in ({"alg": "HS256", "kid": "rsa", "typ": "JWT"}, CLAIMS)
    )
    signature = HMACAlgorithm(HMACAlgorithm.SHA256).sign(header + b"." + payload, pem)
    forged = b".".join((header, payload, jwt.utils.base64url_encode(signature)))
    rejected(b"Bearer " + forged, wrong)
    for algorithm in ("RS384", "PS256"):
        rejected(bearer(jwt.encode(CLAIMS, RSA, algorithm, headers={"kid": "rsa"})), wrong)


def test_invalid_tokens_and_unknown_key_ids_are_rejected() -> None:
    wrong = 'Bearer error="invalid_token"'
    rejected(bearer(jwt.encode(CLAIMS, OTHER, "ES256", headers={"kid": "ec"})), wrong)
    rejected(bearer(jwt.encode(CLAIMS, EC, "ES256", headers={"kid": "other"})), wrong)
    rejected(bearer(jwt.encode(CLAIMS, EC, "ES256")), wrong)
    whole = token()
    for text in (whole[:-5], whole + "A" * 9000, "a.b.c", "..", "é", whole.replace(".", "")):
        rejected(bearer(text), wrong)


def test_error_mentions_the_malformed_key() -> None:
    with pytest.raises(ValueError, match="'bad'"):
        check(keys=[{"kty": "EC", "crv": "P-256", "kid": "bad", "x": "AA", "y": "AA"}])
    larger = ECAlgorithm.to_jwk(ec.generate_private_key(ec.SECP384R1()).public_key())
    with pytest.raises(ValueError, match="'large'"):
        check(keys=[{**json.loads(larger), "kid": "large"}])
