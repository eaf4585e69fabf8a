"""Deployed jobs in the compacted topic ``dpstream.jobs``, which has one record per name.

A job is deployed only after its charge is a valid entry of the ledger. An interruption can
therefore leave a charge without a deployment, but never a deployment without a charge.
"""

from __future__ import annotations

from dataclasses import replace as replaced
from datetime import UTC, datetime
from pathlib import Path

from dpstream.pipeline.jobs.budget_declarations import BudgetChange
from dpstream.pipeline.jobs.budgets import Charge
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.descriptions import (
    described,
    is_up_to_date,
    restated,
    signing_key_at,
)
from dpstream.pipeline.jobs.job_files import Job
from dpstream.pipeline.jobs.job_phases import phase_key
from dpstream.pipeline.jobs.jobs_topic import LATEST
from dpstream.pipeline.jobs.key_files import CollectorKey, NoiseKey
from dpstream.pipeline.kafka.broker_clock import own_milliseconds
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.kafka.deployed_jobs import find_deployed
from dpstream.pipeline.kafka.stored_topics import topic_ids
from dpstream.pipeline.kafka.topic_reader import TopicReader
from dpstream.pipeline.ledger.ledger_topic import (
    append_declared,
    read_spending,
    write_entries,
    write_receipt,
    write_with_receipt,
)
from dpstream.pipeline.ledger.spending import Spending
from dpstream.pipeline.ledger.writing import (
    of_charge,
    of_deployment,
    of_end,
)
from dpstream.pipeline.operations.deploy_plan import DeployPlan, Step, plan_deployment
from dpstream.pipeline.results.follow import EstimateReader
from dpstream.pipeline.stages.admission import Rejection
from dpstream.pipeline.stages.decision_log import DecisionLog
from dpstream.pipeline.stages.stage_builder import admission_of
from dpstream.pipeline.state import collector_key_file, noise_key_file, signing_key_file
from dpstream.topics.names import JOBS_TOPIC, LEDGER_TOPIC, Role, topic_name


def plan_on(
    cluster: Cluster | None,
    job: Job,
    *,
    deployment: bytes,
    now: int,
    replace: bool = False,
    set_budget: BudgetChange | None = None,
) -> DeployPlan:
    """Plan the deployment of a job on a cluster without writing anything.

    Arguments and errors are those of `deploy`, except that a rejection is part of the plan, and
    that None as `cluster` means an empty cluster.
    """
    if cluster is None:
        return plan_deployment(
            Spending(), {}, job, deployment=deployment, now=now, set_budget=set_budget
        )
    names = [topic.name for topic in job.topic_settings().values()]
    return plan_deployment(
        read_spending(cluster),
        cluster.existing_topics([*names, JOBS_TOPIC, LEDGER_TOPIC]),
        job,
        deployment=deployment,
        now=now,
        replace=replace,
        set_budget=set_budget,
        latest=lambda running: latest_epoch(cluster, running, now),
    )


def deploy(
    cluster: Cluster,
    job: Job,
    *,
    deployment: bytes,
    now: int,
    replace: bool = False,
    noise_key: Path | None = None,
) -> DeployedJob:
    """Create a job's topics and start a deployment at their current end offsets.

    A recurring job gets as many horizons as its budget allows, and is charged for them. Under the
    name of a running job, only operator settings change, and the deployment continues.

    `deployment` is 16 random bytes, and `now` is in milliseconds since 1970. `replace` allows
    replacing a deployment of the same name. The file `noise_key` (default: `noise_key_file`) is
    created if it is missing.

    Raises:
        DeploymentError: Another job is deployed under this name.
        ClusterError: A topic exists with another number of partitions.
        BudgetError: The population's charges would exceed its budget limit.
        WrongKeyError: The file does not contain a key, or other users have access to it.
    """
    plan = plan_on(cluster, job, deployment=deployment, now=now, replace=replace)
    return carry_out(cluster, plan, noise_key)


