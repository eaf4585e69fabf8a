"""How gateways name to a relay what they send: a topic of raw reports, and of lanes which one."""

from __future__ import annotations

from topics.names import Role


def part_path(role: Role, lane: int | None = None) -> str:
    """The end of a path.

    Args:
        role: of the topic.
        lane: of epochs in lanes; None of others.

    >>> part_path(Role.REPORTS_2), part_path(Role.REPORTS, 2)
    ('reports-2', 'reports/2')
    """
    return role.value if lane is None else f"{role.value}/{lane}"
