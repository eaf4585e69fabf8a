"""Test tables split into two shares: all stages under crashes, and what each party sees."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import chisquare

from dpstream.pipeline.actions import Append
from dpstream.pipeline.devices.producer import Producer
from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job
from dpstream.pipeline.jobs.job_files import Job, make_job
from dpstream.pipeline.jobs.job_problems import JobError
from dpstream.pipeline.jobs.key_files import WrongKeyError
from dpstream.pipeline.jobs.key_ring import KeyRing
from dpstream.pipeline.jobs.routes import SHARERS
from dpstream.pipeline.kafka.memory import MemoryDriver, SimulatedCluster, seeded_generators
from dpstream.pipeline.stages.added_devices import AddedDevices
from dpstream.pipeline.stages.added_shares import window_payload
from dpstream.pipeline.stages.ciphertexts_of_windows import Decryptor
from dpstream.pipeline.stages.epoch_log import EpochLog
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.pipeline.stages.estimation import Estimation
from dpstream.pipeline.stages.topic_uses import hides_messages, stages_of
from dpstream.topics.batches import decode_batch
from dpstream.topics.chunks import decode_chunk, encode_chunk
from dpstream.topics.frames import RecordType, kind_of
from dpstream.topics.manifests import Manifest, WindowStatus
from dpstream.topics.messages import MessageArray, Messages
from dpstream.topics.names import SUMS, Role
from dpstream.topics.partials import corruption_reason, decode_partial
from dpstream.topics.shares import (
    MOST_ALIKE,
    MOST_SHARED,
    Counts,
    PartialSum,
    ShareFormat,
    ShareSum,
    ciphertexts_of,
    share_table,
)
from tests.support.killed_worlds import killed_worlds
from tests.support.sealed_cells import (
    CELLS,
    EPOCHS,
    check,
    run,
    written_job,
)
from tests.support.sealed_cells import new_world as new_world_with_keys
from tests.support.sealing import public_key, ring, sealed_section
from tests.support.world import DEPLOYMENT, Accidents, Owner, World

KEYS = (1, 2)
PARTIES = ("aggregate-a", "aggregate-b")
SHARES = {"shares": [public_key(number) for number in KEYS]}


pytestmark = pytest.mark.usefixtures("cells_protocol")


@pytest.fixture
def few_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpstream.topics.fixed_sizes.table_cells", lambda form: CELLS)
    monkeypatch.setattr("dpstream.topics.shares._CELLS_OF_A_ROW", 6)


def shares_job(**values: Any) -> Job:
    return make_job(written_job(values.pop("sealed", SHARES), **values))


def deployed(**values: Any) -> DeployedJob:
    return deploy_job(shares_job(**values), deployment=DEPLOYMENT, deployed_at=0)


def new_world(
    job: DeployedJob,
    folder: Path,
    accidents: Accidents | None = None,
    keys: KeyRing | None = None,
) -> World:
    return new_world_with_keys(job, folder, keys or ring(KEYS), accidents)


def sums(world: World, epoch: int) -> list[PartialSum]:
    partial_sums = []
    for role in SUMS:
        parts = map(decode_partial, world.log.values(role))
        payload = next(part.payload for part in parts if part.epoch == epoch)
        partial_sums.append(PartialSum.from_bytes(world.job.table_format, payload))
    return partial_sums


@pytest.mark.slow
@pytest.mark.usefixtures("few_cells")
@pytest.mark.parametrize(
    "keep",
    [
        pytest.param(False, id="unflushed lost"),
        pytest.param(True, id="unflushed kept", marks=pytest.mark.verify),
    ],
)
def test_stages_recover_when_killed_after_any_action(
    folder: Path, monkeypatch: pytest.MonkeyPatch, keep: bool, stride: int
) -> None:
    monkeypatch.setattr("dpstream.topics.partials._PART_BYTES", 60)
    job = deployed()

    def started_and_run(place: Path, accidents: Accidents) -> World:
        return run(new_world(job, place, accidents))

    for world in killed_worlds(started_and_run, folder, keep=keep, stride=stride):
        check(world)
        for reader, role in (("", Role.REPORTS), *((party, Role.SHUFFLED) for party in PARTIES)):
            for partition in range(2):
                place = role, partition
                committed = world.log.committed_by[reader][place]
                assert committed == world.log.end(*place), "committed offset lags"
        for role in (SUMS[0], Role.PARTIALS):
            assert world.log.committed[role, 0] == world.log.end(role, 0), "committed offset lags"


@pytest.mark.usefixtures("few_cells")
@pytest.mark.parametrize("stage", [*PARTIES, "aggregate"])
def test_resumed_worker_changes_nothing_that_its_successor_published(
    folder: Path, stage: str
) -> None:
    paused_after = 0
    while True:
        world = new_world(deployed(), folder / str(paused_after))
        world.close_all(1)
        before = list(stages_of(world.job))
        world.settle(before[: before.index(stage)])
        first = Owner(world, stage, 0.0)
        first.step(paused_after)
        world.settle()
        published = world.published()[1].to_bytes()
        done = first.done
        first.driver.fenced = True
        first.step()
        world.settle()
        assert world.published()[1].to_bytes() == published
        assert world.published()[1].window_status is WindowStatus.RELEASED
        world.shut()
        if done:
            return
        paused_after += 1


@pytest.mark.usefixtures("few_cells")
def test_aggregator_commits_only_after_both_parties_have_written(folder: Path) -> None:
    world = new_world(deployed(), folder)
    world.close_all(1)
    world.settle(["shuffle", PARTIES[0], "aggregate"])
    place = SUMS[0], 0
    assert world.log.end(*place) == 1
    assert place not in world.log.committed
    assert world.worker("aggregate").stage.heartbeat()["open_windows"] == 1
    world.kill("aggregate")
    world.settle([PARTIES[1], "aggregate", "publish"])
    assert world.log.committed[place] == 1
    assert world.published()[1].window_status is WindowStatus.RELEASED
    world.shut()


def test_use_of_shares_does_not_change_the_results_of_any_protocol_with_cells() -> None:
    for protocol, parameters in (
        ("fragments", {"epsilon": 4, "delta": 1e-3, "domain": ["a", "b", "c"]}),
        ("shuffled_counts", {"epsilon": 4, "delta": 1e-3, "max_changes": 1}),
        ("future_rand", {"epsilon": 1, "max_changes": 1}),
    ):
        values: dict[str, Any] = {"protocol": protocol, "parameters": parameters}
        minimum = {"minimum": 100}
        _, open_partials = _partials(deployed(**values, shuffle=minimum, sealed=None))
        cluster, shared = _partials(deployed(**values, shuffle=minimum, sealed=SHARES))
        assert len(shared) == EPOCHS
        for epoch, payload in enumerate(open_partials, 1):
            state = cluster.job.aggregator_from_bytes(payload)
            for party in SHARERS:
                added = AddedDevices(cluster.job, party, cluster.keys).words(epoch)
                assert (added is None) == (protocol == "future_rand")
                if added is not None:
                    state.add(epoch, added.values, added.counts)
            assert state.to_bytes() == shared[epoch - 1], protocol


def _partials(job: DeployedJob) -> tuple[SimulatedCluster, list[bytes]]:
    generators = seeded_generators(7)
    cluster = SimulatedCluster(job, generators)
    producer = Producer(
        cluster.job,
        None,
        name="simulation",
        transport=MemoryDriver(cluster.log),
        generators=generators,
    )
    producer.enroll([str(user) for user in range(100)])
    for epoch in range(1, EPOCHS + 1):
        producer.report_all(epoch, np.ones((100, *job.domain.shape), np.int64))
        producer.close(epoch)
        cluster.settle()
    producer.shut()
    assert {record.window_status for record in cluster.new_estimates()} == {WindowStatus.RELEASED}
    payloads = [decode_partial(value).payload for value in cluster.log.values(Role.PARTIALS)]
    return cluster, payloads


def opened(job: DeployedJob, rows: MessageArray, party: int, keys: KeyRing) -> list[bytes]:
    """Return the contents of a party's ciphertexts that these keys decrypt."""
    opener = Decryptor(job, PARTIES[party], keys)
    return [each for each in opener.open_all(1, ciphertexts_of(rows, party)) if each is not None]


