"""Test that every security setting of a client.properties file is applied or rejected.

TLS is tested by in-memory handshakes with the keys in ``tls/`` (made by ``tls/make.sh``).
"""

import shutil
import ssl
from pathlib import Path

import pytest

from dpstream.pipeline.kafka.client_properties import ClientProperties, read_client_properties
from dpstream.pipeline.kafka.connection import ConnectionSettingsError, Login

TLS = Path(__file__).parents[1] / "tls"
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "client.properties"
    path.touch(mode=0o600)
    return path


def read(file: Path, *lines: str) -> ClientProperties:
    file.write_text("\n".join(lines))
    return read_client_properties(file)


def rejection(file: Path, *lines: str) -> str:
    with pytest.raises(ConnectionSettingsError) as caught:
        read(file, *lines)
    message = str(caught.value)
    assert "\n" not in message
    assert str(file) in message
    return message.replace(str(file), "FILE")


def handshake(client: ssl.SSLContext, host: str = "broker.example", **server: bool) -> str | None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(TLS / "server.pem")
    if server.get("asks_for_certificate"):
        context.load_verify_locations(TLS / "ca.pem")
        context.verify_mode = ssl.CERT_REQUIRED
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(down, up, server_hostname=host),
        context.wrap_bio(up, down, server_side=True),
    ]
    for _ in range(10):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    assert ends[1].version() is not None
    return ends[0].version()


def indented(pem: str) -> str:
    return " \\\n    ".join(pem.splitlines())


def split(name: str) -> tuple[str, str]:
    key, begin, certificate = (TLS / name).read_text().partition("-----BEGIN CERTIFICATE-----")
    return key, begin + certificate


class TestPlaintext:
    def test_file_that_sets_only_servers_is_valid(self, file: Path) -> None:
        found = read(file, "bootstrap.servers = a:9092, [::1]:9093", "client.id=weekly")
        assert found.bootstrap_servers == ("a:9092", "[::1]:9093")
        assert found.client_id == "weekly"
        assert (found.tls, found.login, found.warnings) == (None, None, ())

    def test_servers_can_come_from_the_command_line(self, file: Path) -> None:
        assert read(file, "").bootstrap_servers == ()

    @pytest.mark.parametrize("servers", ["a", "PLAINTEXT://a:9092", " "])
    def test_malformed_servers_are_rejected(self, file: Path, servers: str) -> None:
        message = rejection(file, "# who", f"bootstrap.servers={servers}")
        assert "FILE, line 2: bootstrap.servers: got " in message

    @pytest.mark.parametrize(
        ("line", "advice"),
        [
            ("security.protocl=SSL", "did you mean security.protocol?"),
            ("ssl.cipher.suites=TLS_AES_128_GCM_SHA256", "remove it"),
            ("anything=1", "remove it"),
        ],
    )
    def test_unknown_settings_are_rejected(self, file: Path, line: str, advice: str) -> None:
        message = rejection(file, "# first", line)
        assert message.startswith(f"FILE, line 2: {line.partition('=')[0]}: unsupported setting")
        assert advice in message

    @pytest.mark.parametrize(
        ("protocol", "line"),
        [("PLAINTEXT", "sasl.mechanism=PLAIN"), ("SASL_PLAINTEXT", "ssl.keystore.location=me.pem")],
    )
    def test_security_settings_without_effect_are_rejected(
        self, file: Path, protocol: str, line: str
    ) -> None:
        message = rejection(file, f"security.protocol={protocol}", line)
        assert "line 2" in message
        assert f"has no effect with security.protocol={protocol}" in message

    def test_unknown_protocol_is_rejected(self, file: Path) -> None:
        assert "PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL" in rejection(
            file, "security.protocol=TLS"
        )

    def test_error_for_a_missing_file_contains_its_path(self, tmp_path: Path) -> None:
        with pytest.raises(
            ConnectionSettingsError, match=r"cannot read .*none\.properties: No such"
        ):
            read_client_properties(tmp_path / "none.properties")


