"""How servers of the command line speak TLS."""

from __future__ import annotations

import ssl
from pathlib import Path

from pipeline.cli.errors import UsageProblem


def given_tls(certificate: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """What --tls-cert and --tls-key say; None without them.

    Raises:
        UsageProblem: one of them is missing, or they do not belong together.
    """
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise UsageProblem("--tls-cert and --tls-key are needed together")
    return tls_context(certificate, key)


def tls_context(certificate: Path, key: Path) -> ssl.SSLContext:
    """Of a certificate chain and its private key, in PEM.

    Raises:
        UsageProblem: they cannot be used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    for path in (certificate, key):
        if not path.is_file():
            raise UsageProblem(f"there is no file {path}")
    try:
        # Never None: OpenSSL would ask for the password on the terminal.
        context.load_cert_chain(certificate, key, password="")
    except (ssl.SSLError, OSError) as error:
        raise UsageProblem(
            f"{certificate} and {key} are no certificate with its key, in PEM and without a "
            f"password: {error.strerror or error}"
        ) from None
    return context