def test_each_party_decrypts_only_its_own_shares(folder: Path) -> None:
    job = deployed()
    world = new_world(job, folder)
    world.close_epoch("north", 1)
    world.settle(["shuffle"])
    batches = [decode_batch(v) for v in world.log.values(Role.REPORTS, 1)[:-1]]
    world.shut()
    rows = np.concatenate([batch.words.values for batch in batches])
    assert len(rows) == job.table_format.chunks == 5
    for party in range(2):
        assert len(opened(job, rows, party, ring(KEYS))) == 5
        # With the context of the other party, the right key decrypts nothing.
        swapped = deployed(sealed={"shares": [public_key(n) for n in reversed(KEYS)]})
        other = job.model_copy(update={"sealed": swapped.sealed})
        assert not opened(other, rows, party, ring(KEYS))
        with pytest.raises(WrongKeyError, match="'dpstream keygen' created"):
            opened(job, rows, party, ring([KEYS[1 - party]]))
        assert not Decryptor(job, PARTIES[party], ring(KEYS)).open_all(
            1, ciphertexts_of(rows, 1 - party)
        )[0]


@pytest.mark.parametrize("stage", PARTIES)
def test_party_does_not_start_without_its_key(folder: Path, stage: str) -> None:
    own = KEYS[PARTIES.index(stage)]
    world = new_world(deployed(), folder, keys=ring(set(KEYS) - {own}))
    with pytest.raises(WrongKeyError, match="Copy the key that 'dpstream keygen' created"):
        world.stage(stage)
    world.keys = ring([own])
    assert world.stage(stage)
    # Other stages decrypt nothing, and need no key.
    world.keys = KeyRing({})
    assert all(world.stage(name) for name in ("shuffle", "aggregate", "publish"))


