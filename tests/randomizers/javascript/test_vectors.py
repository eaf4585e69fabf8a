"""Test that draws of devices in Python and JavaScript match the golden vectors."""

from __future__ import annotations

import json
import shutil
import subprocess
from random import Random
from typing import Any

import pytest

from dpstream.randomizers.event_histories import EventHistory
from dpstream.randomizers.one_device import PROTOCOLS, OneDevice
from tests.randomizers.javascript.vectors import (
    CASES,
    FOLDER,
    RARE,
    CountedBytes,
    main,
    rare_draws,
    recorded,
)
from tests.support.random_events import MEASURES, actions

NODE = shutil.which("node")


def runs_of(protocol: str) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    body = json.loads((FOLDER / f"{protocol}.json").read_text())
    return [(case["law"], run) for case in body["cases"] for run in case["runs"]]


def test_every_device_protocol_has_vectors() -> None:
    assert set(PROTOCOLS) == set(CASES) == {path.stem for path in FOLDER.glob("*.json")} - {RARE}
    assert sum(path.stat().st_size for path in FOLDER.glob("*.json")) < 480_000


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_devices_reproduce_the_draws_of_test_vectors(protocol: str) -> None:
    for law, run in runs_of(protocol):
        stream = [(epoch, value) for epoch, value, _, _ in run["epochs"]]
        assert recorded(protocol, law, stream, run["label"], run.get("group")) == run


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_devices_resume_from_the_states_of_test_vectors(protocol: str) -> None:
    for law, run in runs_of(protocol):
        epochs = run["epochs"]
        half = len(epochs) // 2
        source = CountedBytes(run["label"])
        source.read(run["enrolled"][0] + sum(taken for *_, taken in epochs[:half]))
        device = OneDevice.restore(protocol, law, run["halfway"])
        for epoch, value, words, _ in epochs[half:]:
            assert device.report(epoch, value, source.read).ravel().tolist() == words
        assert device.state() == run["state"]


def test_rare_draws_match_test_vectors() -> None:
    assert json.loads((FOLDER / f"{RARE}.json").read_text()) == rare_draws()


def in_node(script: str, given: object) -> Any:
    assert NODE is not None
    command = [NODE, "--input-type=module", "-e", script]
    ran = subprocess.run(
        command, cwd=FOLDER.parent, input=json.dumps(given), capture_output=True, text=True
    )
    assert not ran.stderr
    return json.loads(ran.stdout)


@pytest.mark.skipif(NODE is None, reason="needs node")
def test_javascript_histories_answer_and_are_stored_as_in_python() -> None:
    script = """
        import { EventHistory } from './src/history.js';
        import { readMeasure } from './src/measures.js';
        const { measures, runs } = JSON.parse(await new Response(process.stdin).text());
        const read = measures.map(readMeasure);
        console.log(JSON.stringify(runs.map((steps) => {
          const history = new EventHistory(read, { l: ['tv'] }, [[], ['buy']]);
          return steps.map(({ record, close }) => {
            for (const [epoch, moment, event, numbers, labels] of record) {
              history.record({ epoch, moment, event, numbers, labels });
            }
            history.close(close);
            const first = [history.first([], close), history.first(['buy'], close)];
            const answers = read.map((_, index) => history.answer(index, close));
            return [answers, first, history.latest('l', close), history.toJson()];
          });
        })));
    """
    expected, runs = [], []
    for seed in range(300):
        steps = actions(Random(seed), MEASURES, 8)
        history, told = EventHistory(MEASURES, {"l": ["tv"]}, [(), ("buy",)]), []
        for step in steps:
            for event in step["record"]:
                history.record(*event)
            history.close(step["close"])
            firsts = [history.first(names, step["close"]) for names in ((), ("buy",))]
            latest = history.latest("l", step["close"])
            told.append([step["answers"], firsts, latest, history.to_json()])
        runs.append(steps)
        expected.append(told)
    found = in_node(script, {"measures": [each.to_json() for each in MEASURES], "runs": runs})
    assert found == json.loads(json.dumps(expected))


@pytest.mark.skipif(NODE is None, reason="needs node")
def test_javascript_devices_compute_the_same_lower_bounds_on_delta() -> None:
    laws = [(protocol, law) for protocol in PROTOCOLS for law, _ in runs_of(protocol)]
    script = """
        import { createDevice, parseJson } from './src/index.js';
        const laws = parseJson(await new Response(process.stdin).text());
        console.log(JSON.stringify(laws.map(([protocol, law]) => {
          const device = createDevice(protocol, law);
          return [device.leastDelta(), device.assumedContributors];
        })));
    """
    computed = in_node(script, laws)
    devices = [OneDevice(protocol, law).devices for protocol, law in laws]
    assert [each for _, each in computed] == [each.assumed_contributors for each in devices]
    least = [each.least_delta() for each in devices]
    assert [each for each, _ in computed] == pytest.approx(least, rel=1e-6, abs=1e-15)
    assert sum(each > 0 for each in least) > 12


@pytest.mark.verify
def test_command_regenerates_the_committed_vectors() -> None:
    assert main(["--check"]) == 0


@pytest.mark.skipif(NODE is None, reason="needs node")
def test_javascript_package_tests_pass() -> None:
    assert NODE is not None
    ran = subprocess.run(
        [NODE, "--test"], cwd=FOLDER.parent, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
