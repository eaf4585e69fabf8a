"""Windows of devices that report directly, when an intermediary copies reports.

A collector, or the broker's operator, duplicates reports: under the same tag, or sealed reports,
which it cannot read, under tags of nonexistent devices. Each report must count once. Otherwise, few
devices would pass for many, or reveal their reports by how much the estimates change.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache, partial

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.key_ring import NO_KEYS, KeyRing
from dpstream.pipeline.jobs.sealing_keys import public_bytes
from dpstream.randomizers.counted_messages import written_out
from dpstream.randomizers.randomness import cryptographic_generator
from dpstream.topics.loose_batches import LooseBatch, encode_loose_batch, report_tag
from dpstream.topics.sealing import Lock, device_context, key_id, seal
from tests.attacks.promises import broken
from tests.attacks.scenarios import PATIENT, AttackScenario, scenario_job

MINIMUM = 4
_COLLECTOR_KEY = bytes(32)
_MANY = 500


def attack_device_windows() -> Iterator[str]:
    key = X25519PrivateKey.generate()
    again = "repeated reports do not raise few devices above the minimum"
    promises = {
        f"plain reports: {again}": partial(_too_few, None),
        f"sealed reports: {again}": partial(_too_few, key),
        "copies of a sealed report under other tags do not count": partial(_copies, key),
    }
    return broken(promises)


@lru_cache(maxsize=4)
def device_job(private_key: X25519PrivateKey | None) -> DeployedJob:
    seals = [] if private_key is None else [public_bytes(private_key).hex()]
    parameters = {"epsilon": 4, "max_changes": 2}
    return scenario_job(
        "future_rand", parameters, minimum=MINIMUM, producers=None, devices={"seal": seals}
    )


def device_rows(job: DeployedJob, epoch: int, devices: int) -> list[bytes]:
    assert job.devices is not None
    randomness, key = cryptographic_generator(), job.devices.key_at(epoch)
    population = job.randomizer()
    population.enroll(_MANY, randomness)
    # Some devices have no messages to report.
    words = written_out(population.report(epoch, np.ones(_MANY, np.int8), None, randomness))
    rows = []
    for device in range(devices):
        content = job.content_format.pack(words[device : device + 1])
        subject, name = b"d" + bytes([device]) * 16, randomness.bytes(16)
        if key is not None:
            context = device_context(job.deployment, job.fingerprint, epoch, name)
            content = name + seal(content, Lock(key, context))
        rows.append(report_tag(_COLLECTOR_KEY, job.deployment, epoch, subject) + content)
    return rows


def record_of(job: DeployedJob, epoch: int, rows: Sequence[bytes]) -> bytes:
    assert job.devices is not None
    key = job.devices.key_at(epoch)
    array = np.frombuffer(b"".join(rows), np.uint8).reshape(len(rows), -1)
    identity = None if key is None else key_id(key)
    return encode_loose_batch(LooseBatch(job.fingerprint, job.deployment, epoch, identity, array))


def _too_few(private_key: X25519PrivateKey | None) -> str:
    for devices, released in ((MINIMUM - 1, False), (MINIMUM, True)):
        scenario = _scenario(private_key)
        rows = device_rows(scenario.job, 1, devices)
        again = record_of(scenario.job, 1, rows * 3)
        scenario.deliver(1, [record_of(scenario.job, 1, rows), again, again])
        scenario.work(*PATIENT)
        reason = _evidence_against(scenario, devices)
        if not reason and bool(scenario.writings(1)) != released:
            minimum = f"with a minimum of {MINIMUM}"
            did = "is not released" if released else "is released"
            reason = f"a window of {devices} devices {did} {minimum}"
        if reason:
            return reason
    return ""


def _copies(private_key: X25519PrivateKey) -> str:
    scenario = _scenario(private_key)
    rows = device_rows(scenario.job, 1, MINIMUM)
    randomness = cryptographic_generator()
    tag = len(report_tag(_COLLECTOR_KEY, bytes(16), 1, b""))
    copies = [randomness.bytes(tag) + rows[0][tag:] for _ in range(20)]
    scenario.deliver(1, [record_of(scenario.job, 1, rows), record_of(scenario.job, 1, copies)])
    scenario.work(*PATIENT)
    return _evidence_against(scenario, len(rows))


def _evidence_against(scenario: AttackScenario, devices: int) -> str:
    """Return the evidence against a first window with one report per device."""
    declared = scenario.manifests()[1].contributors
    if declared != devices:
        return f"a manifest declares {declared} devices; the window has {devices}"
    for words in scenario.writings(1):
        if words.total() != devices:
            return f"{words.total()} reports of {devices} devices are released"
    return ""


def _scenario(private_key: X25519PrivateKey | None) -> AttackScenario:
    keys = NO_KEYS if private_key is None else KeyRing.of([private_key], "the audit")
    return AttackScenario(device_job(private_key), cryptographic_generator(), keys=keys)
