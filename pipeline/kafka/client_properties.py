"""Read client.properties files, as used by Kafka's own tools: servers, TLS and SASL.

Certificates and keys are read in PEM, the one format that Java and OpenSSL share. No security
setting is ignored: an unsupported or ineffective one is an error. Settings that are not about the
connection, such as acks and linger.ms, cause a warning.
"""

from __future__ import annotations

import difflib
import re
import ssl
import stat
import tempfile
import textwrap
from dataclasses import dataclass
from pathlib import Path

from dpstream.pipeline.kafka.connection import ConnectionSettingsError, Login, parse_servers
from dpstream.pipeline.whole_files import read_whole_file, read_whole_text

ENCODING = "iso-8859-1"

_LINE_ENDS = re.compile(r"\r\n|\r|\n")


@dataclass(frozen=True, slots=True)
class Property:
    value: str
    line: int


def parse_properties(text: str) -> dict[str, Property]:
    r"""Return the settings in a .properties file by key; of duplicate keys, the last one counts.

    >>> parse_properties("# where\nbootstrap.servers = a:9092,\\\n    b:9092\n")
    {'bootstrap.servers': Property(value='a:9092,b:9092', line=2)}
    """
    # Import on demand: it also loads an XML parser, and few commands read such a file.
    from javaproperties import InvalidUEscapeError, KeyValue, parse

    properties, line = {}, 1
    try:
        for element in parse(text):
            if isinstance(element, KeyValue):
                properties[element.key] = Property(element.value, line)
            line += len(_LINE_ENDS.findall(element.source))
    except InvalidUEscapeError:
        raise ValueError(rf"line {line}: \u must be followed by four hexadecimal digits") from None
    return properties


# Maximum size in bytes of a settings or certificate file.
_LARGEST = 1 << 20

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")

# SASL mechanisms, each with the Java login module that sasl.jaas.config must name.
MECHANISMS = {
    "PLAIN": "PlainLoginModule",
    "SCRAM-SHA-256": "ScramLoginModule",
    "SCRAM-SHA-512": "ScramLoginModule",
}

_UNDERSTOOD = """
bootstrap.servers client.id security.protocol sasl.mechanism sasl.jaas.config
ssl.truststore.location ssl.truststore.type ssl.truststore.certificates
ssl.keystore.location ssl.keystore.type ssl.keystore.certificate.chain ssl.keystore.key
ssl.key.password ssl.endpoint.identification.algorithm ssl.enabled.protocols
"""

# Other settings of Kafka 4.3's producer, consumer and admin client, except security: they concern a
# client, not the connection. The settings in the last row have no effect on PEM files.
_IGNORED = """
acks allow.auto.create.topics auto.commit.interval.ms auto.offset.reset batch.size buffer.memory
check.crcs client.dns.lookup client.rack compression.gzip.level compression.lz4.level
compression.type compression.zstd.level connections.max.idle.ms default.api.timeout.ms
delivery.timeout.ms enable.auto.commit enable.idempotence enable.metrics.push
exclude.internal.topics fetch.max.bytes fetch.max.wait.ms fetch.min.bytes group.id
group.instance.id group.protocol group.remote.assignor heartbeat.interval.ms
interceptor.classes isolation.level key.deserializer key.serializer linger.ms max.block.ms
max.in.flight.requests.per.connection max.partition.fetch.bytes max.poll.interval.ms
max.poll.records max.request.size metadata.max.age.ms metadata.max.idle.ms
metadata.recovery.rebootstrap.trigger.ms metadata.recovery.strategy metric.reporters
metrics.num.samples metrics.recording.level metrics.sample.window.ms
partition.assignment.strategy partitioner.adaptive.partitioning.enable
partitioner.availability.timeout.ms partitioner.class partitioner.ignore.keys
receive.buffer.bytes reconnect.backoff.max.ms reconnect.backoff.ms request.timeout.ms retries
retry.backoff.max.ms retry.backoff.ms send.buffer.bytes session.timeout.ms
share.acknowledgement.mode share.acquire.mode socket.connection.setup.timeout.max.ms
socket.connection.setup.timeout.ms transaction.timeout.ms transaction.two.phase.commit.enable
transactional.id value.deserializer value.serializer
schema.registry.url basic.auth.credentials.source basic.auth.user.info
ssl.truststore.password ssl.keystore.password ssl.protocol
"""

UNDERSTOOD = frozenset(_UNDERSTOOD.split())
IGNORED = frozenset(_IGNORED.split())
SECRETS = ("sasl.jaas.config", "ssl.keystore.key", "ssl.key.password")

