"""Test that the alerts of docker/prometheus fire when they must, and at no other time."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.prometheus_tools import find_tool

PROMETHEUS = Path(__file__).parents[2] / "docker" / "prometheus"
RULES = [PROMETHEUS / name for name in ("rules.yml", "estimates.yml")]

HOUR = 120
"""Samples at intervals of half a minute."""


def group(stage: str) -> str:
    return f'group="logins.{stage}.00ff", topic="logins.x", partition="0", instance="{stage}:9400"'


def healthy() -> dict[str, str]:
    """Return the series of a healthy job with one worker per stage, in promtool's notation."""
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
            # One epoch every ten minutes.
            f"dpstream_last_epoch{{{own}}}": f"{'1x19 ' if stage == 'shuffle' else '1x20 '}"
            "2x19 3x19 4x19 5x19 6x39",
            f'dpstream_windows_total{{{own}, status="released"}}': "1x19 2x19 3x19 4x19 5x19 6x19",
            f'dpstream_windows_total{{{own}, status="suppressed"}}': f"0x{HOUR}",
            f'dpstream_dead_letters_total{{{own}, reason="unreadable"}}': f"0x{HOUR}",
            # Rejected records of an earlier deployment are expected.
            f'dpstream_dead_letters_total{{{own}, reason="deployment"}}': f"0+1x{HOUR}",
            f"dpstream_late_reports_total{{{own}}}": f"0x{HOUR}",
            f"kafka_consumergroup_group_lag_seconds{{{group(stage)}}}": f"50x{HOUR}",
        }
    for name in ("collect-1", "collect-2"):
        at = f'instance="{name}:9400"'
        of_job = f'dpstream_job="phones", {at}'
        series |= {
            f'up{{job="dpstream", {at}}}': f"1x{HOUR}",
            f"dpstream_collector_ready{{{at}}}": f"1x{HOUR}",
            # Some requests are always waiting, but are acknowledged soon.
            f"dpstream_collector_waiting_requests{{{at}}}": f"3x{HOUR}",
            f"dpstream_collector_received_reports_total{{{of_job}}}": f"0+10x{HOUR}",
            f"dpstream_collector_acknowledged_reports_total{{{of_job}}}": f"0+10x{HOUR}",
            # Both collectors together rejected 60 of 600 reports in 15 minutes.
            f'dpstream_collector_rejected_requests_total{{{of_job}, reason="late"}}': f"0+1x{HOUR}",
            f'dpstream_collector_rejected_requests_total{{dpstream_job="", {at}, '
            'reason="no_job"}': f"0+50x{HOUR}",
            f'dpstream_collector_rejected_requests_total{{{of_job}, reason="busy"}}': f"0x{HOUR}",
        }
    # An estimate of 1,000 with a 95 % interval from 900 to 1,100, and a change of 399 +- 200.
    for end, value in {"": 1000, "_ci95_low": 900, "_ci95_high": 1100}.items():
        series[estimate(end)] = f"{value}x{HOUR}"
    for end, value in {"": 399, "_ci95_low": 199, "_ci95_high": 599}.items():
        series[estimate(f"_change{end}")] = f"{value}x{HOUR}"
    # A measure of 5,000 users, 1,000 of them with ios; only the group has a limit.
    for end, difference in {"": 0, "_ci95_low": -100, "_ci95_high": 100}.items():
        series[measured(end)] = f"{5_000 + difference}x{HOUR}"
        series[measured(end, IOS)] = f"{1_000 + difference}x{HOUR}"
    of_ios = f'dpstream_job="app", measure="wau"{IOS}'
    series[f"dpstream:estimate_limit_high{{{of_ios}}}"] = f"901x{HOUR}"
    series[f"dpstream:estimate_limit_low{{{of_ios}}}"] = f"1099x{HOUR}"
    # It is uncertain whether the limit is exceeded.
    series['dpstream:estimate_limit_high{dpstream_job="logins"}'] = f"901x{HOUR}"
    series['dpstream:estimate_limit_low{dpstream_job="logins"}'] = f"1099x{HOUR}"
    return series


def estimate(which: str) -> str:
    return (
        f'dpstream_estimate{which}{{dpstream_job="logins", stage="publish", item="", '
        'instance="publish:9400"}'
    )


IOS = ', by="platform", platform="ios"'


def measured(which: str, group: str = "") -> str:
    own = f'dpstream_job="app", stage="publish", instance="app:9400", measure="wau"{group}'
    return f"dpstream_estimate{which}{{{own}}}"


def collector(name: str, number: int, more: str = "") -> str:
    own = f'dpstream_job="phones", instance="collect-{number}:9400"{more}'
    return f"dpstream_collector_{name}{{{own}}}"