Rows = Callable[[MessageArray], MessageArray]


def lying(monkeypatch: pytest.MonkeyPatch, job: DeployedJob, lie: Rows) -> None:
    epoch = job.locks.of(PARTIES[0], 1)

    def share(table: Counts, contributors: int, form: Any, locks: Any, draw: Any) -> MessageArray:
        rows = share_table(table, contributors, form, locks, draw)
        return lie(rows) if table[CELLS - 1] and locks[0] == epoch else rows

    monkeypatch.setattr("dpstream.pipeline.devices.sealed_records.share_table", share)


def broken(*parties: int) -> Rows:
    def change(rows: MessageArray) -> MessageArray:
        rows = rows.copy()
        for party in parties:
            rows[0, -1 if party else 0] ^= np.uint64(1)
        return rows

    return change


@pytest.mark.usefixtures("few_cells")
@pytest.mark.parametrize(
    ("lie", "reason"),
    [
        (
            broken(0),
            "the two aggregators did not open the same shares: aggregate-a opened 3 shares and "
            "failed to open 1 and aggregate-b opened 4 shares and failed to open 0",
        ),
        (
            broken(1),
            "the two aggregators did not open the same shares: aggregate-a opened 4 shares and "
            "failed to open 0 and aggregate-b opened 3 shares and failed to open 1",
        ),
        (broken(0, 1), "opened shares are from 6 to 12 devices, but the window has 12"),
        (lambda rows: rows[:1], "opened shares are from 6 to 12 devices, but the window has 12"),
    ],
    ids=["corrupt seed", "corrupt difference", "both corrupt", "missing chunk"],
)
def test_only_windows_with_mismatched_shares_are_corrupt(
    folder: Path, monkeypatch: pytest.MonkeyPatch, lie: Rows, reason: str
) -> None:
    job = deployed()
    lying(monkeypatch, job, lie)
    world = new_world(job, folder)
    for name in ("north", "south"):
        world.close_epoch(name, 1)
        world.settle()
    heartbeat: Mapping[str, Any] = world.worker("aggregate").stage.heartbeat()
    assert heartbeat["counts"]["windows corrupt"] == 1
    run(world)
    corruption, right = world.published()[1], world.published()[2]
    assert (corruption.window_status, corruption.reason) == (WindowStatus.CORRUPT, reason)
    assert EstimateRecord.from_bytes(corruption.to_bytes()) == corruption
    assert corruption.notes[0] == f"corrupt: {reason}"
    assert corruption.summary.reports == 0
    assert right.window_status is WindowStatus.RELEASED
    assert right.headline is not None
    assert (right.headline.ci95_low, right.headline.ci95_high) == (1.0, 1.0)
    epochs = list(EpochLog(job).read(MemoryDriver(world.log).run))
    assert [epoch.corruption for epoch in epochs] == [reason, None]
    assert epochs[0].counts is None
    assert epochs[1].counts == epochs[1].payload


