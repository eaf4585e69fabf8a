"""Write the Grafana dashboard: run ``python docker/grafana/build_dashboard.py`` after changes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DASHBOARD = Path(__file__).parent / "dashboards" / "dpstream.json"

_SOURCE = {"type": "prometheus", "uid": "prometheus"}
_COLUMNS = 24
_JOB = 'dpstream_job=~"$job"'


@dataclass(frozen=True, slots=True)
class Panel:
    """Panel of the dashboard, with pairs of a PromQL query and its legend."""

    title: str
    queries: tuple[tuple[str, str], ...]
    unit: str
    text: str
    kind: str = "timeseries"
    width: int = 12
    height: int = 8
    signed: bool = False


_OF_ITEMS = f'{{{_JOB}, measure=""}}'
_OF_MEASURES = f'{{{_JOB}, measure=~"$measure", by=~"$group_by"}}'


def _items(name: str) -> tuple[tuple[str, str], ...]:
    """Return the queries of a gauge by item, and of both ends of its interval."""
    legend = "{{dpstream_job}} {{item}}"
    return tuple(
        (f"max by (dpstream_job, item) ({name}{end}{_OF_ITEMS})", f"{legend}{words}")
        for end, words in (("", ""), ("_ci95_low", ": low"), ("_ci95_high", ": high"))
    )


def _measures(name: str) -> tuple[tuple[str, str], ...]:
    """Return the same for measures; Grafana inserts names of attributes, or nothing for totals."""
    over = "max by (dpstream_job, measure, value, $group_by)"
    found = {end: f"{over} ({name}{end}{_OF_MEASURES})" for end in ("", "_ci95_low", "_ci95_high")}
    return tuple(
        (f'label_replace({query}, "end", "{end[6:]}", "", "")' if end else query, "__auto")
        for end, query in found.items()
    )


PANELS = (
    Panel(
        "Last epoch published",
        (
            (
                f'max by (dpstream_job) (dpstream_last_epoch{{{_JOB}, stage="publish"}})',
                "{{dpstream_job}}",
            ),
        ),
        "none",
        "Latest epoch whose estimate the publisher wrote since its start.",
        kind="stat",
        width=6,
        height=5,
    ),
    Panel(
        "Time since the last estimate",
        (
            (
                "time() - max by (dpstream_job) (dpstream_last_window_timestamp_seconds"
                f'{{{_JOB}, stage="publish"}})',
                "{{dpstream_job}}",
            ),
        ),
        "s",
        "Time since the latest estimate was published.",
        kind="stat",
        width=6,
        height=5,
    ),
    Panel(
        "Privacy loss",
        (
            (
                f"max by (dpstream_job, unit) (dpstream_epsilon{{{_JOB}}})",
                "{{dpstream_job}}, a user's {{unit}}",
            ),
        ),
        "none",
        "Epsilon of the job's guarantee, and the data of a user that it covers. Total charges of a "
        "population: 'dpstream list'.",
        kind="stat",
        width=6,
        height=5,
    ),
    Panel(
        "Dead letters in the last hour",
        (
            (
                f"sum by (dpstream_job) (increase(dpstream_dead_letters_total{{{_JOB}}}[1h]))",
                "{{dpstream_job}}",
            ),
        ),
        "short",
        "Rejected records. To list them with reasons: 'dpstream dead-letters JOB'.",
        kind="stat",
        width=6,
        height=5,
    ),
    Panel(
        "Epochs finished",
        (
            (
                f"max by (dpstream_job, stage) (dpstream_last_epoch{{{_JOB}}})",
                "{{dpstream_job}} {{stage}}",
            ),
        ),
        "none",
        "Latest epoch that each stage finished.",
    ),
    Panel(
        "Open windows",
        (
            (
                f"sum by (dpstream_job, stage) (dpstream_open_windows{{{_JOB}}})",
                "{{dpstream_job}} {{stage}}",
            ),
        ),
        "short",
        "Windows in progress. To see what they wait for: 'dpstream status JOB'.",
    ),
    Panel(
        "Lag in seconds",
        ((f"dpstream:lag_seconds{{{_JOB}}}", "{{dpstream_job}} {{stage}}"),),
        "s",
        "Age of the oldest unprocessed record.",
    ),
    Panel(
        "Lag in records",
        ((f"dpstream:lag_records{{{_JOB}}}", "{{dpstream_job}} {{stage}}"),),
        "short",
        "Unprocessed records; unavailable for a shuffler that hides messages.",
    ),
    Panel(
        "Throughput",
        (
            (
                f"sum by (dpstream_job, stage) (rate(dpstream_reports_total{{{_JOB}}}[1m]))",
                "{{dpstream_job}} {{stage}}: reports",
            ),
            (
                f"sum by (dpstream_job, stage) (rate(dpstream_contributors_total{{{_JOB}}}[1m]))",
                "{{dpstream_job}} {{stage}}: devices",
            ),
        ),
        "cps",
        "Reports per second; devices per second if messages are hidden.",
    ),
    Panel(
        "Windows per hour, by status",
        (
            (
                'sum by (dpstream_job, status) (increase(dpstream_windows_total{stage="shuffle", '
                f"{_JOB}}}[1h]))",
                "{{dpstream_job}}: {{status}}",
            ),
        ),
        "short",
        "Released, suppressed (fewer devices than shuffle.minimum), or empty.",
    ),
    Panel(
        "Duration of a window",
        (
            (
                f"sum by (dpstream_job, stage) (rate(dpstream_window_seconds_total{{{_JOB}}}[5m])) "
                f"/ sum by (dpstream_job, stage) (rate(dpstream_windows_total{{{_JOB}}}[5m]))",
                "{{dpstream_job}} {{stage}}",
            ),
        ),
        "s",
        "Mean time until a window is finished: since its finalization for the publisher, since its "
        "first record for other stages.",
    ),
    Panel(
        "Late and rejected",
        (
            (
                f"sum by (dpstream_job) (rate(dpstream_late_reports_total{{{_JOB}}}[5m]))",
                "{{dpstream_job}}: late reports",
            ),
            (
                f"sum by (dpstream_job) (rate(dpstream_late_contributors_total{{{_JOB}}}[5m]))",
                "{{dpstream_job}}: late devices",
            ),
            (
                f"sum by (dpstream_job, reason) (rate(dpstream_dead_letters_total{{{_JOB}}}[5m]))",
                "{{dpstream_job}}: {{reason}}",
            ),
        ),
        "cps",
        "Reports and records that are not counted.",
    ),
    Panel(
        "Estimates",
        _items("dpstream_estimate"),
        "short",
        "Latest published estimate with its 95 % confidence interval. Jobs over numbers show the "
        "median; lists of at most 20 items show each item. Small counts can be negative.",
        signed=True,
    ),
    Panel(
        "Change since the previous epoch",
        _items("dpstream_estimate_change"),
        "short",
        "With the 95 % confidence interval of the change, if the protocol determines it.",
        signed=True,
    ),
    Panel(
        "Measures",
        _measures("dpstream_estimate"),
        "short",
        "Latest published estimates of measures with 95 % confidence intervals, of all users or by "
        "group. Groups that are too small are missing.",
        signed=True,
    ),
    Panel(
        "Change of measures since the previous epoch",
        _measures("dpstream_estimate_change"),
        "short",
        "With the 95 % confidence interval of the change, if the protocol determines it.",
        signed=True,
    ),
    Panel(
        "Reports of devices",
        (
            (
                "sum by (dpstream_job) "
                f"(rate(dpstream_collector_received_reports_total{{{_JOB}}}[5m]))",
                "{{dpstream_job}}: received",
            ),
            (
                "sum by (dpstream_job) "
                f"(rate(dpstream_collector_acknowledged_reports_total{{{_JOB}}}[5m]))",
                "{{dpstream_job}}: in Kafka",
            ),
        ),
        "cps",
        "Reports per second, for jobs whose devices report through collectors.",
        width=8,
    ),
    Panel(
        "Rejected requests",
        (
            (
                "sum by (dpstream_job, reason) "
                "(rate(dpstream_collector_rejected_requests_total[5m]))",
                "{{dpstream_job}}: {{reason}}",
            ),
        ),
        "cps",
        "Device requests per second, by reason; without a job if it is unknown.",
        width=8,
    ),
    Panel(
        "Requests waiting for Kafka",
        (
            ("dpstream_collector_waiting_requests", "{{instance}}"),
            ("1 - dpstream_collector_ready", "{{instance}}: not ready"),
        ),
        "short",
        "Waiting requests at each collector, and whether it accepts reports.",
        width=8,
    ),
    Panel(
        "Workers ready",
        (
            (
                f"sum by (dpstream_job, stage) (dpstream_worker_ready{{{_JOB}}})",
                "{{dpstream_job}} {{stage}}",
            ),
            (
                "sum by (dpstream_job, stage) "
                f"(increase(dpstream_worker_restarts_total{{{_JOB}}}[1h]))",
                "{{dpstream_job}} {{stage}}: restarts per hour",
            ),
        ),
        "short",
        "Workers with assigned and restored partitions.",
        width=8,
    ),
    Panel(
        "Memory",
        (("dpstream_process_resident_memory_bytes", "{{dpstream_job}} {{stage}} {{instance}}"),),
        "bytes",
        "Memory of each worker.",
        width=8,
    ),
    Panel(
        "CPU",
        (
            (
                "rate(dpstream_process_cpu_seconds_total[1m])",
                "{{dpstream_job}} {{stage}} {{instance}}",
            ),
        ),
        "percentunit",
        "CPU use of each worker, in cores.",
        width=8,
    ),
)


def build_dashboard() -> dict[str, Any]:
    panels = []
    column = row = height = 0
    for number, panel in enumerate(PANELS, 1):
        if column + panel.width > _COLUMNS:
            column, row = 0, row + height
        panels.append(_panel(number, panel, column, row))
        column, height = column + panel.width, panel.height
    return {
        "uid": "dpstream",
        "title": "dpstream",
        "schemaVersion": 39,
        "editable": False,
        "graphTooltip": 1,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "utc",
        "templating": {
            "list": [
                _variable("job", "Job", "label_values(dpstream_worker_ready, dpstream_job)"),
                _variable(
                    "measure",
                    "Measure",
                    f"label_values(dpstream_estimate{{{_JOB}}}, measure)",
                ),
                # All selects the totals, which have no label `by`.
                _variable(
                    "group_by",
                    "Group by",
                    f'label_values(dpstream_estimate{{{_JOB}, measure=~"$measure"}}, by)',
                    every="",
                ),
            ]
        },
        "panels": panels,
    }


def _variable(name: str, label: str, query: str, *, every: str | None = None) -> dict[str, Any]:
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": _SOURCE,
        "query": query,
        "refresh": 2,
        "includeAll": True,
        "multi": every is None,
        "current": {"text": "All", "value": "$__all"},
        **({} if every is None else {"allValue": every}),
    }


def _panel(number: int, panel: Panel, column: int, row: int) -> dict[str, Any]:
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.text,
        "datasource": _SOURCE,
        "gridPos": {"x": column, "y": row, "w": panel.width, "h": panel.height},
        "fieldConfig": {
            "defaults": {"unit": panel.unit, **({} if panel.signed else {"min": 0})},
            "overrides": [],
        },
        "targets": [
            {"refId": chr(ord("A") + index), "expr": query, "legendFormat": legend}
            for index, (query, legend) in enumerate(panel.queries)
        ],
    }


if __name__ == "__main__":
    DASHBOARD.write_text(json.dumps(build_dashboard(), indent=1) + "\n")
