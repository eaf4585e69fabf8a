"""``dpstream verify-stage``: hold the stages of a job to the rules, from what they leave behind."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from pipeline.cli.cluster_and_jobs import cluster_of, find_job
from pipeline.cli.errors import UsageProblem
from pipeline.cli.options import AsJson, JobName, KafkaConfig, Servers
from pipeline.cli.output import plural, say, say_json, say_pairs
from pipeline.jobs.deployed_job import DeployedJob
from pipeline.jobs.noise_keys import read_noise_key
from pipeline.kafka.cluster import Cluster
from pipeline.kafka.topic_reader import TopicReader
from pipeline.operations.attestations import find_attestation
from pipeline.operations.installed_software import software_of_wheel
from pipeline.operations.stage_verification.attestation import Scheme
from pipeline.operations.stage_verification.evidence import Read, read_evidence
from pipeline.operations.stage_verification.findings import Finding, Verdict
from pipeline.operations.stage_verification.signatures import Expected
from pipeline.operations.stage_verification.verify_stage import Verification, verify_stages

_VIOLATIONS_SHOWN = 5
_KEY = re.compile("[0-9a-f]{64}")


def verify_stage(
    job: JobName,
    expect_version: Annotated[
        str | None,
        typer.Option("--expect-version", metavar="VERSION", help="Of dpstream, on all stages."),
    ] = None,
    wheel: Annotated[
        Path | None,
        typer.Option(
            "--wheel",
            metavar="FILE",
            help="A wheel of dpstream that you have built or checked: stages have to run it.",
        ),
    ] = None,
    signers: Annotated[
        list[str] | None,
        typer.Option(
            "--signer",
            metavar="KEY",
            help="A public key that stages may sign with, beside shuffle.signers of the job; again "
            "for others. Without any the first key of every worker is believed.",
        ),
    ] = None,
    attestation: Annotated[
        str | None,
        typer.Option(
            "--attestation",
            metavar="NAME",
            help="Of an installed package that knows the machines of stages that run with the "
            "same: it has to vouch for every start.",
        ),
    ] = None,
    noise_key: Annotated[
        Path | None,
        typer.Option(
            "--noise-key",
            metavar="FILE",
            help="Of jobs whose shuffle stage adds noise: make it again, and compare.",
        ),
    ] = None,
    raw: Annotated[
        bool,
        typer.Option(
            "--raw",
            help="Read raw reports, too, as far as they are still there, and make windows again.",
        ),
    ] = False,
    servers: Servers = None,
    kafka_config: KafkaConfig = None,
    as_json: AsJson = False,
) -> None:
    """Hold the stages that one has to trust to the rules. Exit code 1 if one is broken.

    What they have decided and released is compared with what they have signed, with the job and
    with the law of its noise. No secret is needed. What cannot be verified without one is said.
    """
    for key in signers or ():
        if not _KEY.fullmatch(key):
            raise UsageProblem(f"--signer {key}: a public key has 64 hexadecimal digits")
    scheme = None
    if attestation is not None:
        scheme = Scheme(attestation, find_attestation(attestation).verify)
    expected = Expected(expect_version, None if wheel is None else software_of_wheel(wheel))
    with cluster_of(servers, kafka_config) as cluster:
        deployed = find_job(cluster, job)
        if deployed.replay_of is not None:
            raise UsageProblem(
                f"job {deployed.name} is a replay of {deployed.replay_of.job}, whose stages "
                f"decided its windows: dpstream verify-stage {deployed.replay_of.job}"
            )
        if noise_key is not None and not deployed.needs_noise_key:
            raise UsageProblem(f"--noise-key: the shuffle stage of {deployed.name} draws no noise")
        found = verify_stages(
            read_evidence(deployed, _reader(cluster, deployed), raw=raw),
            signers=[bytes.fromhex(key) for key in signers or ()],
            expected=expected,
            noise_key=None if noise_key is None else read_noise_key(noise_key),
            scheme=scheme,
        )
    if as_json:
        say_json(found.to_json())
    else:
        _say(found)
    if found.violated:
        raise typer.Exit(1)


def _reader(cluster: Cluster, job: DeployedJob) -> Read:
    """Reads a topic from where the deployment begins, of what is still there."""
    return lambda role, partition: TopicReader(cluster, job, role, partition).read()


def _say(found: Verification) -> None:
    say(
        f"{found.job}, deployment {found.deployment.hex()[:8]}: "
        f"{plural(found.decided, 'epoch')} decided"
    )
    if found.unseen:
        say(f"words of {plural(found.unseen, 'released window')} are not there (any more)")
    say_pairs(pair for finding in found.findings for pair in pairs_of(finding))


def pairs_of(finding: Finding) -> Iterator[tuple[str, str]]:
    """What is said of a rule: its name and what came of it, and below that why."""
    over = f" over {finding.checked:,} {finding.of}" if finding.checked else ""
    match finding.verdict:
        case Verdict.UNKNOWN if not finding.missing:
            said = f"nothing to verify: {finding.promise}"
        case Verdict.UNKNOWN:
            said = f"cannot be verified: {finding.missing}"
        case Verdict.VERIFIED:
            said = f"verified{over}: {finding.promise}"
        case Verdict.VIOLATED:
            said = f"VIOLATED{over}: {finding.promise}"
    yield finding.rule, said
    for each in finding.violations[:_VIOLATIONS_SHOWN]:
        yield "", each.why if each.epoch is None else f"epoch {each.epoch}: {each.why}"
    more = len(finding.violations) - _VIOLATIONS_SHOWN
    if more > 0:
        yield "", f"and {more:,} more"
    if finding.missing and finding.verdict is not Verdict.UNKNOWN:
        yield "", f"not verified: {finding.missing}"
    for note in finding.notes:
        yield "", note