def carry_out(cluster: Cluster, plan: DeployPlan, noise_key: Path | None = None) -> DeployedJob:
    if plan.rejection is not None:
        raise plan.rejection
    if plan.step is Step.NOTHING:
        return plan.deployed
    if plan.step is Step.CHANGE and not is_up_to_date(plan.deployed):
        plan = replaced(plan, deployed=restated(plan.deployed, signing_key_at(signing_key_file())))
    cluster.create_topics(topic.wanted for topic in plan.topics if topic.found is None)
    cluster.alter_topics(
        {topic.wanted.name: topic.configs for topic in plan.topics if topic.configs}
    )
    if plan.step is Step.CHANGE:
        _rewrite(cluster, plan, plan.now)
        return plan.deployed
    deployed = plan.deployed.model_copy(
        update={
            "start_offsets": {
                role: tuple(cluster.end_offsets(topic.name))
                for role, topic in plan.deployed.topic_settings().items()
            },
            "topic_ids": topic_ids(cluster, plan.deployed),
        }
    )
    if deployed.needs_noise_key:
        key = NoiseKey.at(noise_key or noise_key_file(deployed.name))
        deployed = deployed.model_copy(update={"noise_key": key.digest})
    if deployed.devices is not None:
        secret = CollectorKey.at(collector_key_file(deployed.name))
        deployed = described(
            deployed.model_copy(update={"collector_key": secret.digest}),
            signing_key_at(signing_key_file()),
        )
    replaces = None if plan.running is None else plan.running.deployment.hex()
    draft = of_deployment(deployed, plan.declared, deployed.deployed_at, replaces=replaces)
    state = write_entries(cluster, draft, deployed.topics.replication)
    _append_declared_budgets(cluster, plan)
    _append_charge(cluster, Charge.of(deployed))
    _append_job(cluster, deployed)
    write_receipt(cluster, deployed.deployment.hex(), state, deployed.deployed_at)
    return deployed


def _append_declared_budgets(cluster: Cluster, plan: DeployPlan) -> None:
    """Append copies of the declared budgets; these must precede the copy of a charge."""
    for declared in plan.declared:
        append_declared(cluster, declared)


def _rewrite(cluster: Cluster, plan: DeployPlan, now: int) -> None:
    """Rewrite a running job's record.

    At any time during this, users are charged at least the privacy loss that the job can cause.
    """
    assert plan.running is not None
    job, before, after = plan.deployed, plan.running.horizons, plan.deployed.horizons
    more = before != after and (after is None or (before is not None and before < after))
    about = job.deployment.hex()
    if more or plan.declared:
        draft = of_deployment(job, plan.declared, now, charged=more)
        state = write_entries(cluster, draft, job.topics.replication)
        _append_declared_budgets(cluster, plan)
        if more:
            _append_charge(cluster, Charge.of(job))
        write_receipt(cluster, about if more else LATEST, state, now)
    _append_job(cluster, job)
    due = Charge.of(job)
    # Also complete an interrupted deployment.
    if any(each.key == due.key and each.horizons != due.horizons for each in charges(cluster)):
        _append_charge(cluster, due)
        draft = of_charge(job, now)
        write_with_receipt(cluster, draft, now, about=about, replication=job.topics.replication)


def _append_charge(cluster: Cluster, charge: Charge) -> None:
    cluster.append(JOBS_TOPIC, charge.to_bytes(), key=charge.key)


def _append_job(cluster: Cluster, job: DeployedJob) -> None:
    cluster.append(JOBS_TOPIC, job.to_bytes(), key=job.name.encode())


def latest_epoch(cluster: Cluster, job: DeployedJob, now: int) -> int:
    """Return the last epoch that has begun, by manifests, reports and the time `now` (ms)."""
    decisions = DecisionLog(job)
    decisions.apply_all(TopicReader(cluster, job, Role.MANIFESTS).read())
    latest = max(job.first_epoch, decisions.decided.highest)
    admission = admission_of(job)
    for partition in range(job.topics.partitions):
        for record in TopicReader(cluster, job, Role.REPORTS, partition).read():
            addressed = admission.addressed(partition, record.value)
            if not isinstance(addressed, Rejection):
                latest = max(latest, addressed.epoch)
    calendar = job.epochs.calendar
    if calendar is not None:
        latest = max(latest, calendar.epoch_of(datetime.fromtimestamp(now / 1000, UTC)))
    return latest


def charges(cluster: Cluster) -> list[Charge]:
    return read_spending(cluster).charges


def published_epochs(cluster: Cluster, job: DeployedJob) -> int:
    if job.topic(Role.ESTIMATES) not in cluster.topics():
        return 0
    return sum(1 for _ in EstimateReader(cluster, job).read())


def undeploy(cluster: Cluster, name: str, *, delete_topics: bool = False) -> DeployedJob:
    """End a deployment; its budget remains, as do its topics unless `delete_topics` is set."""
    deployed = find_deployed(cluster, name)
    if LEDGER_TOPIC in cluster.topics():
        write_entries(cluster, of_end(deployed, own_milliseconds()))
    cluster.append(JOBS_TOPIC, None, key=name.encode())
    cluster.append(JOBS_TOPIC, None, key=phase_key(name))
    if delete_topics:
        cluster.delete_topics(topic_name(name, role) for role in Role)
    return deployed
