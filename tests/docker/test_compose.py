"""Test docker/compose.yaml without Docker: its schema, and its use of dpstream and Kafka."""

from __future__ import annotations

import json
import re
import shlex
from importlib import metadata
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from dpstream.pipeline.cli.commands import build_command
from dpstream.pipeline.kafka.local_kafka.broker import SETTINGS
from dpstream.pipeline.state import (
    collector_key_file,
    noise_key_file,
    sealing_keys_folder,
    signing_key_file,
)
from dpstream.topics.envelopes import BODY_MAX
from dpstream.topics.names import BATCH_BYTES_MAX, KEPT_BATCH_BYTES_MAX

DOCKER = Path(__file__).parents[2] / "docker"
COMPOSE = yaml.safe_load((DOCKER / "compose.yaml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]
BROKERS = {name: service for name, service in SERVICES.items() if name.startswith("kafka-")}
OURS = {name: service for name, service in SERVICES.items() if service["image"] == "dpstream"}
COMMANDS = {name: service for name, service in OURS.items() if "entrypoint" not in service}


def schema() -> Any:
    # Only a file of that package is needed, so it is not imported.
    package = metadata.distribution("check-jsonschema")
    path = package.locate_file("check_jsonschema/builtin_schemas/vendor/compose-spec.json")
    return json.loads(Path(str(path)).read_text())


def test_compose_file_follows_the_compose_specification() -> None:
    # jsonschema does not know this https address of draft 7; newer schemas use draft 2020-12.
    specification = schema()
    drafts = jsonschema.validators.validator_for(specification, jsonschema.Draft7Validator)
    validator = drafts(specification)
    assert [error.message for error in validator.iter_errors(COMPOSE)] == []
    wrong = COMPOSE | {"services": SERVICES | {"page": SERVICES["page"] | {"comand": "serve"}}}
    assert not validator.is_valid(wrong), "the schema rejects unknown keys"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_service_runs_an_existing_command(name: str) -> None:
    command, *arguments = shlex.split(OURS[name]["command"])
    parser = build_command().commands[command]
    context = parser.make_context(command, arguments, resilient_parsing=False)
    if command == "run":
        assert name == context.params["stage"]
        assert context.params["job"] is None
        assert context.params["metrics"] == 9400
        assert context.params["metrics_address"] == "0.0.0.0"
        assert context.params["log_format"] == "json"
    context.close()


def test_every_role_has_a_service() -> None:
    roles = {" ".join(shlex.split(service["command"])[:2]) for service in COMMANDS.values()}
    assert {"run shuffle", "run aggregate", "run publish"} < roles
    assert "page" in OURS
    assert len(BROKERS) == 3
    for name in ("deploy", "produce", "deploy-devices", "devices"):
        assert OURS[name]["profiles"] == ["demo"]


def test_ports_are_bound_to_localhost() -> None:
    published = [port for service in SERVICES.values() for port in service.get("ports", ())]
    assert published
    for port in published:
        assert re.fullmatch(r"127\.0\.0\.1:(\d+):\1", port), port
    assert len(set(published)) == len(published)
    for service in SERVICES.values():
        assert "network_mode" not in service
        assert "privileged" not in service


def test_mounted_folders_and_volumes_exist() -> None:
    for service in SERVICES.values():
        for mount in service.get("volumes", ()):
            source, _, mode = mount.partition(":")
            if source.startswith("."):
                assert (DOCKER / source).is_dir(), mount
                assert mode.endswith(":ro"), f"{mount} could be written to"
            else:
                assert source in COMPOSE["volumes"], mount
    used = {
        mount.partition(":")[0]
        for service in SERVICES.values()
        for mount in service.get("volumes", ())
    }
    assert set(COMPOSE["volumes"]) <= used


def test_files_read_by_commands_are_mounted() -> None:
    for service in COMMANDS.values():
        mounts = dict(mount.split(":")[:2] for mount in service.get("volumes", ()))
        for word in shlex.split(service["command"]):
            if word.startswith("/"):
                (source,) = (host for host, inside in mounts.items() if word.startswith(inside))
                assert (DOCKER / source / word.removeprefix(f"{mounts[source]}/")).is_file()
    job = yaml.safe_load((DOCKER.parent / "pipeline" / "demo" / "enrollment.yaml").read_text())
    assert shlex.split(OURS["produce"]["command"])[1] == job["name"]


def test_noise_keys_are_mounted_only_for_shuffle_and_deploy() -> None:
    """With a noise key, the noise of released windows can be removed."""
    holders = {name for name, each in SERVICES.items() if "noise-keys" in str(each.get("volumes"))}
    assert holders == {"shuffle", "deploy"}


def holders(volume: str) -> set[str]:
    return {name for name, each in SERVICES.items() if volume in str(each.get("volumes"))}


def test_collector_keys_are_mounted_only_for_collect_and_deploy() -> None:
    """With these keys, reports can be linked to devices; only the deployment signs."""
    assert holders("collector-keys") == {"collect", "deploy", "deploy-devices"}
    assert SERVICES["collect"]["volumes"] == ["collector-keys:/var/lib/dpstream/collector-keys:ro"]
    assert holders("signing-keys") == {"deploy", "deploy-devices"}


def test_sealing_keys_are_mounted_only_for_shuffle_and_keygen() -> None:
    assert holders("sealing-keys") == {"shuffle", "deploy"}
    assert "sealing-keys:/var/lib/dpstream/sealing-keys:ro" in SERVICES["shuffle"]["volumes"]
    keygen = build_command().commands["keygen"]
    documented = re.search(r"\sdeploy (keygen [a-z ]+)`", (DOCKER / "README.md").read_text())
    assert documented is not None
    _, *arguments = shlex.split(documented.group(1))
    context = keygen.make_context("keygen", arguments)
    assert context.params["names"] == ["stage"]
    context.close()


def test_key_folders_are_readable_only_by_their_owner() -> None:
    """A volume gets the owner and mode of the image's folder at its mount point."""
    dockerfile = (DOCKER / "Dockerfile").read_text()
    made = re.search(
        r"install --directory --owner dpstream .* --mode 0700((?:.*\\\n)*.*)", dockerfile
    )
    assert made is not None
    folders = set(made.group(1).replace("\\", " ").split())
    mounted = {
        mount.split(":")[1]
        for service in OURS.values()
        for mount in service.get("volumes", ())
        if mount.partition(":")[0] in COMPOSE["volumes"]
    }
    assert mounted <= folders
    for folder in (noise_key_file, collector_key_file):
        assert f"/var/lib/dpstream/{folder('job').parent.name}" in folders
    for path in (sealing_keys_folder(), signing_key_file().parent):
        assert f"/var/lib/dpstream/{path.name}" in folders


def test_two_collectors_run_behind_a_proxy() -> None:
    collect, proxy = SERVICES["collect"], SERVICES["proxy"]
    assert collect["deploy"]["replicas"] == 2
    assert "ports" not in collect
    arguments = shlex.split(collect["command"])[1:]
    context = build_command().commands["collect"].make_context("collect", arguments)
    port = context.params["bind"].rpartition(":")[2]
    # The image's health check and Prometheus use this address.
    assert (context.params["metrics"], context.params["metrics_address"]) == (9400, "0.0.0.0")
    # Only the proxy is in the trusted network, and its clients are limited individually.
    assert context.params["rate"] == 100
    (believed,) = context.params["proxy"]
    context.close()
    (config,) = COMPOSE["networks"]["reports"]["ipam"]["config"]
    assert config["subnet"] == believed
    assert {name for name, each in SERVICES.items() if "reports" in each.get("networks", ())} == {
        "collect",
        "proxy",
    }
    assert "default" not in proxy["networks"]
    assert proxy["ports"] == [f"127.0.0.1:{port}:{port}"]
    assert proxy["volumes"] == ["./nginx:/etc/nginx/conf.d:ro"]
    settings = (DOCKER / "nginx" / "collectors.conf").read_text()
    assert f"server collect:{port} resolve max_fails=0;" in settings
    assert f"listen {port};" in settings
    assert "access_log off;" in settings
    sizes = re.findall(r"client_(?:max_body|body_buffer)_size (\d+)k;", settings)
    assert len(sizes) == 2
    assert len(set(sizes)) == 1
    # Above the collectors' limit, so that collectors themselves reject a body that is too large.
    assert int(sizes[0]) > BODY_MAX // 1024


def test_brokers_match_local_settings_and_tolerate_losing_one_broker() -> None:
    settings = {name: service["environment"] for name, service in BROKERS.items()}
    voters = ",".join(f"{env['KAFKA_NODE_ID']}@{name}:9093" for name, env in settings.items())
    copies = re.compile(r".*REPLICATION_FACTOR|.*MIN_ISR|KAFKA_MIN_INSYNC_REPLICAS")
    shared = {"message.max.bytes", "replica.fetch.max.bytes", "auto.create.topics.enable"}
    shared |= {"offsets.retention.minutes"}
    shared |= {"group.min.session.timeout.ms", "group.initial.rebalance.delay.ms"}
    shared |= {"process.roles", "controller.listener.names", "log.cleaner.dedupe.buffer.size"}
    for name, environment in settings.items():
        for key in shared:
            assert environment[f"KAFKA_{key.replace('.', '_').upper()}"] == SETTINGS[key]
        assert int(environment["KAFKA_MESSAGE_MAX_BYTES"]) >= max(
            BATCH_BYTES_MAX, KEPT_BATCH_BYTES_MAX
        )
        for key, value in environment.items():
            if copies.fullmatch(key):
                assert value == ("3" if key.endswith("FACTOR") else "2"), key
        assert environment["KAFKA_DEFAULT_REPLICATION_FACTOR"] == "3"
        assert environment["KAFKA_CONTROLLER_QUORUM_VOTERS"] == voters
        assert f"PLAINTEXT://{name}:9092" in environment["KAFKA_ADVERTISED_LISTENERS"]
        outside = f"localhost:{BROKERS[name]['ports'][0].split(':')[1]}"
        assert f"HOST://{outside}" in environment["KAFKA_ADVERTISED_LISTENERS"]
        (volume,) = BROKERS[name]["volumes"]
        assert volume == f"{name}:{environment['KAFKA_LOG_DIRS']}"
    assert len({env["CLUSTER_ID"] for env in settings.values()}) == 1


def test_docker_files_contain_no_secrets() -> None:
    text = (DOCKER / "compose.yaml").read_text() + (DOCKER / "Dockerfile").read_text()
    names = re.findall(r"\b[A-Z_]*(?:PASSWORD|SECRET|TOKEN|API_KEY)[A-Z_]*\b", text)
    assert names == []


def test_prometheus_scrapes_every_stage_and_collector() -> None:
    settings = yaml.safe_load((DOCKER / "prometheus" / "prometheus.yml").read_text())
    workers = next(each for each in settings["scrape_configs"] if each["job_name"] == "dpstream")
    (found,) = workers["dns_sd_configs"]
    running = {name for name, each in COMMANDS.items() if each["command"].startswith("run ")}
    assert set(found["names"]) == {*running, "collect"}
    for rules in settings["rule_files"]:
        assert (DOCKER / "prometheus" / rules).is_file()
