"""Print compared protocols, the recommended protocol, and guarantees with fewer contributors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from dpstream.pipeline.cli.output import number, print_pairs, print_table, print_text
from dpstream.pipeline.planning.job_plan import Plan
from dpstream.pipeline.planning.outlook import Outlook
from dpstream.pipeline.planning.recommendation import DEVICES, Compared, Recommendation
from dpstream.pipeline.results.compared_protocols import (
    Alternative,
    best_lines,
    least_error,
    under_another_trust,
)
from dpstream.randomizers.guarantee import format_loss, rounded_up


def show_protocols(plan: Plan) -> None:
    measured = plan.comparison
    expected = [each.expected for each in measured] or plan.alternatives
    depends = any(each.half is not None for each in expected)
    columns: dict[str, Callable[[int], object]] = {
        "": lambda at: f"{at + 1}{'*' if expected[at].planned else ''}",
        "protocol": lambda at: expected[at].protocol,
        ">changes": lambda at: (
            "all" if expected[at].max_changes is None else expected[at].max_changes
        ),
        ">error": lambda at: expected[at].rmse,
        **({">at half": lambda at: _known(expected[at].half)} if depends else {}),
        **{
            f">mean {window.epochs}": partial(_of_window, expected, place)
            for place, window in enumerate(plan.windows)
        },
        ">sent": lambda at: expected[at].messages_per_user,
    }
    note = "* this job; error: RMSE in users; sent: messages per user"
    if depends:
        note += (
            "; sampled_response: error if the share parameters.share of users (0.1 unless set) "
            "has value 1, or an average share has the item or bucket; at half: error if half of "
            "the users have it"
        )
    if plan.windows:
        note += "; mean M: RMSE of means over M epochs"
    if measured:
        columns |= {
            ">central": lambda at: _rounded(measured[at].central_epsilon),
            ">delta": lambda at: rounded_up(measured[at].central_delta),
            ">local": lambda at: _rounded(measured[at].local_epsilon),
            ">bytes": lambda at: measured[at].bytes_per_user,
            ">CPU s": lambda at: measured[at].cpu_seconds,
        }
        present = "" if plan.guarantee.shuffled is None else ", for users present at every epoch"
        note += (
            f"; central, delta: against an analyst who sees all epochs{present}; local: against "
            "an observer who links a device's messages; CPU s: CPU seconds for a million users, "
            f"on one core of this machine, measured with {DEVICES:,} devices"
        )
    else:
        columns |= {">delta": lambda at: rounded_up(expected[at].delta)}
    print_text("\nprotocols that can run this job", "bold")
    print_table(columns, range(len(expected)))
    print_text(note)
    print_pairs((f"{place} trusted", each.trusted) for place, each in enumerate(expected, 1))
    if not measured:
        _show_better(plan)
    elif plan.recommendation is not None:
        _show_recommendation(measured, plan.recommendation)
    elif len(measured) == 1:
        name = expected[0].protocol
        print_text(
            f"no other protocol was compared: {name} has no alternative that gives the same answers"
        )


def _of_window(expected: Sequence[Alternative], place: int, at: int) -> object:
    return _known(expected[at].windows[place])


def _known(error: float | None) -> object:
    return "-" if error is None else error


def _rounded(epsilon: float | None) -> str:
    return "none" if epsilon is None else rounded_up(epsilon, 3)


def _show_better(plan: Plan) -> None:
    if plan.windows:
        print_pairs(best_lines(plan.alternatives, [each.epochs for each in plan.windows]))
    better = least_error(plan.alternatives)
    if better is not None and not better.planned:
        print_text(
            f"{better.title} has a smaller error for single epochs without additional trust: "
            f"{number(better.rmse)} users instead of {number(plan.rmse)}"
        )
        if (rolling := plan.guarantee.rolling) is not None:
            print_text(f"but its guarantee is for one horizon, not {rolling}")
    if (other := under_another_trust(plan.alternatives)) is not None:
        trust = "without a trusted party" if other.needs_no_trust else "trusting the shuffler"
        loss = format_loss(other.epsilon, other.delta)
        print_text(
            f"{trust}: {other.protocol} has an error of {number(other.rmse)} users at {loss}"
        )


def _show_recommendation(found: Sequence[Compared], recommended: Recommendation) -> None:
    print_text("\nrecommended", "bold")
    name = "none"
    if recommended.chosen is not None:
        name = _name(found, recommended.chosen)
    print_text(f"{name}: {recommended.why}")
    for place, why in recommended.why_not:
        print_text(f"not {_name(found, place)}: {why}")


def _name(found: Sequence[Compared], place: int) -> str:
    return f"{place + 1} {found[place].expected.protocol}"


def show_outlook(plan: Plan, seen: Outlook) -> None:
    print_text(
        f"\nepsilon for a user's {plan.guarantee.subject} with {seen.dropout:.0%} of users absent "
        f"and {seen.colluding:.0%} of the others colluding",
        "bold",
    )
    released = "enough" if seen.released else "too few to release any epoch"
    needed = f"shuffle.minimum = {plan.minimum:,}"
    print_pairs(
        [
            ("present", f"{number(seen.present)}, {released} ({needed})"),
            ("honest", number(seen.honest)),
            *_epsilons(seen, always=plan.guarantee.shuffled is not None),
        ]
    )


def _epsilons(seen: Outlook, *, always: bool) -> list[tuple[str, str]]:
    if not seen.rests_on_them:
        return [("epsilon", f"{_epsilon(seen.epsilon_at_least)}: no further assumptions")]
    smallest = f"{number(seen.honest_at_least)} honest users"
    limit = "if that many report at every epoch" if always else "guaranteed"
    pairs = [("epsilon at most", f"{_epsilon(seen.epsilon_at_least)}, with {smallest}: {limit}")]
    if seen.released:
        pairs.append(("epsilon expected", f"{_epsilon(seen.epsilon)}, with all honest users"))
    return pairs


def _epsilon(epsilon: float | None) -> str:
    return "none: delta is too small" if epsilon is None else rounded_up(epsilon, 4)
