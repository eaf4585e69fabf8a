"""What a stage that has to be trusted says, and signs, in ``<job>.stages``.

When it starts it says who it is and what software it runs: a `StageRecord`. Before it writes a
manifest, it says which: a `Decided`. With every writing of a window it says what that holds: a
`Released`. Where something else vouches for it, such as its hardware, it hands that on: an
`Attested`. All are JSON, signed with the stage's Ed25519 key, and all follow from what stands in
other topics, from words that are released and from the software installed.

A signature shows who said something, not that it is so. What is said can be compared with what the
other topics hold, by whoever may read those, and cannot be taken back.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import Field, dataclass, fields, is_dataclass
from typing import Any, ClassVar, Final, TypeAlias

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from topics.frames import RECORD_CAP, CodecError, OversizedError, check_identities, check_range
from topics.words import Words, pack_words

STATEMENT_VERSION: Final = 1
PUBLIC_KEY_BYTES: Final = 32
DIGEST_BYTES: Final = 32
SIGNATURE_BYTES: Final = 64
_LABEL: Final = b"dpstream stage statement\0"
_BINDING_LABEL: Final = b"dpstream stage attestation\0"
DOCUMENT_MAX: Final = 32 * 1024
_TEXT_MAX: Final = 200
_PARTS_MAX: Final = 64


@dataclass(frozen=True, slots=True)
class Software:
    """What is installed of a distribution.

    Attributes:
        version: as the distribution says.
        form: ``installed``, the files of a distribution as they lie on disk; ``recorded``, as its
            installer noted them; or ``source tree``, those of packages that are run from where they
            are developed.
        digest: SHA-256 of the paths and contents of these files, 32 bytes.
    """

    version: str
    form: str
    digest: bytes

    def __post_init__(self) -> None:
        _check_texts(version=self.version, form=self.form)
        _check_digests(digest=self.digest)


@dataclass(frozen=True, slots=True)
class StageRecord:
    """A worker of a stage has started.

    Attributes:
        deployment: 16 bytes.
        stage: as in ``dpstream run STAGE``.
        worker: its name.
        time: milliseconds since 1970, by its own clock.
        python: the version of the interpreter.
        software: by the name of a distribution; the product, and what touches randomness, keys and
            Kafka.
        noise_key: SHA-256 of the noise key that it holds; None where it needs none.

    Raises:
        CodecError: a field has another length or lies outside its range.
    """

    kind: ClassVar[str] = "stage"
    deployment: bytes
    stage: str
    worker: str
    time: int
    python: str
    software: Mapping[str, Software]
    noise_key: bytes | None = None

    def __post_init__(self) -> None:
        check_identities(deployment=self.deployment)
        _check_texts(stage=self.stage, worker=self.worker, python=self.python)
        check_range("time", self.time, 0)
        check_range("number of distributions", len(self.software), 1, _PARTS_MAX)
        for name in self.software:
            _check_texts(distribution=name)
        if self.noise_key is not None:
            _check_digests(noise_key=self.noise_key)


@dataclass(frozen=True, slots=True)
class Decided:
    """A worker is about to write a manifest; whether that is the first one, the log says.

    Attributes:
        deployment: 16 bytes.
        stage, worker: who says it.
        epoch: at least 1.
        instance: of the shuffle stage, where several work side by side, from 1 on.
        manifest: SHA-256 of the manifest's record, 32 bytes.

    Raises:
        CodecError: a field has another length or lies outside its range.
    """

    kind: ClassVar[str] = "decided"
    deployment: bytes
    stage: str
    worker: str
    epoch: int
    instance: int
    manifest: bytes

    def __post_init__(self) -> None:
        check_identities(deployment=self.deployment)
        _check_texts(stage=self.stage, worker=self.worker)
        check_range("epoch", self.epoch, 1)
        check_range("instance", self.instance, 1)
        _check_digests(manifest=self.manifest)


@dataclass(frozen=True, slots=True)
class Released:
    """A worker has written a window, or its part of it.

    Attributes:
        deployment: 16 bytes.
        stage, worker: who says it.
        epoch: at least 1.
        instance: of the shuffle stage, where several work side by side, from 1 on.
        role: of the topic that it was written to.
        manifest_offset: under which manifest.
        attempt: 16 bytes, of this writing.
        chunks: records of the attempt, at least 1.
        contents: SHA-256 of the words in them, see `digest_of`, 32 bytes.

    Raises:
        CodecError: a field has another length or lies outside its range.
    """

    kind: ClassVar[str] = "released"
    deployment: bytes
    stage: str
    worker: str
    epoch: int
    instance: int
    role: str
    manifest_offset: int
    attempt: bytes
    chunks: int
    contents: bytes

    def __post_init__(self) -> None:
        check_identities(deployment=self.deployment, attempt=self.attempt)
        _check_texts(stage=self.stage, worker=self.worker, role=self.role)
        check_range("epoch", self.epoch, 1)
        check_range("instance", self.instance, 1)
        check_range("manifest_offset", self.manifest_offset, 0)
        check_range("chunks", self.chunks, 1)
        _check_digests(contents=self.contents)


@dataclass(frozen=True, slots=True)
class Attested:
    """What vouches for a worker that has said who it is, and which key it signs with.

    Attributes:
        deployment: 16 bytes.
        stage, worker: who hands it on.
        scheme: of whom can read it.
        document: which is theirs, at most `DOCUMENT_MAX` bytes, for `binding_of` the `StageRecord`.

    Raises:
        CodecError: a field has another length or lies outside its range.
    """

    kind: ClassVar[str] = "attested"
    deployment: bytes
    stage: str
    worker: str
    scheme: str
    document: bytes

    def __post_init__(self) -> None:
        check_identities(deployment=self.deployment)
        _check_texts(stage=self.stage, worker=self.worker, scheme=self.scheme)
        check_range("length of the document", len(self.document), 1, DOCUMENT_MAX)


Statement: TypeAlias = StageRecord | Decided | Released | Attested
_KINDS: Final[Mapping[str, type[Any]]] = {
    each.kind: each for each in (StageRecord, Decided, Released, Attested)
}
_TYPES: Final = {"int": int, "str": str}


@dataclass(frozen=True, slots=True)
class Signed:
    """A statement, and whose word it is.

    Attributes:
        statement: what is said.
        signer: the public key of who says it, 32 bytes.
    """

    statement: Statement
    signer: bytes


def public_key_of(key: Ed25519PrivateKey) -> bytes:
    """The public key to a signing key, 32 bytes."""
    return key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)


def binding_of(record: StageRecord, signer: bytes) -> bytes:
    """What a document has to be about to vouch for a worker, 32 bytes.

    SHA-256 of its public key and all that it says when it starts: deployment, stage, name, time,
    software and noise key. A document for one start is therefore good for no other.
    """
    return hashlib.sha256(_BINDING_LABEL + signer + _canonical(_said(record))).digest()


class WordsDigest:
    """SHA-256 of the words of an attempt, in the order of its chunks.

    Two attempts at a window that hold the same words in the same order have the same one.
    """

    def __init__(self) -> None:
        self._digest = hashlib.sha256()

    def add(self, piece: Words) -> None:
        """Take the next piece in."""
        header, payload = pack_words(piece)
        self._digest.update(b"".join(number.to_bytes(8, "little") for number in header))
        self._digest.update(payload)

    @property
    def value(self) -> bytes:
        """The 32 bytes, of all pieces so far."""
        return self._digest.digest()


def digest_of(pieces: Iterable[Words]) -> bytes:
    """The `WordsDigest` of pieces that are all there."""
    digest = WordsDigest()
    for piece in pieces:
        digest.add(piece)
    return digest.value


def sign_statement(statement: Statement, key: Ed25519PrivateKey) -> bytes:
    """The record of a statement; the same statement and key give the same bytes."""
    said = _canonical({"version": STATEMENT_VERSION, "type": statement.kind, **_said(statement)})
    return _canonical(
        {
            "statement": base64.b64encode(said).decode(),
            "signature": key.sign(_LABEL + said).hex(),
            "signer": public_key_of(key).hex(),
        }
    )


def read_statement(data: bytes) -> Signed:
    """The statement of a record, which its signer has signed.

    Raises:
        CodecError: the record is none, or its signature is not the signer's.
    """
    if len(data) > RECORD_CAP:
        raise OversizedError(f"statement of {len(data)} bytes, at most {RECORD_CAP} are allowed")
    outer = _object(data)
    _check_keys(outer, {"statement", "signature", "signer"})
    signer = _hexadecimal("signer", outer["signer"], PUBLIC_KEY_BYTES)
    signature = _hexadecimal("signature", outer["signature"], SIGNATURE_BYTES)
    try:
        said = base64.b64decode(outer["statement"], validate=True)
    except (TypeError, ValueError):
        raise CodecError("a statement is not in base64") from None
    try:
        Ed25519PublicKey.from_public_bytes(signer).verify(signature, _LABEL + said)
    except (InvalidSignature, ValueError):
        raise CodecError("a statement is not signed by the key that it names") from None
    body = _object(said)
    version, kind = body.pop("version", None), body.pop("type", None)
    if version != STATEMENT_VERSION or kind not in _KINDS:
        raise CodecError(f"a statement of type {kind!r:.40} and version {version!r:.40}")
    return Signed(_read(_KINDS[kind], body), signer)


def _said(value: Any) -> Any:
    """A statement, or what stands in a field of one, as JSON values."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Mapping):
        return {name: _said(each) for name, each in value.items()}
    if is_dataclass(value):
        return {each.name: _said(getattr(value, each.name)) for each in fields(value)}
    return value


