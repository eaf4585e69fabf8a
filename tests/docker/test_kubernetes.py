"""Test docker/kubernetes without a cluster: the API's schemas, and its use of dpstream."""

from __future__ import annotations

import functools
import re
import shutil
import stat
import subprocess
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from prometheus_client import CollectorRegistry

from dpstream.pipeline.cli.commands import build_command
from dpstream.pipeline.jobs.job_files import make_job
from dpstream.pipeline.jobs.key_files import CollectorKey, NoiseKey, WrongKeyError
from dpstream.pipeline.kafka.workers.monitor import MonitorAddress, serve
from dpstream.pipeline.kafka.workers.watchdog import Health
from dpstream.pipeline.serve.login import PATH as LOGIN_PATH
from dpstream.pipeline.state import (
    collector_key_file,
    noise_key_file,
    sealing_keys_folder,
)
from tests.support.served_page import ServedPage

DOCKER = Path(__file__).parents[2] / "docker"
KUBERNETES = DOCKER / "kubernetes"
HOME = "/var/lib/dpstream"
COMMANDS = build_command().commands
Object = dict[str, Any]


def documents(path: Path) -> list[Object]:
    return [each for each in yaml.safe_load_all(path.read_text()) if each]


def written() -> list[Object]:
    found = []
    for path in sorted(KUBERNETES.rglob("*.yaml")):
        if path.name not in ("kustomization.yaml", "prometheus-adapter.yaml"):
            found += documents(path)
    return found