_PEM_BLOCK = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----(.*?)-----END \1-----", re.DOTALL)
_JAAS = re.compile(r"\s*([\w.$]+)\s+(?:required|requisite|sufficient|optional)\b(.*);\s*", re.S)
_JAAS_OPTION = re.compile(
    r"""\s*([\w.-]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([^\s;"']+))""", re.S
)


@dataclass(frozen=True, slots=True, eq=False)
class ClientProperties:
    bootstrap_servers: tuple[str, ...]
    tls: ssl.SSLContext | None
    login: Login | None
    client_id: str | None
    warnings: tuple[str, ...]


def read_client_properties(path: Path) -> ClientProperties:
    """Read a client.properties file and its keys; errors give file, line and remedy."""
    return _SettingsReader(path).read()


class _SettingsReader:
    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._properties = parse_properties(read_whole_text(path, ENCODING, _LARGEST))
        except OSError as error:
            raise ConnectionSettingsError(f"cannot read {path}: {error.strerror}") from None
        except ValueError as error:
            raise ConnectionSettingsError(f"{path}, {error}") from None

    def read(self) -> ClientProperties:
        protocol = self._choice("security.protocol", "PLAINTEXT", PROTOCOLS)
        ignored = self._check_keys(protocol)
        login = self._login() if "SASL" in protocol else None
        warnings = []
        if ignored:
            what = f"{self._path}: ignored settings that do not affect the connection"
            warnings.append(f"{what}: {', '.join(ignored)}")
        if self._is_exposed():
            warnings.append(
                f"{self._path} contains secrets that other users of this machine can read; "
                f"to prevent this: 'chmod 600 {self._path}'"
            )
        if login and login.mechanism == "PLAIN" and "SSL" not in protocol:
            warnings.append(f"{self._path}: the password is sent unencrypted; use SASL_SSL")
        return ClientProperties(
            bootstrap_servers=self._bootstrap_servers(),
            tls=self._tls() if "SSL" in protocol else None,
            login=login,
            client_id=self._get("client.id"),
            warnings=tuple(warnings),
        )

    def _get(self, key: str) -> str | None:
        found = self._properties.get(key)
        return found.value.strip() or None if found else None

    def _error(self, key: str, problem: str) -> ConnectionSettingsError:
        found = self._properties.get(key)
        where = f"{self._path}, line {found.line}" if found else f"{self._path}"
        return ConnectionSettingsError(f"{where}: {problem}")

    def _choice(self, key: str, default: str, allowed: tuple[str, ...]) -> str:
        value = self._get(key) or default
        if value.upper() not in allowed:
            raise self._error(key, f"{key} is {value}; expected one of {', '.join(allowed)}")
        return value.upper()

    def _check_keys(self, protocol: str) -> list[str]:
        for key in self._properties:
            layer = key.partition(".")[0].upper()
            if key not in UNDERSTOOD | IGNORED:
                like = difflib.get_close_matches(key, UNDERSTOOD, n=1, cutoff=0.8)
                hint = f"did you mean {like[0]}?" if like else "remove it if it is not needed"
                raise self._error(key, f"{key}: unsupported setting; {hint}")
            if key in UNDERSTOOD and layer in ("SSL", "SASL") and layer not in protocol:
                raise self._error(
                    key,
                    f"{key} has no effect with security.protocol={protocol}: change the protocol, "
                    "for example to SASL_SSL, or remove this line",
                )
        return sorted(self._properties.keys() & IGNORED)

    def _is_exposed(self) -> bool:
        others = stat.S_IRGRP | stat.S_IROTH
        return any(map(self._get, SECRETS)) and bool(self._path.stat().st_mode & others)

    def _bootstrap_servers(self) -> tuple[str, ...]:
        found = self._properties.get("bootstrap.servers")
        if found is None:
            return ()
        return parse_servers(found.value, f"{self._path}, line {found.line}: bootstrap.servers")

    def _login(self) -> Login:
        # Java's own default, GSSAPI, is not supported here: the user has to choose.
        mechanism = self._choice("sasl.mechanism", "missing", tuple(MECHANISMS))
        jaas = self._get("sasl.jaas.config")
        module = MECHANISMS[mechanism]
        example = f'org.apache.kafka.common.security...{module} required username="u" password="p";'
        parsed = _JAAS.fullmatch(jaas or "")
        options = _jaas_options(parsed.group(2)) if parsed else None
        if parsed is None or options is None or options.keys() != {"username", "password"}:
            raise self._error("sasl.jaas.config", f"sasl.jaas.config: expected {example}")
        if parsed.group(1).rpartition(".")[2] != module:
            raise self._error(
                "sasl.jaas.config", f"sasl.mechanism {mechanism} requires the login module {module}"
            )
        return Login(mechanism, options["username"], options["password"])

    def _tls(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        algorithm = "ssl.endpoint.identification.algorithm"
        # In Java, an empty value disables host name verification.
        if algorithm in self._properties and self._get(algorithm) is None:
            context.check_hostname = False
        else:
            self._choice(algorithm, "HTTPS", ("HTTPS",))
        self._restrict_versions(context)
        self._trust(context)
        self._identify(context)
        return context

    def _restrict_versions(self, context: ssl.SSLContext) -> None:
        key = "ssl.enabled.protocols"
        names = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
        chosen = [name.strip() for name in (self._get(key) or "TLSv1.2,TLSv1.3").split(",")]
        if not set(chosen) <= set(names):
            raise self._error(
                key, f"{key}: got {', '.join(chosen)}; expected {', '.join(names)} or both"
            )
        context.minimum_version = min(names[name] for name in chosen)
        context.maximum_version = max(names[name] for name in chosen)

    def _trust(self, context: ssl.SSLContext) -> None:
        key = "ssl.truststore.certificates"
        certificates = self._inline_pem(key)
        if certificates is None:
            key = "ssl.truststore.location"
            certificates = self._pem_file(
                "ssl.truststore", "keytool -list -rfc -keystore {file} > ca.pem"
            )
        if certificates is None:
            context.load_default_certs()
            return
        try:
            context.load_verify_locations(cadata=certificates)
        except ssl.SSLError as error:
            problem = f"cannot load the trusted certificates: {error.reason or error}"
            raise self._error(key, problem) from None

    def _identify(self, context: ssl.SSLContext) -> None:
        key = "ssl.keystore.key"
        identity = self._inline_pem(key)
        chain = self._inline_pem("ssl.keystore.certificate.chain")
        if (identity is None) != (chain is None):
            raise ConnectionSettingsError(
                f"{self._path}: ssl.keystore.certificate.chain and {key} must be set together"
            )
        if identity is None or chain is None:
            key = "ssl.keystore.location"
            identity = self._pem_file(
                "ssl.keystore",
                "keytool -importkeystore -srckeystore {file} -destkeystore client.p12 "
                "-deststoretype PKCS12 && openssl pkcs12 -in client.p12 -nodes -out client.pem",
            )
            if identity is None:
                return
        else:
            identity += chain
        # OpenSSL reads a key only from a file; this one is private and deleted immediately.
        with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
            file.write(identity)
            file.flush()
            try:
                # Do not pass None: OpenSSL would ask for the password on the terminal.
                context.load_cert_chain(file.name, password=self._get("ssl.key.password") or "")
            except ssl.SSLError as error:
                raise self._error(
                    key,
                    f"cannot load the client's key: {error.reason or error}. Check the "
                    "key and ssl.key.password",
                ) from None

    def _inline_pem(self, key: str) -> str | None:
        value = self._get(key)
        if value is None:
            return None
        # A joined .properties value has no line breaks, but OpenSSL requires them.
        blocks = [
            f"-----BEGIN {label}-----\n{textwrap.fill(''.join(body.split()), 64)}\n"
            f"-----END {label}-----\n"
            for label, body in _PEM_BLOCK.findall(value)
        ]
        if not blocks:
            raise self._error(key, f"{key} contains no PEM block (-----BEGIN ...)")
        return "".join(blocks)

    def _pem_file(self, store: str, conversion: str) -> str | None:
        location = self._get(f"{store}.location")
        if location is None:
            return None
        key = f"{store}.location"
        try:
            text = read_whole_file(Path(location), _LARGEST).decode("ascii", errors="ignore")
        except OSError as error:
            raise self._error(key, f"cannot read {location}: {error.strerror}") from None
        if (self._get(f"{store}.type") or "PEM").upper() != "PEM" or not _PEM_BLOCK.search(text):
            raise self._error(
                key,
                f"{location} must be a PEM file, with {store}.type=PEM. To convert it: "
                f"'{conversion.format(file=location)}'",
            )
        return text


def _jaas_options(text: str) -> dict[str, str] | None:
    options = {}
    end = 0
    for option in _JAAS_OPTION.finditer(text):
        if option.start() != end:
            return None
        end = option.end()
        name, double, single, bare = option.groups()
        quoted = double if double is not None else single
        options[name] = re.sub(r"\\(.)", r"\1", quoted, flags=re.S) if quoted is not None else bare
    return None if text[end:].strip() else options
