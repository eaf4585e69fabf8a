"""Packages that vouch for stages, such as by their hardware: found by their metadata.

What a stage runs is its own word: whoever alters it can have it say otherwise. A machine that
measures what it starts, and signs that with a key its maker vouches for, says it in its stead. How
it does so is for a package to know, which names an `Attestation` among its entry points::

    [project.entry-points."dpstream.attestations"]
    tpm = "our_package:attestation"

On the stage's machine ``dpstream run STAGE JOB --attestation tpm`` asks it for a document, and
wherever ``dpstream verify-stage JOB --attestation tpm`` is run it is asked what the document shows.
"""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Protocol, runtime_checkable

from pipeline.errors import WRONG_INPUT, DpstreamError
from pipeline.printable import error_line
from topics.signed import DOCUMENT_MAX

GROUP = "dpstream.attestations"
"""Of entry points: the name of a scheme, and where its `Attestation` is."""


class AttestationError(DpstreamError):
    """There is no such scheme here, or it does not vouch; the message says why and what to do."""

    exit_code = WRONG_INPUT


@runtime_checkable
class Attestation(Protocol):
    """A scheme by which a machine vouches for what it runs."""

    def document(self, binding: bytes) -> bytes:
        """What the machine that this runs on says of itself, for 32 bytes that it has to be about.

        At most `DOCUMENT_MAX` bytes, which anybody may read.

        Raises:
            Exception: it says nothing; then the stage does not start.
        """

    def verify(self, document: bytes, binding: bytes) -> str:
        """What a document shows, in a sentence such as "TPM 81a0f3 measured image 77cd10".

        Raises:
            Exception: it is not genuine, is about something else than `binding`, or shows a machine
                that should not be trusted; the message says which.
        """


def find_attestation(scheme: str) -> Attestation:
    """The scheme that an installed package offers under a name.

    Raises:
        AttestationError: none does, or several do, or it cannot be used.
    """
    found = {entry.value: entry for entry in entry_points(group=GROUP, name=scheme)}
    if len(found) != 1:
        offered = sorted({entry.name for entry in entry_points(group=GROUP)})
        raise AttestationError(
            f"{'several packages offer' if found else 'no installed package offers'} attestation "
            f"{scheme} (entry points {GROUP}): there are {', '.join(offered) or 'none'}"
        )
    (entry,) = found.values()
    try:
        loaded = entry.load()
    except Exception as error:
        raise AttestationError(
            f"attestation {scheme}, {entry.value}, cannot be imported: {error_line(error)}"
        ) from error
    if not isinstance(loaded, Attestation):
        raise AttestationError(
            f"attestation {scheme}, {entry.value}, has no methods document and verify"
        )
    return loaded


def document_of(scheme: str, attestation: Attestation, binding: bytes) -> bytes:
    """What a scheme says of the machine that this runs on.

    Raises:
        AttestationError: it says nothing, or too much.
    """
    try:
        document = attestation.document(binding)
    except Exception as error:
        raise AttestationError(
            f"attestation {scheme} does not vouch for this machine: {error_line(error)}"
        ) from error
    if not isinstance(document, bytes) or not 1 <= len(document) <= DOCUMENT_MAX:
        raise AttestationError(
            f"attestation {scheme} gives no document of 1 to {DOCUMENT_MAX:,} bytes"
        )
    return document
