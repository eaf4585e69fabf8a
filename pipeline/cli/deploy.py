"""The commands ``dpstream deploy`` and ``undeploy``."""

from __future__ import annotations

import math
import secrets
from pathlib import Path
from typing import Annotated

import typer

from dpstream.pipeline.cli.cluster_and_jobs import cluster_of, name_of
from dpstream.pipeline.cli.command_errors import UsageProblem
from dpstream.pipeline.cli.deploy_lines import budget_change, show_deploy_plan
from dpstream.pipeline.cli.jobs import job_json, length, promised
from dpstream.pipeline.cli.options import AsJson, JobFile, JobName, KafkaConfig, Servers, Yes, ask
from dpstream.pipeline.cli.output import now, plural, print_command, print_json, print_text, tell
from dpstream.pipeline.jobs.budget_declarations import BudgetChange
from dpstream.pipeline.jobs.budgets import endless_warning
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.job_files import Job, load_job
from dpstream.pipeline.jobs.key_files import NoiseKey
from dpstream.pipeline.jobs.sealed import sealing_periods
from dpstream.pipeline.jobs.spare_cells import new_names
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.kafka.connection import NoClusterError
from dpstream.pipeline.kafka.deployed_jobs import find_deployed
from dpstream.pipeline.kafka.topic_reader import TopicReader, read_registry
from dpstream.pipeline.operations import deployments
from dpstream.pipeline.operations.deploy_plan import DeployPlan, Step
from dpstream.pipeline.operations.deployments import carry_out, plan_on
from dpstream.pipeline.operations.losses import loss_on, of_published
from dpstream.pipeline.operations.status.heartbeats import Heartbeats
from dpstream.pipeline.results.compared_protocols import notes_of_deployment
from dpstream.pipeline.results.expected_errors import rounded_horizon, rounding_note
from dpstream.pipeline.stages.topic_uses import stages_of
from dpstream.pipeline.state import (
    collector_key_file,
    noise_key_file,
    sealing_keys_folder,
    signing_key_file,
)
from dpstream.randomizers.guarantee import format_loss
from dpstream.topics.names import Role


def deploy(
    job: JobFile,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace a deployed job of the same name.")
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Show what would be done and changed; write nothing."),
    ] = False,
    set_budget: Annotated[
        str | None,
        typer.Option(
            "--set-budget",
            metavar="POPULATION=EPSILON[,DELTA]",
            help="Limit the total charges to this population, by all jobs. Replaces the smallest "
            "limit that any job file declares. POPULATION=none removes the limit. Asks for "
            "confirmation.",
        ),
    ] = None,
    yes: Yes = False,
    noise_key: Annotated[
        Path | None,
        typer.Option(
            "--noise-key",
            metavar="FILE",
            help="File with the noise key, for a shuffler that adds noise; created if missing. "
            "Default: a file in the local state folder.",
        ),
    ] = None,
    servers: Servers = None,
    kafka_config: KafkaConfig = None,
    as_json: AsJson = False,
) -> None:
    """Create a job's topics and start a deployment. Starts the local broker if needed.

    In a running job, changes to some settings apply in place: shuffle.grace, topics.retention,
    budget, the keys of devices.tokens, and descriptions for readers (title, description, unit,
    labels). New values of a private attribute get its spare cells. Without changes, nothing is
    done. The smallest budget ever declared for a population
    binds all its jobs until --set-budget sets another. Asks for confirmation before --replace ends
    a deployment, and before users are charged again.
    """
    loaded = load_job(job)
    change = None if set_budget is None else _budget_change(set_budget)
    if dry_run:
        _dry_run(loaded, replace, change, noise_key, servers, kafka_config, as_json)
        return
    with cluster_of(servers, kafka_config, start_if_missing=True) as cluster:
        plan = plan_on(
            cluster,
            loaded,
            deployment=secrets.token_bytes(16),
            now=now(),
            replace=replace,
            set_budget=change,
        )
        if plan.rejection is None and not yes:
            if plan.sets_budget:
                ask(
                    f"--set-budget would set the {budget_change(plan)}",
                    "nothing is changed or deployed",
                )
            if (loss := loss_on(cluster, plan)) is not None:
                ask(loss, "nothing is deployed or charged")
        deployed = carry_out(cluster, plan, noise_key)
        where = cluster.connection.bootstrap_servers
        if plan.step is Step.REPLACE and plan.running is not None:
            _warn_of_earlier(cluster, plan.running)
    _warn_of_horizons(plan)
    _note_budget(plan)
    _note_accuracy(plan)
    if as_json:
        print_json(
            {
                **job_json(deployed),
                "bootstrap_servers": where,
                "step": plan.step,
                "difference": plan.difference,
            }
        )
    elif plan.step is Step.CHANGE:
        _print_changes(plan)
    elif plan.step is Step.NOTHING:
        print_text(f"{deployed.name} is already deployed with these settings: nothing to do")
    else:
        _print_deployed(deployed, where, noise_key)


