"""Broker that allows only operations granted by an ACL, with users for tests.

Clients authenticate by SASL_SSL with SCRAM, or by TLS with a certificate. Certificates are
generated for every broker. A listener without authentication is for clients that wait for the
broker to start; no ACL grants it anything.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from kafka import KafkaAdminClient
from kafka.admin import ScramMechanism, UserScramCredentialUpsertion

from dpstream.pipeline.kafka.connection import Connection, find_cluster
from dpstream.pipeline.kafka.local_kafka import LocalKafka
from dpstream.pipeline.kafka.local_kafka.broker import free_port

ADMIN = "admin"
_BROKER = "broker"
_ITERATIONS = 4096
_MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")
_SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required"
_DECIDED = re.compile(
    r"Principal = (User:\S+) is (Allowed|Denied) operation = (\w+) "
    r".*? on resource = (\w+):LITERAL:(\S+)"
)
_LOGGING = """
logger.authorizer.name = kafka.authorizer.logger
logger.authorizer.level = debug
"""


@dataclass(frozen=True, slots=True, order=True)
class AclRequest:
    principal: str
    operation: str
    kind: str
    name: str


class _LoggedKafka(LocalKafka):
    """Broker that also logs allowed operations."""

    def _write_settings(self, port: int) -> None:
        super()._write_settings(port)
        with (self.directory / "log4j2.properties").open("a") as file:
            file.write(_LOGGING)


class Authority:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("authority")
        self.file = folder / "ca.pem"
        made = self._builder(self._name, self._key.public_key()).add_extension(
            x509.BasicConstraints(ca=True, path_length=None), critical=True
        )
        self.file.write_bytes(made.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM))

    def issue(self, name: str, address: str = "127.0.0.1") -> Path:
        key = ec.generate_private_key(ec.SECP256R1())
        made = self._builder(_name(name), key.public_key()).add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ip_address(address))]), critical=False
        )
        certificate = made.sign(self._key, hashes.SHA256())
        file = self._folder / f"{name}.pem"
        file.write_bytes(
            key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
            + certificate.public_bytes(Encoding.PEM)
        )
        file.chmod(0o600)
        return file

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePublicKey
    ) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + timedelta(hours=12))
        )


class SecuredKafka:
    """Secured broker; `admin` is the client.properties of a superuser."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._authority = Authority(folder)
        opened, sasl, tls = _ports(3)
        controller = _ports(1, (opened, sasl, tls))[0]
        self._sasl, self._tls = f"127.0.0.1:{sasl}", f"127.0.0.1:{tls}"
        listeners = f"PLAINTEXT://127.0.0.1:{opened},SASL_SSL://{self._sasl},SSL://{self._tls}"
        super_users = ";".join(f"User:CN={name}" for name in (_BROKER, ADMIN))
        self.broker = _LoggedKafka(
            folder / "kafka",
            {
                "listeners": f"{listeners},CONTROLLER://127.0.0.1:{controller}",
                "advertised.listeners": listeners,
                "listener.security.protocol.map": (
                    "PLAINTEXT:PLAINTEXT,SASL_SSL:SASL_SSL,SSL:SSL,CONTROLLER:SSL"
                ),
                "inter.broker.listener.name": "SSL",
                "controller.quorum.voters": f"1@127.0.0.1:{controller}",
                "sasl.enabled.mechanisms": ",".join(_MECHANISMS),
                **{
                    f"listener.name.sasl_ssl.{mechanism.lower()}.sasl.jaas.config": f"{_SCRAM};"
                    for mechanism in _MECHANISMS
                },
                "ssl.keystore.type": "PEM",
                "ssl.keystore.location": str(self._authority.issue(_BROKER)),
                "ssl.truststore.type": "PEM",
                "ssl.truststore.location": str(self._authority.file),
                "listener.name.ssl.ssl.client.auth": "required",
                "listener.name.controller.ssl.client.auth": "required",
                "authorizer.class.name": (
                    "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
                ),
                "allow.everyone.if.no.acl.found": "false",
                "super.users": super_users,
            },
            brief=True,
        )
        self.admin = self.certified(ADMIN)

    def __enter__(self) -> Self:
        try:
            self.broker.start()
        except BaseException:
            self.broker.stop(grace=0.0)
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.broker.stop(grace=0.0)

    def certified(self, name: str) -> Path:
        """Return the client.properties of a user with a certificate for CN=name."""
        file = self._folder / f"{name}.properties"
        file.write_text(
            f"bootstrap.servers={self._tls}\n"
            "security.protocol=SSL\n"
            "ssl.truststore.type=PEM\n"
            f"ssl.truststore.location={self._authority.file}\n"
            "ssl.keystore.type=PEM\n"
            f"ssl.keystore.location={self._authority.issue(name)}\n"
        )
        return file

    def users(self, *names: str, mechanism: str = "SCRAM-SHA-512") -> dict[str, Path]:
        """Create users who log in with a password, and return their client.properties."""
        files = {}
        wanted = []
        for name in names:
            password = secrets.token_urlsafe(12)
            wanted.append(
                UserScramCredentialUpsertion(
                    name,
                    ScramMechanism[mechanism.replace("-", "_")],
                    password,
                    iterations=_ITERATIONS,
                )
            )
            file = files[name] = self._folder / f"{name}.properties"
            file.write_text(
                f"bootstrap.servers={self._sasl}\n"
                "security.protocol=SASL_SSL\n"
                f"sasl.mechanism={mechanism}\n"
                f"sasl.jaas.config={_SCRAM} "
                f'username="{name}" password="{password}";\n'
                "ssl.truststore.type=PEM\n"
                f"ssl.truststore.location={self._authority.file}\n"
            )
            file.chmod(0o600)
        admin = KafkaAdminClient(**self.connection(self.admin).kafka_python())
        try:
            admin.alter_user_scram_credentials(wanted)
        finally:
            admin.close()
        return files

    def connection(self, config: Path) -> Connection:
        return find_cluster(kafka_config=config)

    def written(self) -> int:
        """Return the current length of the broker's log."""
        return self.broker.log_path.stat().st_size

    def decisions(self, since: int = 0) -> tuple[set[AclRequest], set[AclRequest]]:
        """Return the allowed and the denied operations logged after position `since`."""
        allowed, denied = set[AclRequest](), set[AclRequest]()
        with self.broker.log_path.open("rb") as log:
            log.seek(since)
            text = log.read().decode(errors="replace")
        for line in text.splitlines():
            if found := _DECIDED.search(line):
                principal, word, operation, kind, name = found.groups()
                requested = AclRequest(principal, operation, kind.lower(), name)
                (allowed if word == "Allowed" else denied).add(requested)
        return allowed, denied


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _ports(count: int, taken: tuple[int, ...] = ()) -> list[int]:
    ports: set[int] = set()
    while len(ports) < count:
        port = free_port()
        if port not in taken:
            ports.add(port)
    return list(ports)