class TestSasl:
    @pytest.mark.parametrize(
        ("mechanism", "jaas", "login"),
        [
            (
                "PLAIN",
                f'{PLAIN} required username="alice" password="it\'s; a = \\\\"secret\\\\"";',
                Login("PLAIN", "alice", 'it\'s; a = "secret"'),
            ),
            (
                "PLAIN",
                f"{PLAIN} required username='KEY' password='S+c/r=t' ;",
                Login("PLAIN", "KEY", "S+c/r=t"),
            ),
            (
                "SCRAM-SHA-256",
                f"{SCRAM} required \\\n    username=bob \\\n    password=builder;",
                Login("SCRAM-SHA-256", "bob", "builder"),
            ),
            (
                "scram-sha-512",
                f'{SCRAM} required username="bob" password="";',
                Login("SCRAM-SHA-512", "bob", ""),
            ),
        ],
    )
    def test_supported_logins_are_accepted(
        self, file: Path, mechanism: str, jaas: str, login: Login
    ) -> None:
        found = read(
            file,
            "security.protocol=SASL_SSL",
            f"sasl.mechanism={mechanism}",
            f"sasl.jaas.config={jaas}",
        )
        assert found.login == login
        assert found.tls is not None
        assert found.warnings == ()

    @pytest.mark.parametrize(
        ("mechanism", "jaas", "problem"),
        [
            ("GSSAPI", f"{PLAIN} required;", "expected one of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512"),
            ("", f"{PLAIN} required;", "sasl.mechanism is missing"),
            (
                "PLAIN",
                f'{SCRAM} required username="a" password="b";',
                "requires the login module Plain",
            ),
            ("PLAIN", f'{PLAIN} required username="a";', "sasl.jaas.config: expected"),
            (
                "PLAIN",
                f'{PLAIN} required username="a" password="tipp"ed";',
                "sasl.jaas.config: expected",
            ),
        ],
    )
    def test_unsupported_logins_are_rejected(
        self, file: Path, mechanism: str, jaas: str, problem: str
    ) -> None:
        message = rejection(
            file,
            "security.protocol=SASL_SSL",
            f"sasl.mechanism={mechanism}",
            f"sasl.jaas.config={jaas}",
        )
        assert problem in message
        assert "tipp" not in message, "messages never contain secrets"

    def test_password_is_not_shown(self) -> None:
        assert "secret" not in repr(Login("PLAIN", "alice", "secret"))

    def test_exposed_secrets_cause_a_warning(self, file: Path) -> None:
        lines = (
            "security.protocol=SASL_PLAINTEXT",
            "sasl.mechanism=PLAIN",
            f"sasl.jaas.config={PLAIN} required username=a password=b;",
        )
        assert read(file, *lines).warnings == (
            f"{file}: the password is sent unencrypted; use SASL_SSL",
        )
        file.chmod(0o644)
        assert read(file, *lines).warnings[0].endswith(f"chmod 600 {file}'")
        assert read(file, "bootstrap.servers=a:1").warnings == (), "no secrets"