def _dry_run(
    job: Job,
    replace: bool,
    change: BudgetChange | None,
    noise_key: Path | None,
    servers: str | None,
    kafka_config: Path | None,
    as_json: bool,
) -> None:
    deployment = secrets.token_bytes(16)
    try:
        with cluster_of(servers, kafka_config) as cluster:
            plan = plan_on(
                cluster, job, deployment=deployment, now=now(), replace=replace, set_budget=change
            )
    except NoClusterError:
        tell(
            "no local Kafka is running; deploy would start one, and this plan assumes an empty one"
        )
        plan = plan_on(None, job, deployment=deployment, now=now(), set_budget=change)
    if as_json:
        print_json(plan)
    else:
        show_deploy_plan(plan)
    if plan.rejection is not None:
        raise plan.rejection
    _note_budget(plan)
    _note_accuracy(plan)
    file = noise_key or noise_key_file(job.name)
    if plan.deployed.needs_noise_key and plan.starts_over and file.exists():
        NoiseKey.read(file)


def _budget_change(text: str) -> BudgetChange:
    population, _, amounts = text.rpartition("=")
    if population and amounts == "none":
        return BudgetChange(population, None)
    problem = UsageProblem(
        f"--set-budget: got {text!r}; expected POPULATION=EPSILON or POPULATION=EPSILON,DELTA "
        "with numbers as in a job file's budget, or POPULATION=none"
    )
    try:
        epsilon, *rest = map(float, amounts.split(","))
    except ValueError:
        raise problem from None
    delta = rest[0] if rest else None
    known = len(rest) <= 1 and 0 < epsilon < math.inf and (delta is None or 0 <= delta < 1)
    if not population or not known:
        raise problem
    return BudgetChange(population, epsilon, delta)


def _note_budget(plan: DeployPlan) -> None:
    for account in plan.not_binding:
        assert account.binding is not None
        tell(
            f"note: {account.quantity} is still limited to {account.allowed:g} for population "
            f"{plan.deployed.population_name}, because {account.binding.who}: the larger limit in "
            "the job file has no effect. To change the limit: --set-budget"
        )
    endless = endless_warning(plan.deployed)
    if endless is not None and plan.deployed.horizons is None:
        tell(f"WARNING: {endless}")


def _note_accuracy(plan: DeployPlan) -> None:
    job = plan.deployed
    if plan.starts_over:
        for note in notes_of_deployment(job, job.law):
            tell(f"note: {note}")
        rounding = rounding_note(job.epochs.count, rounded_horizon(job, job.law))
        if rounding is not None:
            tell(f"note: {rounding}")


def _print_changes(plan: DeployPlan) -> None:
    job = plan.deployed
    print_text(f"{job.name} continues as deployment {job.deployment.hex()[:8]} with new settings:")
    for line in plan.difference:
        print_text(f"  {line}")
    if plan.sets_budget:
        print_text(f"  {budget_change(plan)}")
    for topic in plan.topics:
        if topic.configs:
            print_text(f"  topic {topic.wanted.name}: {topic.action_text}")
    if plan.running is not None and plan.running.horizons != job.horizons:
        print_text(f"  now {length(job)}")
        if job.devices is None:
            print_text("running producers use the new settings after a restart")
    for name, labels in (new_names(plan.running, job) if plan.running else {}).items():
        start = job.position_of((job.attributes or {})[name].named[labels[0]])
        if job.devices is None:
            print_text(f"restart running producers before {start}; they count {name} by its values")
        else:
            print_text(f"devices count {name} by its values once they have the new statement")
    print_text("supervised workers restart automatically; restart workers started by hand")


def _print_deployed(deployed: DeployedJob, where: tuple[str, ...], noise_key: Path | None) -> None:
    name = deployed.name
    print_text(
        f"deployed {name} on {','.join(where)}: {length(deployed)}, "
        f"deployment {deployed.deployment.hex()[:8]}"
    )
    if deployed.epochs.renew:
        guarantee = promised(deployed)
        print_text(
            f"privacy charge: {format_loss(guarantee.epsilon, guarantee.delta)} for a user's "
            f"{guarantee.spent_on}"
        )
    key = ""
    if deployed.needs_noise_key:
        key = "" if noise_key is None else f" --noise-key {noise_key}"
        file = noise_key or noise_key_file(name)
        print_text(
            "its shuffle workers share this noise key; anyone with the key can remove the noise"
        )
        print_command(str(file))
    if sealing_periods(deployed):
        print_text(
            "its reports are sealed: a worker opens them with the private keys of its own stage,"
        )
        print_text("which dpstream keygen stored here, unless --keys names another folder")
        print_command(str(sealing_keys_folder()))
    if deployed.signed_description is not None:
        print_text(
            "devices report by themselves: build this public key into their app, so that it can"
        )
        print_text(
            "verify the job's description, which was signed with the private key stored here"
        )
        print_command(deployed.signed_description.signer.hex())
        print_command(str(signing_key_file()))
        print_text("its collectors share this key, to detect a device that reports twice")
        print_command(str(collector_key_file(name)))
    print_text("next, each in its own terminal, unless workers of all jobs are already running:")
    keys = "" if noise_key is None or not key else " --noise-keys FOLDER"
    for stage in stages_of(deployed):
        print_command(f"dpstream run {stage}{keys if stage == 'shuffle' else ''}")
    if deployed.devices is None:
        print_command(f"dpstream produce {name} --input FILE")
    else:
        print_command(f"dpstream collect --job {name}")
    print_command(f"or one worker, for {name} only:")
    print_text(f"or one worker, for {name} only:")
    print_command(f"dpstream run shuffle {name}{key}")