@functools.cache
def built() -> list[Object]:
    tool = ["kubectl", "kustomize"] if shutil.which("kubectl") else ["kustomize", "build"]
    if shutil.which(tool[0]) is None:
        pytest.skip("neither kubectl nor kustomize is installed")
    done = subprocess.run(
        [*tool, str(KUBERNETES / "overlays" / "example")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [each for each in yaml.safe_load_all(done.stdout) if each]


@pytest.fixture(params=[written, built], ids=["written", "built"], scope="module")
def objects(request: pytest.FixtureRequest) -> list[Object]:
    found: list[Object] = request.param()
    return found


def of_kind(objects: list[Object], *kinds: str) -> dict[str, Object]:
    return {each["metadata"]["name"]: each for each in objects if each["kind"] in kinds}


def workloads(objects: list[Object]) -> dict[str, Object]:
    return of_kind(objects, "Deployment", "StatefulSet")


def pod(workload: Object) -> Object:
    found: Object = workload["spec"]["template"]["spec"]
    return found


def main(workload: Object) -> Object:
    (container,) = pod(workload)["containers"]
    return dict(container)


def ports(workload: Object) -> dict[str, int]:
    return {each["name"]: each["containerPort"] for each in main(workload).get("ports", ())}


def given(workload: Object) -> tuple[str, Object]:
    command, *arguments = main(workload)["args"]
    known = {"JOB": "logins", "TOPIC": "example.logins", "POD_NAME": "produce-0"}
    arguments = [re.sub(r"\$\((\w+)\)", lambda name: known[name[1]], each) for each in arguments]
    context = COMMANDS[command].make_context(command, arguments)
    options = dict(context.params)
    context.close()
    return command, options


def chosen(selector: Object, objects: list[Object]) -> list[Object]:
    found = []
    for each in workloads(objects).values():
        labels = each["spec"]["template"]["metadata"]["labels"]
        wanted = selector.get("matchLabels", {})
        if all(labels.get(key) == value for key, value in wanted.items()) and all(
            rule["operator"] == "In" and labels.get(rule["key"]) in rule["values"]
            for rule in selector.get("matchExpressions", ())
        ):
            found.append(each)
    return found


@pytest.mark.parametrize("version", ["1.29", "1.37"])
def test_kubernetes_objects_follow_the_api_schemas(
    objects: list[Object], version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It would read all schemas again for every object.
    read_once = functools.cache(kubernetes_validate.utils.schema_contents)
    monkeypatch.setattr(kubernetes_validate.utils, "schema_contents", read_once)
    assert {"StatefulSet", "Deployment", "PodDisruptionBudget", "HorizontalPodAutoscaler"} < {
        each["kind"] for each in objects
    }
    for each in objects:
        kubernetes_validate.validate(each, version, strict=True)
    wrong = {**objects[0], "comand": 1}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, version, strict=True)


def test_every_file_is_part_of_a_kustomization() -> None:
    for path in KUBERNETES.rglob("kustomization.yaml"):
        (settings,) = documents(path)
        named = set(settings.get("resources", ()))
        files = {each.name for each in path.parent.glob("*.yaml")}
        assert files - {"kustomization.yaml", "prometheus-adapter.yaml"} == {
            each for each in named if each.endswith(".yaml")
        }
        others = (named - files) | set(settings.get("components", ()))
        assert all((path.parent / each / "kustomization.yaml").is_file() for each in others)
        for generated in settings.get("configMapGenerator", ()):
            assert all((path.parent / each).is_file() for each in generated.get("files", ()))


def test_roles_run_existing_commands_and_expose_their_ports(
    objects: list[Object],
) -> None:
    found = {name: given(each) for name, each in workloads(objects).items()}
    assert found.keys() == {"shuffle", "aggregate", "publish", "collect", "page", "produce"}
    listening = {name: ports(each) for name, each in workloads(objects).items()}
    for stage in ("shuffle", "aggregate", "publish"):
        command, options = found[stage]
        assert (command, options["stage"], options["job"]) == ("run", stage, None)
        assert listening[stage] == {"metrics": options["metrics"]}
        assert options["metrics_address"] == "0.0.0.0"
    command, options = found["collect"]
    assert command == "collect"
    host, _, port = options["bind"].rpartition(":")
    assert (host, options["metrics_address"]) == ("0.0.0.0", "0.0.0.0")
    assert listening["collect"] == {"reports": int(port), "metrics": options["metrics"]}
    command, options = found["page"]
    assert (command, options["address"]) == ("serve", "0.0.0.0")
    assert listening["page"] == {"page": options["port"]}
    assert found["produce"][0] == "produce"
    for _, options in found.values():
        assert options["kafka_config"] == Path("/etc/dpstream/client.properties")
    image = (DOCKER / "Dockerfile").read_text()
    assert 'ENTRYPOINT ["dpstream"]' in image
    assert not any("command" in main(each) for each in workloads(objects).values())


@pytest.fixture(scope="module")
def answered() -> dict[str, int]:
    """Status codes of the servers' responses at each path that a probe can request."""
    answers = {}
    fine = Health(True, "fine")
    monitor = serve(MonitorAddress(0), CollectorRegistry(), alive=lambda: fine, ready=lambda: fine)
    try:
        for path in ("/healthz", "/readyz", "/elsewhere"):
            answers[f"metrics {path}"] = status(monitor.server_address[1], path)
    finally:
        monitor.shutdown()
        monitor.server_close()
    with ServedPage() as page:
        port = int(page.address.rpartition(":")[2].strip("/"))
        for path in ("/api/jobs", "/elsewhere"):
            answers[f"page {path}"] = status(port, path)
    return answers


def status(port: int | str, path: str) -> int:
    connection = HTTPConnection("127.0.0.1", int(port), timeout=30)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    finally:
        connection.close()


def test_probes_use_existing_endpoints(objects: list[Object], answered: dict[str, int]) -> None:
    assert answered["metrics /elsewhere"] == answered["page /elsewhere"] == 404
    for name, workload in workloads(objects).items():
        container = main(workload)
        if name == "produce":
            continue
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            requested = container[probe]["httpGet"]
            assert requested["port"] in ports(workload)
            # The same number of seconds as in the image's health check.
            assert container[probe]["timeoutSeconds"] == 8
            if given(workload)[1].get("password_file"):
                # All other paths of the page require a login.
                assert requested["path"] == LOGIN_PATH
            else:
                assert answered[f"{requested['port']} {requested['path']}"] == 200
        # A worker that waits for Kafka is not ready, but must not be restarted.
        if name != "page":
            assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"
            assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"


def test_autoscaling_uses_existing_lag_metrics(objects: list[Object]) -> None:
    (adapter,) = documents(KUBERNETES / "components" / "autoscaling" / "prometheus-adapter.yaml")
    (rule,) = adapter["externalRules"]
    recorded = re.findall(r"- record: (\S+)", (DOCKER / "prometheus" / "rules.yml").read_text())
    assert rule["name"]["matches"] in recorded
    assert rule["name"]["matches"] in rule["seriesQuery"]
    partitions = make_job(
        {
            "name": "logins",
            "protocol": "future_rand",
            "parameters": {"epsilon": 1, "max_changes": 1},
        }
        | {"epochs": {"count": 4}}
    ).topics.partitions
    scalers = of_kind(objects, "HorizontalPodAutoscaler")
    assert scalers.keys() == {"shuffle", "aggregate", "collect"}
    for name, scaler in scalers.items():
        target = scaler["spec"]["scaleTargetRef"]
        assert workloads(objects)[target["name"]]["kind"] == target["kind"]
        assert target["name"] == name
        (metric,) = scaler["spec"]["metrics"]
        if name == "collect":
            assert metric["resource"]["name"] == "cpu"
            assert "cpu" in main(workloads(objects)[name])["resources"]["requests"]
        else:
            assert metric["external"]["metric"] == {
                "name": rule["name"]["as"],
                "selector": {"matchLabels": {"stage": name}},
            }
            assert scaler["spec"]["maxReplicas"] <= partitions


def test_pods_meet_the_restricted_security_standard(objects: list[Object]) -> None:
    (namespace,) = of_kind(objects, "Namespace").values()
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    (uid,) = re.findall(r"useradd --uid (\d+)", (DOCKER / "Dockerfile").read_text())
    for workload in workloads(objects).values():
        spec = pod(workload)
        assert spec["automountServiceAccountToken"] is False
        settings = spec["securityContext"]
        assert settings["runAsNonRoot"] is True
        assert settings["runAsUser"] == int(uid)
        assert settings["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in (*spec["initContainers"], *spec["containers"]):
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
        writable = {each["mountPath"] for each in main(workload)["volumeMounts"]}
        assert {HOME, "/tmp"} <= writable
        kinds = {kind for volume in spec["volumes"] for kind in volume if kind != "name"}
        assert kinds <= {"emptyDir", "secret", "configMap"}


def test_producer_state_is_not_group_writable(objects: list[Object]) -> None:
    """fsGroup makes files group-writable at every mount; producers reject such files."""
    for name, workload in workloads(objects).items():
        settings = pod(workload)["securityContext"]
        if name == "produce":
            assert settings["fsGroup"] == settings["runAsGroup"]
            assert settings["fsGroupChangePolicy"] == "OnRootMismatch"
            (claim,) = workload["spec"]["volumeClaimTemplates"]
            mounts = {each["name"]: each["mountPath"] for each in main(workload)["volumeMounts"]}
            # The mount is HOME: the state folder below it is created for its owner only.
            assert mounts[claim["metadata"]["name"]] == HOME
            assert claim["spec"]["accessModes"] == ["ReadWriteOncePod"]
        else:
            assert "fsGroup" not in settings


def test_each_pod_copies_only_the_secrets_it_needs_to_private_memory(
    objects: list[Object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DPSTREAM_HOME", HOME)
    noise, collectors = (str(file("job").parent) for file in (noise_key_file, collector_key_file))
    expected = {
        "shuffle": {noise, str(sealing_keys_folder())},
        "collect": {collectors},
    }
    readme = (KUBERNETES / "README.md").read_text()
    for name, workload in workloads(objects).items():
        spec = pod(workload)
        secrets = {
            volume["name"]: volume["secret"] for volume in spec["volumes"] if "secret" in volume
        }
        assert f"kafka-{name}" in secrets
        for secret in secrets.values():
            assert f"`{secret['secretName']}`" in readme
            # Readable by every user of the pod, in which only one container mounts the keys.
            assert secret["defaultMode"] == 0o444
        (copier,) = spec["initContainers"]
        assert copier["command"] == ["sh", "/scripts/private-files.sh", "/secrets", "/private"]
        copied = {
            each["name"]: each["mountPath"]
            for each in copier["volumeMounts"]
            if each["mountPath"].startswith("/secrets/")
        }
        assert copied.keys() == secrets.keys()
        assert copied[f"kafka-{name}"] == "/secrets/kafka"
        mounts = main(workload)["volumeMounts"]
        assert not {each["name"] for each in mounts} & secrets.keys()
        private = {each["mountPath"]: each["subPath"] for each in mounts if "subPath" in each}
        assert set(private.values()) == {path.removeprefix("/secrets/") for path in copied.values()}
        assert private.pop("/etc/dpstream") == "kafka"
        if (file := given(workload)[1].get("password_file")) is not None:
            assert private.pop(str(file.parent)) == "page-password"
        assert private.keys() == expected.get(name, set())
        assert all(Path(path).name == folder for path, folder in private.items())
        (memory,) = (each for each in spec["volumes"] if each["name"] == "private")
        assert memory["emptyDir"]["medium"] == "Memory"


def test_copies_of_mounted_keys_are_accepted(tmp_path: Path) -> None:
    """Kubernetes mounts keys as links into a folder that is named after the time."""
    keys = {
        "noise-keys/logins": NoiseKey.at(tmp_path / "made" / "noise").secret,
        "collector-keys/logins": CollectorKey.at(tmp_path / "made" / "collector").secret,
    }
    secrets, private = tmp_path / "secrets", tmp_path / "private"
    for name, data in keys.items():
        mounted = secrets / name
        real = mounted.parent / "..2026" / mounted.name
        real.parent.mkdir(parents=True)
        real.write_bytes(data)
        real.chmod(0o444)
        (mounted.parent / "..data").symlink_to("..2026")
        mounted.symlink_to(f"..data/{mounted.name}")
    (secrets / "sealing-keys").mkdir()
    private.mkdir()
    command = ["sh", str(KUBERNETES / "base" / "private-files.sh"), str(secrets), str(private)]
    # Copy them again, as after a restart of the pod's containers.
    for _ in range(2):
        subprocess.run(command, check=True)
    assert (private / "sealing-keys").is_dir()
    found = {str(path.relative_to(private)) for path in private.rglob("*") if path.is_file()}
    assert found == keys.keys()
    for path in private.rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0
    with pytest.raises(WrongKeyError):
        NoiseKey.read(secrets / "noise-keys" / "logins")
    with pytest.raises(WrongKeyError):
        CollectorKey.read(secrets / "collector-keys" / "logins")
    assert NoiseKey.read(private / "noise-keys/logins").secret == keys["noise-keys/logins"]
    assert (
        CollectorKey.read(private / "collector-keys/logins").secret == keys["collector-keys/logins"]
    )


def test_network_policies_deny_by_default(objects: list[Object]) -> None:
    policies = of_kind(objects, "NetworkPolicy")
    nothing = policies.pop("nothing")["spec"]
    assert nothing == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    kafka = policies.pop("kafka")["spec"]
    assert kafka["policyTypes"] == ["Egress"]
    assert [port["port"] for rule in kafka["egress"] for port in rule["ports"]] == [9094, 53, 53]
    open_ports = set()
    for policy in policies.values():
        assert policy["spec"]["policyTypes"] == ["Ingress"]
        for rule in policy["spec"]["ingress"]:
            assert all("namespaceSelector" in each for each in rule["from"])
            for each in chosen(policy["spec"]["podSelector"], objects):
                for port in rule["ports"]:
                    assert port["port"] in ports(each)
                    open_ports.add((each["metadata"]["name"], port["port"]))
    assert open_ports == {
        (name, port) for name, each in workloads(objects).items() for port in ports(each)
    }


def test_example_objects_are_in_one_namespace() -> None:
    for each in built():
        if each["kind"] != "Namespace":
            assert each["metadata"]["namespace"] == "dpstream"
