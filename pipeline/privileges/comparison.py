"""What of the wanted ACLs a cluster has, and what it allows beyond them."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from dpstream.pipeline.jobs.job_files import Job
from dpstream.pipeline.privileges.bindings import Binding
from dpstream.pipeline.privileges.table import Resource, group_prefix
from dpstream.topics.names import JOBS_TOPIC, LEDGER_TOPIC

_EVERYTHING = "*"
_SHARED = (JOBS_TOPIC, LEDGER_TOPIC)


@dataclass(frozen=True, slots=True)
class Comparison:
    """The ACLs that some roles of a job need, beside those that a cluster has.

    Attributes:
        there: wanted, and on the cluster.
        missing: wanted, and not there.
        beyond: what these principals may do to the job beside what is wanted.
    """

    there: tuple[Binding, ...]
    missing: tuple[Binding, ...]
    beyond: tuple[Binding, ...]


def compare(job: Job, wanted: Iterable[Binding], present: Collection[Binding]) -> Comparison:
    """Compare the ACLs of some principals with those that they need for a job.

    Args:
        job: deployed, or to be.
        wanted: in order.
        present: all that their principals have, of whichever job.
    """
    ordered = tuple(wanted)
    known = frozenset(ordered)
    return Comparison(
        tuple(each for each in ordered if each in present),
        tuple(each for each in ordered if each not in present),
        tuple(
            sorted(each for each in present if each not in known and concerns(each.resource, job))
        ),
    )


def concerns(resource: Resource, job: Job) -> bool:
    """Whether an ACL on a resource is about topics or groups of a job."""
    own = group_prefix(job)
    if resource.name in (_EVERYTHING, *_SHARED):
        return True
    if resource.prefixed and any(each.startswith(resource.name) for each in (own, *_SHARED)):
        return True
    return resource.name.startswith(own)


def removable(
    job: Job, wanted: Iterable[Binding], present: Collection[Binding]
) -> tuple[Binding, ...]:
    """The ACLs to remove with a job: those that are there and that no other job needs.

    The topic of jobs and the ledger are for all of them: who has privileges on another job keeps
    those.
    """
    elsewhere = {each.principal for each in present if not concerns(each.resource, job)}
    return tuple(
        each
        for each in wanted
        if each in present and not (each.resource.name in _SHARED and each.principal in elsewhere)
    )
