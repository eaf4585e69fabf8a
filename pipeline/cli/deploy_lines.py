"""Print the plan of a deployment: what would be created and changed, and its cost."""

from __future__ import annotations

from collections.abc import Iterator

from dpstream.pipeline.cli.jobs import length, promised
from dpstream.pipeline.cli.output import guarantee_pairs, print_pairs, print_table, print_text
from dpstream.pipeline.jobs.budgets import BudgetAccount
from dpstream.pipeline.operations.deploy_plan import DeployPlan, Step
from dpstream.randomizers.guarantee import rounded_down, rounded_up


def show_deploy_plan(plan: DeployPlan) -> None:
    job = plan.deployed
    stays = plan.running is not None and plan.deployed is plan.running
    runs = " (already deployed)" if stays else ""
    print_text(f"{job.name}{runs}: {job.protocol}, {length(job)}", "bold")
    print_text(_step(plan))
    if plan.difference and plan.running is not None:
        print_text(f"\ndifference from deployment {plan.running.deployment.hex()[:8]}", "bold")
        for line in plan.difference:
            print_text(f"  {line}")
    if plan.topics:
        copies = job.topics.replication
        replication = "the cluster's replication" if copies is None else f"replication {copies}"
        print_text(f"\ntopics {job.name}.*, with {replication}", "bold")
        print_table(
            {
                "topic": lambda topic: topic.wanted.name.removeprefix(f"{job.name}."),
                ">partitions": "wanted.partitions",
                "retention": "retention_in_words",
                "": "action_text",
            },
            plan.topics,
        )
    print_text("\nprivacy of the running job" if stays else "\nprivacy", "bold")
    print_pairs([*guarantee_pairs(promised(job)), *_accounts(plan)])
    if plan.sets_budget:
        print_text(f"\nwould set the {budget_change(plan)}")


def _step(plan: DeployPlan) -> str:
    if plan.rejection is not None:
        return "it would be rejected; nothing would be done"
    match plan.step:
        case Step.START:
            return "a deployment would start"
        case Step.REPLACE:
            return "a new deployment would replace the running one"
        case Step.CHANGE:
            return "the running deployment would continue with new settings"
        case Step.NOTHING:
            return "nothing would be done"


def _accounts(plan: DeployPlan) -> Iterator[tuple[str, str]]:
    yield "charged", f"population {plan.deployed.population_name}, over all jobs and deployments:"
    for account in plan.accounts:
        if account.earlier or account.charged != 0 or account.allowed:
            unbound = "no budget for all time" if plan.periods else "no budget"
            yield "", _account(account, plan.deployed.deployment.hex(), unbound)
    yield from (("", f"the budget is {limit}: {text}") for limit, text in plan.periods)


def _account(account: BudgetAccount, deployment: str, unbound: str) -> str:
    earlier, charged = _amount(account.earlier), _amount(account.charged)
    text = f"{account.quantity} {charged} by this deployment, {earlier} by others"
    if account.filtered is not None:
        text = f"{text}, {_amount(account.filtered)} composed by the budget's filter"
    if account.binding is None:
        return f"{text}; {unbound} is declared"
    left = ""
    if account.remaining is not None:
        left = f", {rounded_down(account.remaining)} of it remaining"
    own = account.binding.deployment == deployment and not account.binding.operator
    source = "" if own else f", as {account.binding.who}"
    return f"{text}; the budget is {_amount(account.allowed)}{left}{source}"


def budget_change(plan: DeployPlan) -> str:
    changes = []
    for account in plan.accounts:
        declared = plan.before.get(account.quantity)
        before = "none"
        if declared is not None:
            before = f"{rounded_up(getattr(declared, account.quantity))} ({declared.who})"
        after = "none" if account.allowed is None else rounded_up(account.allowed)
        if declared is not None or account.allowed:
            changes.append(f"{account.quantity} {before} -> {after}")
    people = plan.deployed.population_name
    return f"budget of population {people}, for all jobs: {', '.join(changes) or 'none -> none'}"


def _amount(value: float | None) -> str:
    return "unlimited" if value is None else rounded_up(value)