def _warn_of_horizons(plan: DeployPlan) -> None:
    if plan.step is not Step.CHANGE or plan.running is None or plan.deployed.horizons is None:
        return
    before, after = plan.running.horizons, plan.deployed.horizons
    if before is None or after < before:
        tell(
            f"WARNING: running producers of {plan.deployed.name} continue beyond "
            f"{plural(after, 'horizon')}, although no further horizons are charged: restart "
            "them before deploying anything else for this population"
        )


def _warn_of_earlier(cluster: Cluster, earlier: DeployedJob) -> None:
    heartbeats = Heartbeats(earlier)
    for record in TopicReader(cluster, earlier, Role.STATUS).read():
        heartbeats.apply(record)
    workers = [
        f"{worker.stage} {worker.worker}" for worker in heartbeats.workers(now()) if worker.up
    ]
    producers = [
        producer.name for producer in read_registry(cluster, earlier) if producer.last_epoch is None
    ]
    for who, names, ending in (
        ("workers", workers, "supervisors stop the workers that they started; stop the others"),
        ("producers", producers, "their records are now rejected; restart them"),
    ):
        if names:
            listed = ", ".join(names[:8]) + (f" and {len(names) - 8} more" * (len(names) > 8))
            tell(
                f"WARNING: {who} of the replaced deployment {earlier.deployment.hex()[:8]} may "
                f"still be running: {listed}; {ending}"
            )


def undeploy(
    job: JobName,
    delete_topics: Annotated[
        bool,
        typer.Option("--delete-topics", help="Delete the job's topics, including its estimates."),
    ] = False,
    yes: Yes = False,
    servers: Servers = None,
    kafka_config: KafkaConfig = None,
    as_json: AsJson = False,
) -> None:
    """End a deployment. Topics and estimates remain unless --delete-topics is given.

    However, estimates, query, serve, record and replay require a deployed job: run dpstream record
    first to keep a recording that can be read and replayed. Lists the losses, and asks for
    confirmation.
    """
    with cluster_of(servers, kafka_config) as cluster:
        name = name_of(job)
        running = find_deployed(cluster, name)
        lost = 0
        if delete_topics or not yes:
            lost = deployments.published_epochs(cluster, running)
        if not yes:
            _confirm_end(running, lost, delete_topics=delete_topics)
        ended = deployments.undeploy(cluster, name, delete_topics=delete_topics)
        where = ",".join(cluster.connection.bootstrap_servers)
    if as_json:
        body = {"job": ended.name, "deployment": ended.deployment, "deleted": delete_topics}
        print_json(body | ({"deleted_epochs": lost} if delete_topics else {}))
        return
    effect = "its topics remain"
    if delete_topics:
        effect = f"its topics are deleted, with {plural(lost, 'epoch')} of estimates"
    ends = "workers and producers" if ended.devices is None else "workers"
    print_text(f"undeployed {ended.name}: {effect}; stop its {ends}")
    if not delete_topics:
        print_text(
            "The commands estimates, record and replay find only deployed jobs. Before you "
            "undeploy a job whose data you still need: 'dpstream record JOB'. To read the "
            "remaining estimates, as JSON:"
        )
        print_command(f"kcat -C -e -b {where} -t {ended.topic(Role.ESTIMATES)}")
    if ended.needs_noise_key:
        print_text(
            "anyone with its noise key can remove the noise from its counts: delete the file"
        )
        if (file := noise_key_file(ended.name)).exists():
            print_command(f"rm {file}")


def _confirm_end(job: DeployedJob, published: int, *, delete_topics: bool) -> None:
    if delete_topics:
        effect = (
            f"its topics are permanently deleted, with {plural(published, 'epoch')} of estimates"
        )
    else:
        effect = f"its topics remain, but {of_published(published, job.name)}"
    again = ""
    if job.replay_of is None:
        charge = format_loss(promised(job).epsilon, promised(job).delta)
        again = f"; deploying it again charges population {job.population_name} {charge} again"
    ask(
        f"deployment {job.deployment.hex()[:8]} of job {job.name} would end: {effect}{again}",
        f"nothing is changed; {job.name} is still deployed",
    )
