"""Test predicted errors of means over windows, and what is said before a deployment."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpstream.aggregators.estimate import Estimate
from dpstream.pipeline.jobs.job_files import Job
from dpstream.pipeline.planning.job_plan import plan
from dpstream.pipeline.protocols.alternatives import alternatives as alternatives_of
from dpstream.pipeline.protocols.forecasts import ShareForecast, WindowForecast
from dpstream.pipeline.results.compared_protocols import (
    alternatives,
    best_lines,
    least_error,
    notes_of_deployment,
    one_change_warning,
)
from dpstream.pipeline.results.expected_errors import forecast_of, predicted_rmse
from dpstream.pipeline.values.numeric_values import SHARES
from tests.support.commands import Commands
from tests.support.memory_cluster import MemoryCluster
from tests.support.new_jobs import new_job

USERS = 28_785


def job_of(protocol: str = "value_stream", count: int = 170, **more: Any) -> Job:
    changes = {"max_changes": 2} if protocol in ("value_stream", "future_rand") else {}
    parameters = {"epsilon": 1, **changes, **more.pop("parameters", {})}
    return new_job("weeks", protocol, parameters, count=count, **more)


@pytest.mark.parametrize(("window", "epochs"), [(2, 24), (7, 24), (24, 24), (2, 2)])
def test_predicted_errors_of_means_match_the_errors_that_estimates_state(
    window: int, epochs: int
) -> None:
    """The recursion of published errors is another computation than that of the forecast.

    With two epochs, no change is boosted.
    """
    job = job_of(count=epochs)
    law = job.calibrate()
    forecast = forecast_of(job, law)
    assert isinstance(forecast, WindowForecast)
    errors = job.protocol_entry.aggregation.window_errors(law, job.parameters)
    assert errors is not None
    variances = []
    for epoch in range(1, epochs + 1):
        if (epoch - 1) % window == 0:
            errors.open_window()
        errors.next(Estimate.around(0.0, 1.0, 2.0, USERS, USERS), USERS)
        if epoch % window == 0:
            variances.append(errors.variance)
    expected = math.sqrt(float(np.mean(variances))) / window
    assert forecast.window_error(USERS, window) == pytest.approx(expected)


def test_plan_names_the_best_protocol_for_single_epochs_and_for_each_window() -> None:
    """Averages of sampled answers gain from the square root, those of streams gain less."""
    job = job_of(roll_up=[4, 13, 52])
    found = alternatives(job, job.calibrate(), USERS)
    by_name = {each.protocol: each for each in found}
    sampled, stream = by_name["sampled_response"], by_name["value_stream"]
    assert sampled.windows == pytest.approx([sampled.rmse / math.sqrt(m) for m in (4, 13, 52)])
    assert [round(each or 0) for each in stream.windows] == [961, 821, 564]
    assert by_name["future_rand"].windows == (None, None, None)
    assert by_name["shuffled_counts"].windows == (None, None, None)
    best = [least_error(found, window) for window in (None, 0, 1, 2)]
    assert [each and each.protocol for each in best] == [
        *("value_stream", "value_stream", "sampled_response", "sampled_response")
    ]
    assert list(best_lines(found, job.roll_up))[2] == (
        "best for means over 13 epochs",
        f"sampled_response: RMSE {sampled.windows[1]:,.0f} users",
    )
    few = job_of("sampled_response", 12, parameters={"epsilon": 4})
    (single,) = best_lines(alternatives(few, few.calibrate(), 10_000), None)
    assert single[1].startswith("this job, sampled_response: RMSE 77 users; if half of the users")
    assert ", value_stream with max_changes 2: 98" in single[1]
    (line,) = (line for label, line in best_lines(found[1:2], (4,)) if "means" in label)
    assert line.startswith("unknown")


def test_plan_states_the_share_of_users_for_which_errors_are_predicted() -> None:
    job = job_of("sampled_response", roll_up=[13])
    made = plan(job, USERS, compared=True)
    assert (made.share, made.windows[0].epochs) == (0.1, 13)
    own = made.alternatives[0]
    assert made.half_rmse == own.half
    assert made.half_rmse is not None
    assert made.half_rmse > 1.05 * made.rmse
    assert made.windows[0].rmse == own.windows[0]
    assert predicted_rmse(job, USERS, 0.5) == made.half_rmse
    assert made.share_rmses == tuple(predicted_rmse(job, USERS, each) for each in SHARES)
    # A value that few have is estimated better than one that many have.
    assert made.share_rmses[0] < made.share_rmses[1] < made.rmse < made.share_rmses[2]
    forecast = forecast_of(job, job.calibrate())
    assert isinstance(forecast, ShareForecast)
    assert forecast.at_share(0.5).share == 0.5
    assert forecast.share == 0.1
    stream = plan(job_of(), USERS)
    assert (stream.share, stream.half_rmse, stream.windows) == (None, None, ())
    assert predicted_rmse(job_of(), USERS, 0.5) == pytest.approx(stream.rmse)


@pytest.mark.parametrize("protocol", ["value_stream", "future_rand", "sampled_response"])
def test_plan_does_not_suggest_one_change_for_a_value_that_starts_and_stops(protocol: str) -> None:
    changes = {} if protocol == "sampled_response" else {"max_changes": 1}
    job = job_of(protocol, parameters=changes)
    offered = [
        getattr(make(), "max_changes", 2) for _, make in alternatives_of(job.parameters, 170)
    ]
    assert min(offered) == 2
    warning = one_change_warning(job)
    if changes:
        assert warning is not None
        assert "starts and stops changes twice" in warning
        assert warning in plan(job).warnings
        assert warning in notes_of_deployment(job, job.calibrate())
    else:
        assert warning is None
    assert one_change_warning(job_of(protocol, count=1, parameters=changes)) is None


def test_deploy_command_names_a_more_accurate_protocol_with_the_same_trust(
    dpstream: Commands, cluster: MemoryCluster, tmp_path: Path
) -> None:
    path = tmp_path / "job.yaml"
    text = "name: few\nprotocol: value_stream\nparameters: {epsilon: 1, max_changes: 4}\n"
    path.write_text(f"{text}epochs: {{count: 12}}\nroll_up: [4]\n")
    notes = dpstream("deploy", path, "--dry-run").errors
    # Reference: 1,145 at share .25 and 1,097 at .1 for 100,000 users, value_stream 1,338.
    assert "sampled_response is predicted to be more accurate for single epochs" in notes
    assert "for means over 4 epochs" in notes
    path.write_text(f"{text}epochs: {{count: 170}}\n")
    assert "more accurate" not in dpstream("deploy", path, "--dry-run").errors
    shuffled = job_of("shuffled_counts", parameters={"delta": 1e-6}, minimum=1_000)
    assert list(notes_of_deployment(shuffled, shuffled.calibrate())) == []
