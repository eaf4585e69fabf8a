"""Plans that are kept: read as they were made, by their owner alone, and only where they agree."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest

from pipeline.jobs.job_files import Job, make_job
from pipeline.planning import plan_cache
from pipeline.planning.plan import Plan, plan
from pipeline.planning.plan_cache import kept_plan, plans_folder


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DPSTREAM_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def job_of(epsilon: float = 1.0) -> Job:
    return make_job(
        {
            "name": "kept",
            "protocol": "future_rand",
            "parameters": {"epsilon": epsilon, "changes": 1},
            "epochs": {"count": 4},
        }
    )


class Maker:
    """Counts how often it makes a plan."""

    def __init__(self, job: Job, **asked: Any) -> None:
        self.job, self.asked, self.made = job, asked, 0

    def __call__(self) -> Plan:
        self.made += 1
        return plan(self.job, **self.asked)

    def get(self) -> Plan:
        return kept_plan(self.job, self.asked, self)


def test_a_plan_is_read_as_it_was_made() -> None:
    maker = Maker(job_of(), users=500, compared=True, trust="shuffle", colluding=0.1)
    first = maker.get()
    again = maker.get()
    assert maker.made == 1
    assert again == first
    assert again.to_json() == first.to_json()


def test_only_the_owner_may_look(home: Path) -> None:
    Maker(job_of(), users=500).get()
    (path,) = plans_folder().iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(plans_folder().stat().st_mode) == 0o700
    assert plans_folder().is_relative_to(home)


def test_what_differs_is_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    for maker in (
        Maker(job_of(), users=500),
        Maker(job_of(), users=501),
        Maker(job_of(2.0), users=500),
    ):
        maker.get()
        assert maker.made == 1
    changed = Maker(job_of(), users=500)
    monkeypatch.setattr(plan_cache, "_code", lambda: "other code")
    changed.get()
    assert changed.made == 1


@pytest.mark.parametrize("damage", [b"", b"{", b'{"job": "kept"}', b"\xff", b"[1, 2]"])
def test_a_damaged_file_is_passed_over_and_written_anew(damage: bytes) -> None:
    maker = Maker(job_of(), users=500)
    first = maker.get()
    (path,) = plans_folder().iterdir()
    whole = path.read_bytes()
    path.write_bytes(damage)
    assert maker.get() == first
    assert maker.made == 2
    assert path.read_bytes() == whole


def test_where_nothing_can_be_written_nothing_is_kept(home: Path) -> None:
    home.write_text("no folder")
    maker = Maker(job_of(), users=500)
    assert maker.get() == maker.get()
    assert maker.made == 2


def test_the_latest_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_cache, "KEPT", 3)
    for users in range(500, 506):
        Maker(job_of(), users=users).get()
    assert len(list(plans_folder().iterdir())) == 3


def test_the_code_is_part_of_the_key() -> None:
    assert len(plan_cache._code()) == 64
