"""How protocols look side by side, the choice of one, and what holds with fewer contributors."""

from __future__ import annotations

from collections.abc import Sequence

from dpstream.pipeline.cli.output import number, say, say_pairs, say_table
from dpstream.pipeline.planning.comparison import Compared, Recommendation
from dpstream.pipeline.planning.outlook import Outlook
from dpstream.pipeline.planning.speeds import DEVICES


def show_comparison(found: Sequence[Compared], recommended: Recommendation | None) -> None:
    """Print a row for every protocol, and which of them is recommended."""
    say("\nprotocols that could do this job", "bold")
    say_table(
        ["", "protocol", ">changes", ">error", ">central", ">local", ">sent", ">bytes", ">CPU s"],
        (
            [
                f"{place}{'*' if each.expected.planned else ''}",
                each.expected.protocol,
                "all" if each.expected.changes is None else each.expected.changes,
                each.expected.rmse,
                f"{each.central_epsilon:.3g}",
                "none" if each.local_epsilon is None else f"{each.local_epsilon:.3g}",
                each.expected.messages_per_user,
                each.bytes_per_user,
                each.cpu_seconds,
            ]
            for place, each in enumerate(found, 1)
        ),
    )
    say(
        "* this job; error: root mean squared, in users; central: epsilon against the analyst of "
        "all epochs together, local: against whoever keeps a device's messages together; sent: "
        "messages of a user; CPU s: of a million users, on one core of this machine, by "
        f"{DEVICES:,} of them"
    )
    say_pairs((f"{place} trusts", each.expected.trusted) for place, each in enumerate(found, 1))
    if len(found) == 1 and recommended is None:
        name = found[0].expected.protocol
        say(f"no other protocol was compared: {name} names none that answers the same")
    if recommended is not None:
        _show_recommendation(found, recommended)


def _show_recommendation(found: Sequence[Compared], recommended: Recommendation) -> None:
    say("\nrecommended", "bold")
    name = "none"
    if recommended.chosen is not None:
        name = _name(found, recommended.chosen)
    say(f"{name}: {recommended.why}")
    for place, why in recommended.why_not:
        say(f"not {_name(found, place)}: {why}")


def _name(found: Sequence[Compared], place: int) -> str:
    return f"{place + 1} {found[place].expected.protocol}"


def show_outlook(seen: Outlook, minimum: int) -> None:
    """Print what holds with fewer contributors, of whom fewer are honest."""
    say(
        f"\nwith {seen.absent:.0%} absent, and {seen.colluding:.0%} of the others colluding", "bold"
    )
    released = "enough" if seen.released else "too few: every epoch would be withheld"
    say_pairs(
        [
            ("present", f"{number(seen.present)}, {released} for shuffle.minimum, {minimum:,}"),
            ("honest", number(seen.honest)),
            *_epsilons(seen),
        ]
    )


def _epsilons(seen: Outlook) -> list[tuple[str, str]]:
    if not seen.rests_on_them:
        return [("epsilon", f"{_epsilon(seen.epsilon_at_least)}: it rests on nobody else")]
    smallest = f"{number(seen.honest_at_least)} honest contributors"
    pairs = [("epsilon at most", f"{_epsilon(seen.epsilon_at_least)}, of {smallest}: what holds")]
    if seen.released:
        pairs.append(("epsilon expected", f"{_epsilon(seen.epsilon)}, of all who are honest"))
    return pairs


def _epsilon(epsilon: float | None) -> str:
    return "no number: delta is not enough" if epsilon is None else f"{epsilon:.4g}"
