"""Every alert of docker/prometheus/rules.yml fires when it is to, and at no other time."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

from tests.support.prometheus_tools import find_tool

PROMETHEUS = Path(__file__).parents[2] / "docker" / "prometheus"
RULES = PROMETHEUS / "rules.yml"

HOUR = 120
"""Samples are half a minute apart."""


def group(stage: str) -> str:
    return f'group="logins.{stage}.00ff", topic="logins.x", partition="0", instance="{stage}:9400"'


def healthy() -> dict[str, str]:
    """Series of a job with a worker of each stage, in the notation of promtool."""
    series: dict[str, str] = {}
    for stage in ("shuffle", "aggregate", "publish"):
        own = f'dpstream_job="logins", stage="{stage}", instance="{stage}:9400"'
        series |= {
            f'up{{job="dpstream", instance="{stage}:9400"}}': f"1x{HOUR}",
            f"dpstream_worker_ready{{{own}}}": f"1x{HOUR}",
            f"dpstream_broker_reachable{{{own}}}": f"1x{HOUR}",
            f"dpstream_partitions_assigned{{{own}}}": f"2x{HOUR}",
            f"dpstream_worker_restarts_total{{{own}}}": f"0x{HOUR}",
            f"dpstream_process_start_time_seconds{{{own}}}": f"1000x{HOUR}",
            f"dpstream_grace_seconds{{{own}}}": f"60x{HOUR}",
            f"dpstream_epoch_seconds{{{own}}}": f"600x{HOUR}",
            # An epoch every ten minutes.
            f"dpstream_last_epoch{{{own}}}": f"{'1x19 ' if stage == 'shuffle' else '1x20 '}"
            "2x19 3x19 4x19 5x19 6x39",
            f'dpstream_windows_total{{{own}, fate="released"}}': "1x19 2x19 3x19 4x19 5x19 6x19",
            f'dpstream_windows_total{{{own}, fate="too small"}}': f"0x{HOUR}",
            f'dpstream_dead_letters_total{{{own}, reason="unreadable"}}': f"0x{HOUR}",
            # Records of an earlier deployment are nobody's fault.
            f'dpstream_dead_letters_total{{{own}, reason="deployment"}}': f"0+1x{HOUR}",
            f"dpstream_late_reports_total{{{own}}}": f"0x{HOUR}",
            f"kafka_consumergroup_group_lag_seconds{{{group(stage)}}}": f"50x{HOUR}",
        }
    return series


@dataclass(frozen=True)
class Scenario:
    """What differs from a healthy job, and which alerts fire then, if any.

    Attributes:
        changes: samples by a part of the series' names; None takes the series away.
        fires: by name, an hour after the beginning.
    """

    changes: Mapping[str, str | None]
    fires: frozenset[str] = field(default_factory=frozenset)

    def series(self) -> dict[str, str]:
        series = healthy()
        for name, samples in self.changes.items():
            found = [key for key in series if name in key] or [name]
            for key in found:
                if samples is None:
                    del series[key]
                else:
                    series[key] = samples
        return series


def own(name: str, stage: str, more: str = "") -> str:
    return f'{name}{{dpstream_job="logins", stage="{stage}", instance="{stage}:9400"{more}}}'


def lag(stage: str) -> str:
    return f"kafka_consumergroup_group_lag_seconds{{{group(stage)}}}"


UNREADABLE = own("dpstream_dead_letters_total", "shuffle", ', reason="unreadable"')
STALE = "1x100 stale"
SCENARIOS = {
    "healthy": Scenario({}),
    "nothing deployed": Scenario({'dpstream_job="logins"': None, "group=": None}),
    "publisher three epochs behind": Scenario(
        {own("dpstream_last_epoch", "publish"): f"3x{HOUR}"}, frozenset({"LagOverTwoEpochs"})
    ),
    "publisher two epochs behind": Scenario({own("dpstream_last_epoch", "publish"): f"4x{HOUR}"}),
    "records wait longer than two epochs, though windows pass": Scenario(
        {lag("aggregate"): f"1261x{HOUR}"}, frozenset({"LagOverTwoEpochs"})
    ),
    "records wait nearly as long": Scenario({lag("aggregate"): f"1259x{HOUR}"}),
    "epochs have no length": Scenario(
        {lag("aggregate"): f"5000x{HOUR}", "dpstream_epoch_seconds": None}
    ),
    "no window passes though records wait": Scenario(
        {
            lag("aggregate"): f"181x{HOUR}",
            own("dpstream_windows_total", "aggregate", ', fate="released"'): f"1x{HOUR}",
        },
        frozenset({"EpochStuck"}),
    ),
    "no window passes, within the grace period": Scenario(
        {
            lag("shuffle"): f"179x{HOUR}",
            own("dpstream_windows_total", "shuffle", ', fate="released"'): f"1x{HOUR}",
        }
    ),
    "a quiet stream": Scenario(
        {"kafka_consumergroup_group_lag_seconds": f"0x{HOUR}", "dpstream_windows": f"1x{HOUR}"}
    ),
    "a record refused": Scenario({UNREADABLE: "0x110 1x10"}, frozenset({"DeadLetters"})),
    "a record refused long ago": Scenario({UNREADABLE: "0x20 1x100"}),
    "a window too small": Scenario(
        {own("dpstream_windows_total", "shuffle", ', fate="too small"'): "0x110 1x10"},
        frozenset({"WindowTooSmall"}),
    ),
    "late reports": Scenario(
        {own("dpstream_late_reports_total", "shuffle"): "0x110 5x10"}, frozenset({"LateReports"})
    ),
    "late devices": Scenario(
        {own("dpstream_late_contributors_total", "shuffle"): "0x110 5x10"},
        frozenset({"LateReports"}),
    ),
    "a machine does not answer": Scenario(
        {'up{job="dpstream", instance="aggregate:9400"}': "1x110 0x10"}, frozenset({"WorkerDown"})
    ),
    "a scrape lost": Scenario(
        {'up{job="dpstream", instance="aggregate:9400"}': "1x117 0 1 1"},
    ),
    "nobody is scraped": Scenario(
        {"up{": None, 'dpstream_job="logins"': None, "group=": None}, frozenset({"WorkerDown"})
    ),
    "a stage gone with its container": Scenario(
        {'stage="aggregate"': STALE, 'instance="aggregate:9400"}': STALE},
        frozenset({"StageGone"}),
    ),
    "undeployed": Scenario({'dpstream_job="logins"': STALE, "group=": STALE}),
    "a supervisor without its worker": Scenario(
        {own("dpstream_worker_ready", "aggregate"): STALE},
        frozenset({"WorkerMissing", "StageGone"}),
    ),
    "a supervised worker that keeps ending": Scenario(
        {own("dpstream_worker_restarts_total", "shuffle"): "0x100 0+1x20"},
        frozenset({"WorkerRestarting"}),
    ),
    "a worker that keeps ending": Scenario(
        {own("dpstream_process_start_time_seconds", "shuffle"): "0x100 0+30x20"},
        frozenset({"WorkerRestarting"}),
    ),
    "a worker restarted once": Scenario(
        {
            own("dpstream_worker_restarts_total", "shuffle"): "0x110 1x10",
            own("dpstream_process_start_time_seconds", "shuffle"): "0x110 9x10",
        }
    ),
    "a worker that does not get ready": Scenario(
        {own("dpstream_worker_ready", "shuffle"): "1x100 0x20"}, frozenset({"WorkerNotReady"})
    ),
    "a worker that is restoring": Scenario({own("dpstream_worker_ready", "shuffle"): "1x112 0x8"}),
    "a stage without Kafka": Scenario(
        {own("dpstream_broker_reachable", "publish"): "1x100 0x20"},
        frozenset({"BrokerUnreachable"}),
    ),
    "a publisher without partitions": Scenario(
        {own("dpstream_partitions_assigned", "publish"): f"0x{HOUR}"}, frozenset({"NoPublisher"})
    ),
}


def promtool(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [find_tool("promtool"), *map(str, arguments)], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("name", SCENARIOS)
def test_alerts_fire_when_they_are_to_and_at_no_other_time(name: str, tmp_path: Path) -> None:
    scenario = SCENARIOS[name]
    test = {
        "rule_files": [str(RULES)],
        "evaluation_interval": "30s",
        "tests": [
            {
                "interval": "30s",
                "input_series": [
                    {"series": series, "values": values}
                    for series, values in scenario.series().items()
                ],
                "promql_expr_test": [
                    {
                        "expr": 'group by (alertname) (ALERTS{alertstate="firing"})',
                        "eval_time": "60m",
                        "exp_samples": [
                            {"labels": f'{{alertname="{alert}"}}', "value": 1}
                            for alert in sorted(scenario.fires)
                        ],
                    }
                ],
            }
        ],
    }
    file = tmp_path / "test.yaml"
    file.write_text(yaml.safe_dump(test))
    done = promtool("test", "rules", file)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_fired() -> None:
    (rules,) = yaml.safe_load(RULES.read_text())["groups"]
    alerts = {rule["alert"] for rule in rules["rules"] if "alert" in rule}
    assert alerts == frozenset().union(*(scenario.fires for scenario in SCENARIOS.values()))
    for rule in rules["rules"]:
        if "alert" in rule:
            assert rule["labels"]["severity"] in ("warning", "critical")
            assert rule["annotations"]["summary"]


@pytest.mark.parametrize(("check", "file"), [("rules", "rules.yml"), ("config", "prometheus.yml")])
def test_promtool_finds_nothing_wrong(check: str, file: str) -> None:
    done = promtool("check", check, PROMETHEUS / file)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_machine_without_promtool_is_told_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(pytest.fail.Exception, match="apt install prometheus"):
        find_tool("promtool")
