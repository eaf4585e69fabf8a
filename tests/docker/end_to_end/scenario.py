"""Steps and checks of an end-to-end test of the stack."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final
from urllib.error import URLError
from urllib.parse import quote
from urllib.request import urlopen

from dpstream.pipeline.demo.devices.fleet import NAME as DEVICES_JOB
from tests.docker.end_to_end.engine import EndToEndError, Podman
from tests.docker.end_to_end.images import image_names

PAGE: Final = "http://127.0.0.1:8765"
PROMETHEUS: Final = "http://127.0.0.1:9090"
COLLECTORS: Final = "http://127.0.0.1:8300"
PORTS: Final = (3000, 8300, 8765, 9090, 19092, 29092, 39092)
PRODUCED_JOB: Final = "oulad-weekly"
BROKERS: Final = ("kafka-1", "kafka-2", "kafka-3")
DEPLOYS: Final = ("deploy", "deploy-devices")
STAGES: Final = ("shuffle", "aggregate", "publish")
# Upper bound in seconds for a container to start on a busy machine.
_TIMEOUT: Final = 900.0
_PAUSE: Final = 1.0

PrintMessage = Callable[[str], None]


def run_scenario(podman: Podman, print_message: PrintMessage) -> None:
    """Start all services, break, stop and restart them; raise `EndToEndError` on failure."""
    _see_that_ports_are_free()
    _start(podman, print_message, deploy=True)
    _see_results(print_message)
    _see_metrics(print_message)
    _lose_a_broker(podman, print_message)
    _kill_a_worker(podman, print_message)
    _start_again(podman, print_message)


def _see_that_ports_are_free() -> None:
    for port in PORTS:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError as error:
                raise EndToEndError(
                    f"127.0.0.1:{port} is taken, which the compose file publishes: {error.strerror}"
                ) from None


def _start(podman: Podman, print_message: PrintMessage, deploy: bool) -> None:
    # Podman before 4.6 does not wait for health conditions, so brokers start first.
    podman.compose("up", "--detach", "--no-build", *BROKERS)
    for broker in BROKERS:
        _see_health(podman, broker)
    print_message("three brokers are healthy by the check of the compose file")
    if deploy:
        podman.compose("up", "--detach", "--no-build", *DEPLOYS)
        for service in DEPLOYS:
            _wait_until(partial(_has_done, podman, service), f"{service} has not succeeded")
        print_message(f"deployed: {PRODUCED_JOB}, {DEVICES_JOB}")
    podman.compose("up", "--detach", "--no-build")
    for service in (*STAGES, "collect", "page"):
        _see_health(podman, service)
    running = {name: len(podman.containers(name)) for name in image_names()}
    print_message(
        "up with profile demo: "
        + ", ".join(f"{name} {count}" for name, count in running.items() if count)
    )
    for service in ("proxy", "prometheus", "grafana"):
        if running[service] != 1:
            raise EndToEndError(f"the container of {service} does not run")


def _has_done(podman: Podman, service: str) -> bool:
    (container,) = podman.containers(service, running=False)
    state = podman.inspect(container)["State"]
    return bool(state["Status"] == "exited" and state["ExitCode"] == 0)


def _see_health(podman: Podman, service: str) -> None:
    def healthy() -> bool:
        found = podman.containers(service)
        return bool(found) and all(podman.healthy(each) for each in found)

    _wait_until(healthy, f"{service} is not healthy")


def _see_results(print_message: PrintMessage) -> None:
    for job in (PRODUCED_JOB, DEVICES_JOB):
        _wait_until(partial(_published, job), f"no estimate of {job} is published")
        first = min(_published(job))
        print_message(f"published: {job}, epoch {first}: {_published(job)[first]}")
    status = _status(f"{COLLECTORS}/v1/jobs/{DEVICES_JOB}")
    if status != 200:
        raise EndToEndError(f"the collectors answered {status} through their proxy")
    print_message("the collectors answer through their proxy")


def _see_metrics(print_message: PrintMessage) -> None:
    def up() -> list[str]:
        targets = _json(f"{PROMETHEUS}/api/v1/targets")["data"]["activeTargets"]
        return sorted(each["labels"]["instance"] for each in targets if each["health"] == "up")

    # One worker of each stage, two collectors, and Prometheus itself.
    _wait_until(lambda: len(up()) == len(STAGES) + 3, "some targets of Prometheus are not up")
    print_message(f"Prometheus' targets that are up: {', '.join(up())}")
    _wait_until(
        lambda: bool(_query(f'dpstream_estimate{{dpstream_job="{DEVICES_JOB}"}}')),
        "Prometheus has no estimate",
    )
    firing = _query('ALERTS{alertstate="firing", severity="critical"}')
    if firing:
        raise EndToEndError(f"critical alerts fire: {firing}")
    print_message("Prometheus has the estimates; no critical alert fires")


def _lose_a_broker(podman: Podman, print_message: PrintMessage) -> None:
    (broker,) = podman.containers("kafka-2")
    before = max(_published(DEVICES_JOB))
    podman.run("kill", "--signal", "KILL", broker)
    _goes_on(before + 2, "with one broker killed")
    if podman.inspect(broker)["State"]["Running"]:
        raise EndToEndError("the killed broker is running")
    print_message(
        f"kafka-2 killed and gone: {DEVICES_JOB} went on from epoch {before} to {before + 2}"
    )
    podman.run("start", broker)
    _see_health(podman, "kafka-2")
    print_message("kafka-2 started again and healthy")


def _kill_a_worker(podman: Podman, print_message: PrintMessage) -> None:
    (worker,) = podman.containers("shuffle")
    before, state = max(_published(DEVICES_JOB)), podman.inspect(worker)
    # Podman's own kill would disable the restart policy.
    os.kill(int(state["State"]["Pid"]), signal.SIGKILL)
    _wait_until(
        lambda: podman.inspect(worker)["RestartCount"] > state["RestartCount"],
        "the container of the shuffle stage was not restarted",
    )
    _see_health(podman, "shuffle")
    _goes_on(before + 2, "with its shuffle worker killed")
    print_message(
        f"the shuffle worker's process killed: its restart policy started it again, {DEVICES_JOB} "
        f"went on from epoch {before} to {before + 2}"
    )


def _start_again(podman: Podman, print_message: PrintMessage) -> None:
    before = {job: _published(job) for job in (PRODUCED_JOB, DEVICES_JOB)}
    podman.compose("down")
    if podman.run("ps", "--quiet", "--all").split():
        raise EndToEndError("containers are left after podman-compose down")
    print_message("the stack is stopped, and its containers are gone")
    # The jobs are deployed already: the deployment reports this and fails.
    _start(podman, print_message, deploy=False)
    for job, known in before.items():
        _wait_until(
            partial(_all_published, job, set(known)), f"not all epochs of {job} are found again"
        )
        now = _published(job)
        changed = [epoch for epoch, estimate in known.items() if now[epoch] != estimate]
        if changed:
            raise EndToEndError(f"after the restart {job} has other estimates of {changed}")
        print_message(f"history kept: {len(known)} epochs of {job}, each as it was")
    last = max(before[DEVICES_JOB])
    _goes_on(max(_published(DEVICES_JOB)) + 2, "after the restart")
    print_message(
        f"and on it goes: {DEVICES_JOB} from epoch {last} to {max(_published(DEVICES_JOB))}"
    )


def _goes_on(epoch: int, when: str) -> None:
    _wait_until(
        lambda: max(_published(DEVICES_JOB), default=0) >= epoch,
        f"{DEVICES_JOB} does not come to epoch {epoch} {when}",
    )


def _published(job: str) -> dict[int, Any]:
    """Return the estimate of each published epoch from the page's download."""
    try:
        answer = _json(f"{PAGE}/api/jobs/{quote(job)}/estimates?format=json")
    except (OSError, ValueError):
        return {}
    return {
        each["epoch"]: each["estimate"]
        for each in answer["estimates"]
        if each["estimate"] is not None
    }


def _all_published(job: str, epochs: set[int]) -> bool:
    return epochs <= _published(job).keys()


def _query(promql: str) -> list[Any]:
    try:
        answer = _json(f"{PROMETHEUS}/api/v1/query?query={quote(promql)}")
    except (OSError, ValueError):
        return []
    return list(answer["data"]["result"])


def _json(url: str) -> dict[str, Any]:
    with urlopen(url, timeout=20) as answer:
        return dict(json.load(answer))


def _status(url: str) -> int | None:
    try:
        with urlopen(url, timeout=20) as answer:
            return int(answer.status)
    except URLError as error:
        return getattr(error, "code", None)


def _wait_until(holds: Callable[[], object], otherwise: str) -> None:
    deadline = time.monotonic() + _TIMEOUT
    while True:
        try:
            if holds():
                return
        except (OSError, ValueError):
            pass
        if time.monotonic() > deadline:
            raise EndToEndError(f"{otherwise} after {_TIMEOUT:.0f} s")
        time.sleep(_PAUSE)
