"""Job description for devices: a statement that the operator signs at deployment.

The operator's public key is built into the app. Collectors only distribute the statement. A
collector can therefore neither state a weaker guarantee nor have reports sealed to its own key.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
)

from dpstream.pipeline.jobs.deployed_job import DeployedJob, SignedDescription
from dpstream.pipeline.jobs.key_files import WrongKeyError, read_pem, write_pem
from dpstream.pipeline.jobs.measure_keys import EARLIER, NEVER
from dpstream.pipeline.values.durations import Duration
from dpstream.pipeline.values.numeric_values import NumericDomain
from dpstream.pipeline.values.panels import PanelDomain
from dpstream.pipeline.values.times import microseconds
from dpstream.pipeline.values.value_domains import ValueDomain

STATEMENT_VERSION: Final = 1
LABELS_TOLD: Final = 1 << 14
"""Maximum number of labels sent to devices; for larger domains, devices use integers."""
_LABEL = b"dpstream job description\0"


def statement_of(job: DeployedJob) -> str:
    assert job.devices is not None
    start, length = job.epochs.start, job.epochs.length
    assert start is not None
    assert length is not None
    guarantee, form = job.guarantee, job.content_format
    sampled = job.protocol_entry.sampled
    rolling = guarantee.rolling
    asked = {} if sampled is None else {"answers": int(sampled(job.law) * job.epochs.count)}
    statement: dict[str, Any] = {
        "version": STATEMENT_VERSION,
        "job": job.name,
        "deployment": job.deployment.hex(),
        "deployed": job.deployed_at,
        "revision": 0,
        "fingerprint": job.fingerprint.hex(),
        "protocol": job.protocol,
        "law": job.constants,
        # The labels of answers follow from the measures.
        "values": _values(job.domain, labels=job.measures is None),
        "content": {"slots": form.slots, "width": form.width, "word_bytes": form.word_bytes},
        "epochs": {
            "count": job.epochs.count,
            "start": microseconds(start) // 1000,
            **_length(length),
            "first": job.first_epoch,
            "last": job.last_epoch,
            "renew": job.epochs.renew,
            **asked,
        },
        "late": job.late,
        "guarantee": {
            "epsilon": guarantee.epsilon,
            "delta": guarantee.delta,
            "unit": guarantee.unit,
            "neighbors": guarantee.neighbors,
            "trust": guarantee.trust,
            **({} if rolling is None else {"rolling": asdict(rolling)}),
        },
        "population": job.population_name,
        "minimum": job.shuffle.minimum,
        "seal": [
            {"key": key.hex(), "first": first, "last": last}
            for key, first, last in job.devices.periods()
        ],
        "tokens": job.devices.tokens is not None,
        **({} if job.measures is None else {"events": _events(job)}),
    }
    return _canonical(statement)


def _canonical(statement: dict[str, Any]) -> str:
    return json.dumps(statement, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _events(job: DeployedJob) -> dict[str, Any]:
    """Return what devices compute from their own events: all that their answers depend on."""
    attributes = job.attributes or {}
    public = [
        {"name": name, "values": list(job.all_values_of(name))} for name in _public_in_order(job)
    ]
    crossed = (name for question in job.questions for name, _ in question.attributes)
    private: list[dict[str, Any]] = []
    for name in dict.fromkeys(crossed):
        keys = attributes[name]
        if keys.first_seen is None:
            private.append(
                {
                    "name": name,
                    "column": keys.column or name,
                    "values": list(keys.values),
                    **({"spare": keys.spare} if keys.spare else {}),
                    **({"named": keys.named} if keys.named else {}),
                }
            )
        else:
            private.append(
                {
                    "name": name,
                    "first_seen": _length(keys.first_seen),
                    "event": list(keys.event),
                    "periods": len(job.values_of(name)) - len((NEVER, EARLIER)),
                }
            )
    questions = [
        {
            "name": question.name,
            "measure": question.measure.to_json(),
            "private": [name for name, _ in question.attributes],
        }
        for question in job.questions
    ]
    return {"questions": questions, "public": public, "private": private}


def _public_in_order(job: DeployedJob) -> list[str]:
    """Return the public attributes in the order in which groups are numbered.

    The last attribute varies fastest. Records of jobs have sorted keys, so the attributes of a
    stored job can be in another order.
    """
    domain = job.domain
    if not isinstance(domain, PanelDomain) or not job.public_attributes:
        return []
    values = {name: job.all_values_of(name) for name in job.public_attributes}
    first = {name: each[0] for name, each in values.items()}
    strides = {
        name: domain.group_of({**first, name: each[1]}) - domain.group_of(first)
        for name, each in values.items()
    }
    return sorted(strides, key=strides.__getitem__, reverse=True)


def _length(length: Duration) -> dict[str, int]:
    return {
        "months": length.months,
        "milliseconds": round(length.exact.total_seconds() * 1000),
    }


def _values(domain: ValueDomain, *, labels: bool) -> dict[str, Any]:
    values: dict[str, Any] = {
        "kind": domain.kind,
        "size": domain.size,
        "slots": domain.slots,
        "initial": domain.initial,
    }
    if isinstance(domain, NumericDomain):
        buckets = {"low": domain.low, "high": domain.high, "buckets": domain.buckets}
        return {**values, **buckets, "optional": domain.optional}
    if labels and domain.size <= LABELS_TOLD and domain.items is not None:
        return {**values, "labels": list(domain.items)}
    return values


def described(job: DeployedJob, key: Ed25519PrivateKey) -> DeployedJob:
    return _signed(job, statement_of(job), key)


def restated(job: DeployedJob, key: Ed25519PrivateKey) -> DeployedJob:
    """Return the job with a newly signed description that is up to date.

    It states the current last epoch, and the values that have spare cells. Everything else stays as
    devices have pinned it. The new statement has a higher revision. `key` must be the signing key
    that devices trust.
    """
    before = job.signed_description
    assert before is not None
    if signer_of(key) != before.signer:
        raise WrongKeyError(
            f"devices of job {job.name} trust the signing key {before.signer.hex()}; got "
            f"{signer_of(key).hex()}. Deploy with the job's original signing key"
        )
    statement = _up_to_date(job, before)
    statement["revision"] += 1
    return _signed(job, _canonical(statement), key)


def is_up_to_date(job: DeployedJob) -> bool:
    """Return whether the job has no description, or one that `restated` would not change."""
    current = job.signed_description
    return current is None or _canonical(_up_to_date(job, current)) == current.statement


def _up_to_date(job: DeployedJob, current: SignedDescription) -> dict[str, Any]:
    statement: dict[str, Any] = json.loads(current.statement)
    statement["epochs"]["last"] = job.last_epoch
    return statement | ({} if job.measures is None else {"events": _events(job)})


def _signed(job: DeployedJob, statement: str, key: Ed25519PrivateKey) -> DeployedJob:
    signed = SignedDescription.model_validate(
        {
            "statement": statement,
            "signature": key.sign(_LABEL + statement.encode()).hex(),
            "signer": signer_of(key).hex(),
        }
    )
    return job.model_copy(update={"signed_description": signed})


def is_signed(description: SignedDescription) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(description.signer).verify(
            description.signature, _LABEL + description.statement.encode()
        )
    except InvalidSignature:
        return False
    return True


def signer_of(key: Ed25519PrivateKey) -> bytes:
    return key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)


def signing_key_at(path: Path) -> Ed25519PrivateKey:
    """Read a signing key; if the file is missing, create it, accessible only to its owner."""
    key = Ed25519PrivateKey.generate()
    try:
        # An existing key is never overwritten: apps trust only its public key.
        write_pem(path, key)
    except FileExistsError:
        return read_pem(path, "signing key", Ed25519PrivateKey)  # type: ignore[type-abstract]
    return key
