"""Test the settings of one cluster in the format of every client."""

from pathlib import Path
from typing import Any

import faust
import pytest
from faust.transport.drivers.aiokafka import credentials_to_aiokafka_auth

from dpstream.pipeline.kafka.connection import Connection, ConnectionSettingsError, find_cluster

TLS = Path(__file__).parents[1] / "tls"
LOGIN = (
    "sasl.mechanism=SCRAM-SHA-512\n"
    "sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required "
    'username="alice" password="secret";\n'
)
TRUST = f"ssl.truststore.location={TLS / 'ca.pem'}\n"


@pytest.fixture(autouse=True)
def empty_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPSTREAM_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("DPSTREAM_BOOTSTRAP_SERVERS", raising=False)


def from_file(tmp_path: Path, text: str) -> Connection:
    path = tmp_path / "client.properties"
    path.write_text(text)
    path.chmod(0o600)
    return find_cluster(kafka_config=path)


def login_of(settings: dict[str, Any]) -> tuple[Any, Any, Any]:
    return (
        settings.get("sasl_mechanism"),
        settings.get("sasl_plain_username"),
        settings.get("sasl_plain_password"),
    )


@pytest.mark.parametrize(
    ("protocol", "lines", "encrypted", "login"),
    [
        ("PLAINTEXT", "", False, (None, None, None)),
        ("SSL", TRUST, True, (None, None, None)),
        ("SASL_PLAINTEXT", LOGIN, False, ("SCRAM-SHA-512", "alice", "secret")),
        ("SASL_SSL", TRUST + LOGIN, True, ("SCRAM-SHA-512", "alice", "secret")),
    ],
)
def test_all_clients_get_the_same_settings(
    tmp_path: Path, protocol: str, lines: str, encrypted: bool, login: tuple[Any, Any, Any]
) -> None:
    connection = from_file(
        tmp_path,
        f"bootstrap.servers=a:9092,b:9093\nsecurity.protocol={protocol}\nclient.id=me\n{lines}",
    )
    for settings in (connection.kafka_python(), connection.aiokafka()):
        assert settings["bootstrap_servers"] == ["a:9092", "b:9093"]
        assert settings["security_protocol"] == protocol
        assert settings["client_id"] == "me"
        assert settings.get("ssl_context") is connection.tls
        assert (connection.tls is not None) == encrypted
        assert login_of(settings) == login

    app = faust.App("unused", **connection.faust())
    assert [str(url) for url in app.conf.broker] == ["kafka://a:9092", "kafka://b:9093"]
    assert app.conf.broker_client_id == "me"
    # Settings that Faust's transport passes to the aiokafka client.
    passed_on = credentials_to_aiokafka_auth(app.conf.broker_credentials)
    assert passed_on["security_protocol"] == protocol
    assert passed_on.get("ssl_context") is connection.tls
    assert login_of(dict(passed_on)) == login


def test_option_overrides_environment_and_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "client.properties"
    config.write_text("bootstrap.servers=file:1\nclient.id=me")
    assert find_cluster(kafka_config=config).bootstrap_servers == ("file:1",)
    monkeypatch.setenv("DPSTREAM_BOOTSTRAP_SERVERS", "environment:1")
    assert find_cluster().bootstrap_servers == ("environment:1",)
    both = find_cluster(kafka_config=config)
    assert (both.bootstrap_servers, both.client_id) == (("environment:1",), "me")
    assert find_cluster("option:1, option:2").bootstrap_servers == ("option:1", "option:2")
    assert find_cluster("option:1", config).bootstrap_servers == ("option:1",)


def test_password_is_not_shown(tmp_path: Path) -> None:
    connection = from_file(
        tmp_path, f"bootstrap.servers=a:1\nsecurity.protocol=SASL_PLAINTEXT\n{LOGIN}"
    )
    assert "secret" not in repr(connection)


def test_file_without_servers_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ConnectionSettingsError, match=r"bootstrap\.servers is missing"):
        from_file(tmp_path, "client.id=me")


@pytest.mark.parametrize("port", ["0", "65536", "99999"])
def test_invalid_port_is_rejected_immediately(port: str) -> None:
    with pytest.raises(ConnectionSettingsError, match=f"got b:{port}; expected a port from 1 to"):
        find_cluster(f"a:9092,b:{port}")