def test_sum_that_might_have_overflowed_is_not_published(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check uses the maximum number of identical reports, as sums do not show overflows."""
    monkeypatch.setattr("dpstream.pipeline.stages.added_shares.MOST_ALIKE", CELLS - 1)
    world = run(new_world(deployed(), folder / "too many"))
    reason = (
        f"up to {CELLS} reports of these devices can be identical, but shares support at most "
        f"{CELLS - 1} identical reports: split the users among several jobs"
    )
    assert [each.reason for each in world.published().values()] == [reason] * EPOCHS
    assert {each.window_status for each in world.published().values()} == {WindowStatus.CORRUPT}
    monkeypatch.setattr("dpstream.pipeline.stages.added_shares.MOST_ALIKE", CELLS)
    check(run(new_world(deployed(), folder / "just as many")))


def test_jobs_whose_sums_might_overflow_are_rejected() -> None:
    parameters = {"epsilon": 4, "delta": 1e-3, "domain": ["a", "b", "c"]}
    job = shares_job(protocol="fragments", parameters=parameters, shuffle={"minimum": 1_000})
    law = job.calibrate()
    assert job.share_format(law).cells
    larger = job.model_copy(
        update={"shuffle": job.shuffle.model_copy(update={"minimum": MOST_ALIKE})}
    )
    assert larger.share_format(law).cells
    too_large = job.model_copy(
        update={"shuffle": job.shuffle.model_copy(update={"minimum": MOST_ALIKE + 1})}
    )
    with pytest.raises(
        JobError,
        match=r"shuffle\.minimum: .* a table sent in shares counts at most 4,294,967,295",
    ):
        too_large.share_format(law)


def test_heartbeat_of_a_shuffler_of_shares_counts_devices(folder: Path) -> None:
    job = deployed()
    assert job.protocol_entry.shuffling is None
    world = new_world(job, folder)
    world.close_epoch("north", 1)
    world.settle(["shuffle"])
    heartbeat: Mapping[str, Any] = world.worker("shuffle").stage.heartbeat()
    assert heartbeat["counts"] == {"reports": CELLS // 2}
    (window,) = heartbeat["windows"]
    assert "reports" not in window
    assert window["devices"] == CELLS // 2
    assert hides_messages(job, "shuffle")
    assert not hides_messages(job, "aggregate-a")
    world.shut()


def test_corrupt_epoch_has_no_contributors() -> None:
    job = deployed(protocol="future_rand", parameters={"epsilon": 1.0, "max_changes": 1})
    manifest = Manifest(
        fingerprint=job.fingerprint,
        deployment=job.deployment,
        epoch=1,
        window_status=WindowStatus.RELEASED,
        first_offset=0,
        cut_offset=2,
        first_epoch=1,
        producers=(True, True),
        populations=(6, 7),
        contributors=12,
        population=13,
        timestamp=0,
    )
    estimation = Estimation(job)
    estimation.take_in(manifest, None)
    assert estimation.participation.contributors[1] == 0
    assert estimation.participation.population[1] == 13
    estimation = Estimation(job)
    estimation.take_in(manifest, job.aggregator().to_bytes())
    assert estimation.participation.contributors[1] == 12


@pytest.mark.usefixtures("few_cells")
def test_report_counts_once_if_its_shares_are_copied_or_recombined(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = deployed()

    def pair(rows: MessageArray) -> MessageArray:
        first, second = rows
        mixed = first.copy()
        words = len(ciphertexts_of(rows, 0)[0]) // 8
        mixed[:words] = second[:words]
        return np.stack([first, mixed, second, first])

    lying(monkeypatch, job, pair)
    check(run(new_world(job, folder)))


@pytest.mark.usefixtures("few_cells")
def test_additional_undecryptable_ciphertext_does_not_corrupt_a_window(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = deployed()
    lying(monkeypatch, job, lambda rows: np.concatenate([rows, broken(0, 1)(rows[:1])]))
    world = new_world(job, folder)
    for name in ("north", "south"):
        world.close_epoch(name, 1)
        world.settle()
    counts = [world.worker(party).stage.heartbeat()["counts"] for party in PARTIES]
    assert counts == [{"shares": 4, "shares that do not open": 1, "partials": 1}] * 2
    check(run(world))
    assert [each.closed for each in sums(world, 1)] == [1, 1]


@pytest.mark.usefixtures("few_cells")
def test_invalid_counts_corrupt_a_window(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A malicious producer counts an invalid message, or one beyond the table."""
    monkeypatch.setattr("dpstream.topics.fixed_sizes.table_cells", lambda form: CELLS + 1)
    job = deployed()
    form = job.table_format
    for table in (np.eye(1, CELLS + 1, CELLS), np.ones((1, form.chunks * form.chunk_cells))):

        def share(
            sent: Counts, contributors: int, form: Any, locks: Any, draw: Any
        ) -> MessageArray:
            return share_table(table[0].astype("<u4"), contributors, form, locks, draw)  # noqa: B023

        monkeypatch.setattr("dpstream.pipeline.devices.sealed_records.share_table", share)
        if table.size > CELLS + 1:
            monkeypatch.setattr(
                ShareFormat, "cut", lambda form, table: table.reshape(form.chunks, -1)
            )
        world = run(new_world(job, folder / str(table.size)))
        for record in world.published().values():
            assert record.window_status is WindowStatus.CORRUPT
            assert record.reason is not None
            assert record.reason.startswith(
                "the sums of the shares are not valid counts of this job"
            )


@pytest.mark.usefixtures("few_cells")
def test_shuffler_that_drops_shares_learns_no_sum(folder: Path) -> None:
    """With only the shares of one producer, neither party publishes its sum."""
    job = deployed()
    world = new_world(job, folder)
    world.close_all(1)
    raw = [
        decode_batch(v) for v in world.log.values(Role.REPORTS, 1) if kind_of(v) is RecordType.BATCH
    ]
    north = world.producer("north").enrollment
    alone = np.concatenate([each.words.values for each in raw if each.enrollment == north])
    world.settle(["shuffle"])
    (value,) = world.log.values(Role.SHUFFLED, 1)
    forged = replace(
        decode_chunk(value), attempt=bytes(16), index=0, total=1, words=Messages(np.sort(alone, 0))
    )
    forged = replace(forged, words=Messages(alone[np.lexsort(alone.T[::-1])]))
    world.log._partitions[Role.SHUFFLED, 1].records.clear()
    world.log.append(Append(Role.SHUFFLED, 1, encode_chunk(forged)))
    world.settle()
    for each in sums(world, 1):
        assert each.chunks is None
        assert set(each.contributors) == {CELLS // 2}
    record = world.published()[1]
    assert record.window_status is WindowStatus.CORRUPT
    assert record.summary.reports == 0
    # The sum stays suppressed if the shuffler claims that no other devices were present.
    manifest = replace(world.manifests()[1], contributors=CELLS // 2)
    first, second = (
        next(decode_partial(value).payload for value in world.log.values(role)) for role in SUMS
    )
    reason = corruption_reason(window_payload(job, manifest, (first, second)))
    assert reason == "shares are from fewer than the required 10 devices"
    world.shut()


def test_observations_of_each_party_are_uniform(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Test tables of zeros, tables of ones and their sums; every seed is used once."""
    job = deployed(shuffle={"minimum": 1, "producers": 2})
    seeds: list[bytes] = []

    def draw(size: int) -> bytes:
        seeds.append(secrets.token_bytes(size))
        return seeds[-1]

    form = job.table_format
    locks = job.locks.of(PARTIES[0], 1), job.locks.of(PARTIES[1], 1)
    totals = [ShareSum.empty(form, party) for party in range(2)]
    for value in (0, 1):
        table = np.full(form.cells, value, "<u4")
        rows = share_table(table, 1, form, locks, draw)
        for party, total in enumerate(totals):
            contents = opened(job, rows, party, ring(KEYS))
            total.add(contents)
            if party:
                shown = np.frombuffer(b"".join(each[24:] for each in contents), "u1")
                assert looks_uniform(shown)
        assert looks_uniform(np.frombuffer(rows.tobytes(), "u1"))
    assert len(set(seeds)) == len(seeds) == 4 * form.chunks
    for total in totals:
        assert looks_uniform(total.chunks.view("u1"))
    both = totals[0].chunks + totals[1].chunks
    assert (form.joined(both) == 1).all()
    assert not looks_uniform(both.view("u1"))


def looks_uniform(data: np.ndarray[Any, Any]) -> bool:
    counts = np.bincount(data.ravel(), minlength=256)
    return float(chisquare(counts).pvalue) > 1e-12


class TestRotation:
    def test_epoch_is_sealed_to_the_keys_of_its_period(self, folder: Path) -> None:
        periods = [[public_key(1), public_key(3)], [public_key(2), public_key(4)]]
        job = deployed(sealed={"shares": periods, "rotate": 1})
        world = new_world(job, folder, keys=ring([1, 2, 3, 4]))
        check(run(world))
        world.keys = ring([3, 4])
        for partition, epoch in ((1, 1), (0, 2)):
            chunk = decode_chunk(world.log.values(Role.SHUFFLED, partition)[0])
            opener = Decryptor(job, PARTIES[0], world.keys)
            ciphertexts = ciphertexts_of(chunk.words.values, 0)
            if epoch == 1:
                with pytest.raises(WrongKeyError, match="cannot be read without that key"):
                    opener.open_all(epoch, ciphertexts)
            else:
                assert None not in opener.open_all(epoch, ciphertexts)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"sealed": {"shares": [public_key(1)]}},
            "sealed.shares.*expected a list of 2 entries",
        ),
        (
            {"sealed": {"shares": [public_key(1)] * 2}},
            ("a key is listed twice; expected a different key for every party and key period"),
        ),
        (
            {"sealed": {**SHARES, **sealed_section([[3]], [4])}},
            ("sealed.shares: cannot be combined with 'aggregate' or 'stages'"),
        ),
        ({"sealed": {"aggregate": [public_key(1)]}}, "stages: is missing"),
        ({"shuffle": {"minimum": 10, "order": "random"}}, "shuffle.order is random"),
    ],
)
def test_unsupported_shares_are_rejected(values: dict[str, Any], message: str) -> None:
    with pytest.raises(JobError, match=message):
        deployed(**values)


def test_shared_tables_above_the_maximum_size_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpstream.topics.fixed_sizes.table_cells", lambda form: MOST_SHARED)
    assert deployed().table_format.cells == MOST_SHARED
    monkeypatch.setattr("dpstream.topics.fixed_sizes.table_cells", lambda form: MOST_SHARED + 1)
    with pytest.raises(JobError, match="possible reports; expected at most 4,194,304"):
        deployed()


def test_keys_are_part_of_the_fingerprint() -> None:
    job = deployed()
    read = DeployedJob.from_bytes(job.to_bytes())
    assert read.sealed == job.sealed
    assert read.fingerprint == job.fingerprint
    body = json.loads(job.to_bytes())["sealed"]
    assert body == {"shares": [[key] for key in SHARES["shares"]], "rotate": None}
    other = deployed(sealed={"shares": list(reversed(SHARES["shares"]))})
    assert other.fingerprint != job.fingerprint
    # As written by software without support for shares.
    before = json.loads(deployed(sealed=sealed_section([[2]])).to_bytes())["sealed"]
    assert before.keys() == {"aggregate", "stages", "rotate"}