def _read(kind: type[Any], body: object) -> Any:
    """What `_said` made this of: a statement, or the software in one."""
    if not isinstance(body, dict):
        raise CodecError(f"a {kind.__name__} of a statement is no JSON object")
    _check_keys(body, {each.name for each in fields(kind)})
    return kind(**{each.name: _read_field(each, body[each.name]) for each in fields(kind)})


def _read_field(each: Field[Any], value: Any) -> Any:
    match each.type:
        case "bytes | None" if value is None:
            return None
        case "bytes" | "bytes | None":
            return _hexadecimal(each.name, value)
        case "int" | "str" as expected:
            # Not isinstance: True is an int.
            if type(value) is not _TYPES[expected]:
                raise CodecError(f"{each.name} of a statement is a {type(value).__name__}")
            return value
        case _:
            if not isinstance(value, dict):
                raise CodecError(f"the {each.name} of a statement is no JSON object")
            return {name: _read(Software, found) for name, found in value.items()}


def _canonical(body: Mapping[str, Any]) -> bytes:
    return json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def _object(data: bytes) -> dict[str, Any]:
    try:
        body = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CodecError(f"statement is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise CodecError("statement is JSON, but not an object")
    return body


def _check_keys(body: Mapping[str, Any], keys: set[str]) -> None:
    if set(body) != keys:
        raise CodecError(
            f"a statement has the keys {', '.join(sorted(body))[:200]}, must have "
            f"{', '.join(sorted(keys))}"
        )


def _hexadecimal(name: str, text: object, length: int | None = None) -> bytes:
    """Bytes of a field; of any length, where whoever takes them looks at that."""
    try:
        found = bytes.fromhex(text) if isinstance(text, str) else b""
    except ValueError:
        found = b""
    if found.hex() != text or length not in (None, len(found)):
        size = "" if length is None else f"{length} "
        raise CodecError(f"{name} of a statement is not {size}bytes in hexadecimal")
    return found


def _check_texts(**texts: str) -> None:
    for name, text in texts.items():
        if not 1 <= len(text) <= _TEXT_MAX or not text.isprintable():
            raise CodecError(f"{name} must be 1 to {_TEXT_MAX} printable characters")


def _check_digests(**digests: bytes) -> None:
    for name, digest in digests.items():
        if len(digest) != DIGEST_BYTES:
            raise CodecError(f"{name} has {len(digest)} bytes, must have {DIGEST_BYTES}")
