"""Print a plan: guarantee, accuracy and traffic of a job."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise

from dpstream.aggregators.estimate import NORMAL_95
from dpstream.pipeline.cli.comparison_lines import show_outlook, show_protocols
from dpstream.pipeline.cli.output import (
    guarantee_pairs,
    number,
    plural,
    print_pairs,
    print_table,
    print_text,
)
from dpstream.pipeline.planning.crowd_sizes import CrowdsPlan
from dpstream.pipeline.planning.event_previews import BUDGETS, MeasurePreview
from dpstream.pipeline.planning.group_errors import GroupError, MeasureErrors
from dpstream.pipeline.planning.job_plan import ANY_NUMBER, Plan
from dpstream.pipeline.planning.parties import (
    NO_ASSUMPTIONS,
    PartyGuarantee,
    format_success_rate,
)
from dpstream.pipeline.results.expected_errors import rounding_note
from dpstream.pipeline.values.durations import parse_duration
from dpstream.pipeline.values.numeric_values import relative_error_lines
from dpstream.randomizers.guarantee import rounded_up

# Columns of the small plot.
_PLOT_WIDTH = 48
_BARS = "▁▂▃▄▅▆▇█"


def show_plan(plan: Plan) -> None:
    each = "" if plan.guarantee.horizons is None else " in each horizon"
    print_text(f"{plan.job}: {plan.protocol}, {plural(len(plan.epochs), 'epoch')}{each}", "bold")
    rounding = rounding_note(len(plan.epochs), plan.horizon)
    for warning in plan.warnings:
        print_text(f"warning: {warning}")
    print_text("\nprivacy", "bold")
    print_pairs([*guarantee_pairs(plan.guarantee), *_budget(plan)])
    _show_parties(plan)
    if plan.contributors:
        title = f"epsilon for a user's {plan.guarantee.subject}, by number of honest users"
        print_text(f"\n{title}", "bold")
        print_table(
            {
                ">of shuffle.minimum": lambda honest: f"{honest.share:.0%}",
                ">contributors": "contributors",
                ">epsilon": lambda honest: (
                    "none" if honest.epsilon is None else rounded_up(honest.epsilon, 3)
                ),
            },
            plan.contributors,
        )
    if plan.outlook is not None:
        show_outlook(plan, plan.outlook)
    if plan.crowds is not None:
        _show_crowds(plan.crowds)
    print_text(f"\naccuracy with {plural(plan.users, 'user')}, if all report", "bold")
    if any(each.is_mean for each in plan.measures):
        # The error of a mean is in the unit of its number: errors in users would mislead.
        print_pairs(_change_limit(plan))
        _show_measures([(each, size) for each in plan.measures for size in each.sizes])
        _show_users(plan, " (of a mean: relative to the range of its number)")
    else:
        print_pairs(_accuracy(plan))
        if len(plan.epochs) > 1:
            _show_epochs(plan)
        if groups := [(each, size) for each in plan.measures for size in each.groups]:
            print_text("\nroot mean squared error by size of group", "bold")
            _show_measures(groups)
        _show_users(plan)
    if plan.changes:
        _show_changes(plan)
    if plan.comparison or plan.alternatives:
        show_protocols(plan)
    if plan.poisoning_bound is not None:
        _show_poisoning_bound(plan.poisoning_bound)
    _show_traffic(plan)
    if plan.constants:
        print_text("\nconstants", "bold")
        names = list(plan.constants[0])
        print_table(
            [f">{name}" for name in names],
            ([_constant(row[name]) for name in names] for row in plan.constants),
        )
    for note in (*([] if rounding is None else [rounding]), *plan.notes):
        print_text(f"\nnote: {note}")


def _show_measures(rows: Sequence[tuple[MeasureErrors, GroupError]]) -> None:
    print_table(
        {
            "measure": lambda row: row[0].name,
            ">users": lambda row: f"{row[1].users:,}",
            ">error": lambda row: (
                f"{row[1].rmse:,.3g}" if row[0].is_mean else f"{number(row[1].rmse)} users"
            ),
            ">of the users": lambda row: "-" if row[0].is_mean else _percent(row[1].relative),
            ">of the range": lambda row: _percent(row[1].relative) if row[0].is_mean else "-",
        },
        rows,
    )


def _percent(share: float) -> str:
    """Return a share with one decimal, or with as many as it takes to differ from 0.

    >>> _percent(0.0123), _percent(0.00022)
    ('1.2%', '0.02%')
    """
    decimals = 1 if share >= 0.0005 or share <= 0 else -math.floor(math.log10(100 * share))
    return f"{share:.{decimals}%}"


def _show_epochs(plan: Plan) -> None:
    deviations = [epoch.standard_error for epoch in plan.epochs]
    print_pairs(
        [
            (f"epochs 1 to {len(deviations):,}", _sparkline(deviations, _PLOT_WIDTH)),
            ("", f"standard error, 0 to {number(max(deviations))} users"),
        ]
    )


def _show_poisoning_bound(one: float) -> None:
    print_text(
        "\napproximate maximum effect on an estimate if malicious devices lie in every epoch",
        "bold",
    )
    print_pairs([("one device", _users(one)), ("a thousand", _users(1_000 * one))])


def _users(users: float) -> str:
    return f"{users:,.1f} users" if users < 100 else f"{users:,.0f} users"


def _show_users(plan: Plan, relative: str = "") -> None:
    if plan.most_users is not None:
        print_text("\nmaximum users for a root mean squared error", "bold")
        print_pairs([(f"of at most {number(plan.most_users.error)} users", _max_users(plan))])
    print_text(f"\nminimum users for a root mean squared error{relative}", "bold")
    print_pairs(_users_needed(plan))


def _show_crowds(crowds: CrowdsPlan) -> None:
    print_text(f"\n{plural(crowds.crowds, 'crowd')}", "bold")
    losses = crowds.contents_epsilon, crowds.epsilon, crowds.delta
    contents, sizes, delta = map(rounded_up, losses)
    print_pairs(
        [
            ("epsilon per epoch", f"{contents} for a user's messages"),
            (
                "",
                f"{sizes} for the sizes of all crowds, delta {delta}; their sum is the epsilon "
                "above",
            ),
            (
                "messages deleted",
                f"in each crowd, {number(crowds.shift)} on average and at most "
                f"{number(crowds.most_lost)} (except with probability {crowds.delta:g})",
            ),
            ("size of a crowd", f"± {number(half_width(crowds.deviation))} users"),
        ]
    )
    print_table(
        {
            ">users per crowd": "users",
            ">lost": lambda each: f"{each.lost:.1%}",
            ">error per item": lambda each: _share(each.rmse, each.users),
            ">suppressed": lambda each: f"{each.suppressed:.1%}",
        },
        crowds.sizes,
    )


def _budget(plan: Plan) -> Iterator[tuple[str, str]]:
    if plan.budget is not None:
        horizons = plural(plan.budget.horizons, "horizon")
        charged, period = f"{horizons}, {rounded_up(plan.budget.charged)} in total", ""
        if plan.budget.period is not None:
            period = f" in {parse_duration(plan.budget.period).any_period()}"
            charged = f"this job counts as {rounded_up(plan.budget.charged)}, for {horizons}"
        if plan.guarantee.horizons is None:
            charged = f"this job counts as {rounded_up(plan.budget.charged)}"
        text = f"epsilon {rounded_up(plan.budget.epsilon)}{period}: {charged}; "
        text += "earlier charges are checked"
        yield "budget", f"{text} at deploy"


def _accuracy(plan: Plan) -> Iterator[tuple[str, str]]:
    worst = max(plan.epochs, key=lambda epoch: epoch.standard_error)
    if plan.cells is not None and plan.predicted_error is not None:
        yield "counted", plan.cells
        alone = f"; {number(plan.noise_error)} from noise only"
        unclipped = alone if plan.noise_error != plan.predicted_error else ""
        error = _share(plan.predicted_error, plan.users)
        yield "mean absolute error, clipped at 0", f"{error}{unclipped}"
    of = "" if plan.share is None else f", if {plan.share:.3g} of the users have the value"
    yield "root mean squared error", f"{_share(plan.rmse, plan.users)}{of}"
    if plan.half_rmse is not None:
        yield "  if half of them have it", _share(plan.half_rmse, plan.users)
    yield from relative_error_lines(plan.share_rmses or plan.rmse, plan.users)
    yield "95 % interval", f"± {_share(half_width(plan.rmse), plan.users)}"
    yield from _change_limit(plan)
    if plan.messages_unit == "epoch":
        return
    yield (
        f"largest, in epoch {worst.epoch:,}" + (f" ({worst.begins})" if worst.begins else ""),
        f"± {_share(half_width(worst.standard_error), plan.users)}",
    )
    published = ""
    if plan.published_bound is not None:
        published = f"; by the paper's theorem, ± {number(plan.published_bound)}"
    yield (
        "all epochs, in 19 of 20 runs",
        f"± {_share(plan.largest_error, plan.users)}{published}",
    )
    for window in plan.windows:
        error = "unknown" if window.rmse is None else _share(window.rmse, plan.users)
        yield f"means over {window.epochs:,} epochs", error
    if plan.smoothed_rmse is not None:
        yield "smoothed, at the end", f"{_share(plan.smoothed_rmse, plan.users)}"


def _change_limit(plan: Plan) -> Iterator[tuple[str, str]]:
    if plan.assumption is not None:
        yield "  change limit", plan.assumption


def _show_changes(plan: Plan) -> None:
    print_text("\nerror by parameters.max_changes, including exhausted users", "bold")
    print_table(
        {
            ">changes": "max_changes",
            ">noise": "noise",
            ">freezing bias": "bias",
            ">together": lambda choice: _share(choice.rmse, plan.users),
            ">users exhausted": lambda choice: f"{choice.exhausted:.2%}",
            "": lambda choice: "best" if choice.best else "",
        },
        plan.changes,
    )


def show_changes(previews: Sequence[MeasurePreview], max_changes: int | None) -> None:
    print_text("\nusers by number of changes", "bold")
    print_table(
        ["measure", *(f">at most {budget}" for budget in BUDGETS)],
        ([each.name, *(f"{share:.0%}" for share in each.within)] for each in previews),
    )
    print_pairs((each.name, each.advice(max_changes)) for each in previews)


def _show_traffic(plan: Plan) -> None:
    epochs = len(plan.epochs) if plan.messages_unit == "epoch" else 1
    unit = "in every epoch" if plan.messages_unit == "epoch" else "over all epochs"
    print_text(f"\ntraffic per user {unit}", "bold")
    print_pairs(
        [
            ("reports", f"{plan.messages_per_user:,.1f}"),
            ("bytes", f"{plan.bytes_per_user / epochs:,.1f}, without headers"),
        ]
    )


def _users_needed(plan: Plan) -> Iterator[tuple[str, str]]:
    anyway = [needed.error for needed in plan.users_needed if needed.users == plan.minimum]
    if anyway:
        yield (
            f"of {100 * min(anyway):.3g}%{' or more' if len(anyway) > 1 else ''}",
            f"{number(plan.minimum)}, the minimum for a window",
        )
    for needed in plan.users_needed:
        if needed.users is None:
            yield f"of {100 * needed.error:.3g}%", "unreachable"
        elif needed.error not in anyway:
            yield f"of {100 * needed.error:.3g}%", number(needed.users)


def _max_users(plan: Plan) -> str:
    assert plan.most_users is not None
    most = plan.most_users.users
    if most is None:
        return f"none: {plural(plan.minimum, 'user')} (shuffle.minimum) already have a larger error"
    if most == ANY_NUMBER:
        return "any number of users: the error does not grow with their number"
    return f"up to {plural(most, 'user')}: the error grows with their number"


def half_width(standard_error: float) -> float:
    return NORMAL_95 * standard_error


def _share(error: float, users: int) -> str:
    return f"{number(error)} users ({error / users:.1%})"


def _constant(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.6f}"


def _show_parties(plan: Plan) -> None:
    parties = plan.parties
    print_text("\nmaximum that each party can learn about a user", "bold")
    guessing = (
        f"which of two {'streams of values' if len(plan.epochs) > 1 else 'values'} a user has"
    )
    if plan.guarantee.only_removal:
        guessing = "whether a user has any items"
    horizon = "" if plan.guarantee.horizons is None else " in one horizon"
    print_text(f"maximum success rate of guessing {guessing}{horizon} (baseline: 50 in 100)")
    print_table(
        {
            "party": "party",
            ">success rate": _success_rate,
            ">epsilon": _party_epsilon,
            ">delta": _party_delta,
            "sees": "sees",
        },
        parties,
    )
    protected = [each for each in parties if each.epsilon is not None]
    for assumed, names in _by_assumption(protected):
        verb = "" if assumed == NO_ASSUMPTIONS else "relies on this: "
        print_text(f"{', '.join(names)}: {verb}{assumed}")


def _by_assumption(parties: Sequence[PartyGuarantee]) -> list[tuple[str, list[str]]]:
    assumed = dict.fromkeys(each.assumes for each in parties)
    return [(each, [party.party for party in parties if party.assumes == each]) for each in assumed]


def _success_rate(party: PartyGuarantee) -> str:
    if party.whole_epsilon is None:
        return "always"
    return format_success_rate(party.whole_epsilon, party.whole_delta)


def _party_epsilon(party: PartyGuarantee) -> str:
    return "no bound" if party.whole_epsilon is None else rounded_up(party.whole_epsilon, 4)


def _party_delta(party: PartyGuarantee) -> str:
    return "-" if party.whole_epsilon is None else rounded_up(party.whole_delta)


def _sparkline(values: Sequence[float], width: int) -> str:
    """Return at most `width` bars, scaled from 0; each shows the maximum of consecutive values.

    >>> _sparkline([1, 2, 4, 8], 4), _sparkline([1, 2, 4, 8], 2), _sparkline([0.0, 0.0], 9)
    ('▁▂▄█', '▂█', '▁▁')
    """
    count = min(width, len(values))
    bounds = [len(values) * part // count for part in range(count + 1)] if count else [0]
    shown = [max(values[low:high]) for low, high in pairwise(bounds)]
    top = max(shown, default=0.0) or 1.0
    steps = len(_BARS)
    return "".join(_BARS[max(0, min(steps, -int(-steps * each // top)) - 1)] for each in shown)