class TestTls:
    def test_only_the_certificate_authority_in_the_file_is_trusted(self, file: Path) -> None:
        trusting = read(file, "security.protocol=SSL", f"ssl.truststore.location={TLS}/ca.pem")
        assert trusting.tls is not None
        assert handshake(trusting.tls) == "TLSv1.3"
        default = read(file, "security.protocol=SSL")
        assert default.tls is not None
        with pytest.raises(ssl.SSLCertVerificationError, match="unable to get local issuer"):
            handshake(default.tls)

    def test_inline_certificate_authority_is_trusted(self, file: Path) -> None:
        found = read(
            file,
            "security.protocol=SSL",
            "ssl.truststore.type=PEM",
            f"ssl.truststore.certificates={indented((TLS / 'ca.pem').read_text())}",
        )
        assert found.tls is not None
        assert handshake(found.tls) == "TLSv1.3"

    def test_broker_name_is_verified_unless_disabled(self, file: Path) -> None:
        lines = ("security.protocol=SSL", f"ssl.truststore.location={TLS}/ca.pem")
        for more in ((), ("ssl.endpoint.identification.algorithm=https",)):
            strict = read(file, *lines, *more)
            assert strict.tls is not None
            with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
                handshake(strict.tls, host="elsewhere.example")
        lax = read(file, *lines, "ssl.endpoint.identification.algorithm=")
        assert lax.tls is not None
        assert handshake(lax.tls, host="elsewhere.example") == "TLSv1.3"
        assert "expected one of HTTPS" in rejection(
            file, *lines, "ssl.endpoint.identification.algorithm=none"
        )

    def test_only_enabled_tls_versions_are_used(self, file: Path) -> None:
        lines = ("security.protocol=SSL", f"ssl.truststore.location={TLS}/ca.pem")
        old = read(file, *lines, "ssl.enabled.protocols=TLSv1.2")
        assert old.tls is not None
        assert handshake(old.tls) == "TLSv1.2"
        message = rejection(file, *lines, "ssl.enabled.protocols=TLSv1.1,TLSv1.2")
        assert "expected TLSv1.2, TLSv1.3 or both" in message

    @pytest.mark.parametrize("inline", [False, True])
    @pytest.mark.parametrize(
        ("name", "password"), [("client", ""), ("client-locked", "opensesame")]
    )
    def test_client_certificate_is_sent(
        self, file: Path, name: str, password: str, inline: bool
    ) -> None:
        lines = [
            "security.protocol=SSL",
            f"ssl.truststore.location={TLS}/ca.pem",
            "ssl.keystore.type=PEM",
            f"ssl.key.password={password}",
        ]
        anonymous = read(file, *lines)
        assert anonymous.tls is not None
        with pytest.raises(ssl.SSLError):
            handshake(anonymous.tls, asks_for_certificate=True)

        key, certificate = split(f"{name}.pem")
        lines += (
            [
                f"ssl.keystore.key={indented(key)}",
                f"ssl.keystore.certificate.chain={indented(certificate)}",
            ]
            if inline
            else [f"ssl.keystore.location={TLS}/{name}.pem"]
        )
        known = read(file, *lines)
        assert known.tls is not None
        assert handshake(known.tls, asks_for_certificate=True) == "TLSv1.3"

    @pytest.mark.parametrize("password", ["", "ssl.key.password=guess"])
    def test_wrong_password_for_a_key_is_rejected_without_a_prompt(
        self, file: Path, password: str
    ) -> None:
        location = f"ssl.keystore.location={TLS}/client-locked.pem"
        message = rejection(file, "security.protocol=SSL", location, password)
        assert "line 2: cannot load the client's key" in message

    def test_key_without_a_certificate_is_rejected(self, file: Path) -> None:
        key, _ = split("client.pem")
        message = rejection(file, "security.protocol=SSL", f"ssl.keystore.key={indented(key)}")
        assert "ssl.keystore.certificate.chain and ssl.keystore.key must be set together" in message

    @pytest.mark.parametrize("store", ["truststore", "keystore"])
    def test_error_for_java_key_store_states_the_conversion(self, file: Path, store: str) -> None:
        jks = file.with_name("store.jks")
        jks.write_bytes(bytes.fromhex("feedfeed00000002"))
        message = rejection(
            file,
            "security.protocol=SSL",
            f"ssl.{store}.password=changeit",
            f"ssl.{store}.location={jks}",
        )
        assert (
            f"FILE, line 3: {jks} must be a PEM file, with ssl.{store}.type=PEM. To convert it:"
            in message
        )
        assert "keytool" in message
        assert "changeit" not in message

        shutil.copy(TLS / "client.pem", jks)
        lines = ("security.protocol=SSL", f"ssl.{store}.location={jks}")
        assert "must be a PEM file" in rejection(file, *lines, f"ssl.{store}.type=JKS")
        assert read(file, *lines, f"ssl.{store}.type=pem").tls is not None