@dataclass(frozen=True)
class Scenario:
    """Difference from a healthy job: changed or removed (None) series, and resulting alerts."""

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
            own("dpstream_windows_total", "aggregate", ', status="released"'): f"1x{HOUR}",
        },
        frozenset({"EpochStuck"}),
    ),
    "no window passes, within the grace period": Scenario(
        {
            lag("shuffle"): f"179x{HOUR}",
            own("dpstream_windows_total", "shuffle", ', status="released"'): f"1x{HOUR}",
        }
    ),
    "a quiet stream": Scenario(
        {"kafka_consumergroup_group_lag_seconds": f"0x{HOUR}", "dpstream_windows": f"1x{HOUR}"}
    ),
    "a record rejected": Scenario({UNREADABLE: "0x110 1x10"}, frozenset({"DeadLetters"})),
    "a record rejected long ago": Scenario({UNREADABLE: "0x20 1x100"}),
    "a window too small": Scenario(
        {own("dpstream_windows_total", "shuffle", ', status="suppressed"'): "0x110 1x10"},
        frozenset({"WindowSuppressed"}),
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
    "no target is scraped": Scenario(
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
    "a supervised worker that rests since nothing ever came": Scenario(
        {
            own("dpstream_worker_ready", "aggregate"): None,
            own("dpstream_worker_idle", "aggregate"): "1x120",
        }
    ),
    "a supervised worker that never came": Scenario(
        {
            own("dpstream_worker_ready", "aggregate"): None,
            own("dpstream_worker_idle", "aggregate"): "0x120",
        },
        frozenset({"WorkerMissing"}),
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
    "a collector that does not get ready": Scenario(
        {"dpstream_collector_ready": "1x100 0x20"}, frozenset({"CollectorNotReady"})
    ),
    "a collector that is starting": Scenario({"dpstream_collector_ready": "1x112 0x8"}),
    "a collector that nothing reaches": Scenario(
        {
            'waiting_requests{instance="collect-2:9400"}': f"0x{HOUR}",
            collector("received_reports_total", 2): "0+10x70 700x50",
            collector("rejected_requests_total", 2, ', reason="late"'): "0+1x70 70x50",
        },
        frozenset({"CollectorSilent"}),
    ),
    "devices that are all asleep": Scenario(
        {
            "waiting_requests": f"0x{HOUR}",
            "received_reports_total": "0+10x70 700x50",
            "acknowledged_reports_total": "0+10x70 700x50",
            'reason="late"': "0+1x70 70x50",
        }
    ),
    "a collector gone with its container": Scenario(
        {"collect-2": STALE}, frozenset({"CollectorGone"})
    ),
    "requests that wait for Kafka": Scenario(
        {collector("acknowledged_reports_total", 1): "0+10x100 1000x20"},
        frozenset({"RequestsWaiting"}),
    ),
    "requests that waited for a minute": Scenario(
        {collector("acknowledged_reports_total", 1): "0+10x116 1160x4"}
    ),
    "a collector without room": Scenario(
        {collector("rejected_requests_total", 1, ', reason="busy"'): "0x110 1x10"},
        frozenset({"ReportsNotTaken"}),
    ),
    "a job of whose requests many are rejected": Scenario(
        {collector("rejected_requests_total", 1, ', reason="late"'): "0+1x90 90+2x30"},
        frozenset({"RequestsRejected"}),
    ),
    "an estimate that has changed by more than its interval": Scenario(
        {
            estimate("_change"): "399x110 401x10",
            estimate("_change_ci95_low"): "199x110 201x10",
            estimate("_change_ci95_high"): "599x110 601x10",
        },
        frozenset({"EstimateChanged"}),
    ),
    "an estimate that has fallen": Scenario(
        {
            estimate("_change"): f"-401x{HOUR}",
            estimate("_change_ci95_low"): f"-601x{HOUR}",
            estimate("_change_ci95_high"): f"-201x{HOUR}",
        },
        frozenset({"EstimateChanged"}),
    ),
    "a change of which no coverage is claimed": Scenario(
        {
            estimate("_change"): f"5000x{HOUR}",
            estimate("_change_ci95_low"): None,
            estimate("_change_ci95_high"): None,
        },
    ),
    "an estimate above its limit": Scenario(
        {estimate("_ci95_low"): "900x110 902x10"}, frozenset({"EstimateAboveLimit"})
    ),
    "an estimate below its limit": Scenario(
        {estimate("_ci95_high"): "1100x110 1098x10"}, frozenset({"EstimateBelowLimit"})
    ),
    "a group above and below its limits": Scenario(
        {
            measured("_ci95_low", IOS): "900x110 902x10",
            measured("_ci95_high", IOS): "1100x110 1098x10",
        },
        frozenset({"EstimateAboveLimit", "EstimateBelowLimit"}),
    ),
    "limits of another item": Scenario(
        {
            estimate("_ci95_low"): f"902x{HOUR}",
            estimate("_ci95_high"): f"1098x{HOUR}",
            "dpstream:estimate_limit_high": None,
            "dpstream:estimate_limit_low": None,
            'dpstream:estimate_limit_high{dpstream_job="logins", item="bus"}': f"5x{HOUR}",
        }
    ),
}


def promtool(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [find_tool("promtool"), *map(str, arguments)], capture_output=True, text=True, check=False
    )


def found(name: str, scenario: Scenario, expression: str, samples: Sequence[str]) -> dict[str, Any]:
    """Build a promtool test that an expression yields these series with value 1 after an hour."""
    return {
        "name": name,
        "interval": "30s",
        "input_series": [
            {"series": series, "values": values} for series, values in scenario.series().items()
        ],
        "promql_expr_test": [
            {
                "expr": expression,
                "eval_time": "60m",
                "exp_samples": [{"labels": each, "value": 1} for each in samples],
            }
        ],
    }


def failing(folder: Path, *tests: dict[str, Any]) -> list[str]:
    """Return the names of failing promtool tests, after running all tests together."""
    if _succeed(folder, tests):
        return []
    return [test["name"] for test in tests if not _succeed(folder, [test])]


def _succeed(folder: Path, tests: Sequence[dict[str, Any]]) -> bool:
    file = folder / "test.yaml"
    rules = [*map(str, RULES)]
    file.write_text(
        yaml.safe_dump({"rule_files": rules, "evaluation_interval": "1m", "tests": [*tests]})
    )
    return promtool("test", "rules", file).returncode == 0


def fired(name: str, scenario: Scenario, alerts: Iterable[str]) -> dict[str, Any]:
    firing = 'group by (alertname) (ALERTS{alertstate="firing"})'
    return found(name, scenario, firing, [f'{{alertname="{each}"}}' for each in sorted(alerts)])


def test_alerts_fire_exactly_when_expected(tmp_path: Path) -> None:
    tests = [fired(name, each, each.fires) for name, each in SCENARIOS.items()]
    assert failing(tmp_path, *tests) == []


def test_scenario_with_an_unexpected_or_missing_alert_fails(tmp_path: Path) -> None:
    quiet, between, loud = list(SCENARIOS)[:3]
    assert SCENARIOS[loud].fires
    missing = fired(quiet, SCENARIOS[quiet], {"LagOverTwoEpochs"})
    right = fired(between, SCENARIOS[between], SCENARIOS[between].fires)
    unwanted = fired(loud, SCENARIOS[loud], set())
    assert failing(tmp_path, missing, right, unwanted) == [quiet, loud]


@pytest.mark.parametrize(
    ("seconds", "stages"), [(1259, []), (1261, ['{stage="aggregate"}'])], ids=["less", "more"]
)
def test_workers_are_added_when_lag_exceeds_its_limit(
    seconds: int, stages: list[str], tmp_path: Path
) -> None:
    """The autoscaling metric exceeds 1 only for the stage for which LagOverTwoEpochs fires."""
    scenario = Scenario({lag("aggregate"): f"{seconds}x{HOUR}"})
    expression = "group by (stage) (dpstream:lag_of_allowed > 1)"
    assert failing(tmp_path, found("lag", scenario, expression, stages)) == []


def test_every_alert_fires_in_a_scenario() -> None:
    groups = [yaml.safe_load(path.read_text())["groups"] for path in RULES]
    alerts = [rule for (each,) in groups for rule in each["rules"] if "alert" in rule]
    fired = frozenset().union(*(scenario.fires for scenario in SCENARIOS.values()))
    assert {rule["alert"] for rule in alerts} == fired
    for rule in alerts:
        # Alerts on estimates never page anyone.
        of_estimates = rule["alert"].startswith("Estimate")
        assert rule["labels"]["severity"] in (
            ("info",) if of_estimates else ("warning", "critical")
        )
        assert rule["annotations"]["summary"]


@pytest.mark.parametrize(
    ("check", "file"),
    [("rules", "rules.yml"), ("rules", "estimates.yml"), ("config", "prometheus.yml")],
)
def test_promtool_accepts_the_rules(check: str, file: str) -> None:
    done = promtool("check", check, PROMETHEUS / file)
    assert done.returncode == 0, done.stdout + done.stderr
