"""TLS settings of servers that commands start."""

from __future__ import annotations

import ssl
import stat
from contextlib import suppress
from pathlib import Path

from dpstream.pipeline.cli.command_errors import UsageProblem
from dpstream.pipeline.cli.output import tell


def given_tls(certificate: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """Return the TLS context of --tls-cert and --tls-key; None without them.

    Raises `UsageProblem` if only one of them is given, or if they do not match.
    """
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise UsageProblem("--tls-cert and --tls-key require each other: use both or neither")
    warn_of_readers(key)
    return tls_context(certificate, key)


def warn_of_readers(path: Path) -> None:
    """Warn if other users of this machine can read a secret that dpstream did not create.

    This is not an error: the modes of files mounted into containers sometimes cannot be changed.
    """
    with suppress(OSError):
        if path.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH):
            tell(f"other users of this machine can read the secret {path}: 'chmod 600 {path}'")


def tls_context(certificate: Path, key: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    for path in (certificate, key):
        if not path.is_file():
            raise UsageProblem(f"file {path} does not exist")
    try:
        # Not None: OpenSSL would then prompt for the password on the terminal.
        context.load_cert_chain(certificate, key, password="")
    except (ssl.SSLError, OSError) as error:
        raise UsageProblem(
            f"{certificate} and {key}: expected a certificate and its key, in PEM, without a "
            f"password: {error.strerror or error}"
        ) from None
    return context
