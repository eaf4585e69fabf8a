"""The command ``dpstream init``."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, cast, get_args

import typer

from dpstream.pipeline.cli.command_errors import UsageProblem
from dpstream.pipeline.cli.input_flags import InputFlags, takes_input_flags
from dpstream.pipeline.cli.options import AsJson
from dpstream.pipeline.cli.output import plural, print_command, print_json, print_pairs, print_text
from dpstream.pipeline.jobs.input_formats import AS_IT_IS
from dpstream.pipeline.jobs.measure_keys import Trust
from dpstream.pipeline.planning.first_job import FirstJob, first_job, job_name, predicted_error
from dpstream.pipeline.planning.first_questions import VALUE, FirstAnswers, countable
from dpstream.pipeline.planning.input_profile import InputProfile, profile_input
from dpstream.pipeline.values.durations import Duration, parse_duration
from dpstream.pipeline.whole_files import replaced_whole
from dpstream.topics.names import validate_job_name

_LABELS_SHOWN = 6
_FEW = 0.001
"""Share of users with several values of a column, below which it counts as constant."""


def _named(metavar: str, flag: str, help: str) -> Any:
    return typer.Option(flag, metavar=metavar, help=f"{help} May be repeated.")


@takes_input_flags
def init(
    file: Annotated[
        Path | None,
        typer.Argument(metavar="[FILE]", help="Events or changes: CSV, JSON lines or Parquet."),
    ] = None,
    count: Annotated[
        list[str] | None,
        _named(
            "WHAT",
            "--count",
            "What to count: active users, events of a user, or the name of a column of numbers. "
            "For a log of changes: value.",
        ),
    ] = None,
    event: Annotated[
        list[str] | None, _named("NAME", "--event", "Event that counts. Default: all events.")
    ] = None,
    by: Annotated[
        list[str] | None,
        _named("COLUMN", "--by", "Break down by a column, which stays private."),
    ] = None,
    public: Annotated[
        list[str] | None,
        _named(
            "COLUMN",
            "--public",
            "Break down by a column that everyone may know of every user. The errors are smaller.",
        ),
    ] = None,
    trust: Annotated[
        str | None,
        typer.Option(metavar="none|shuffle", help="Party that may see reports without noise."),
    ] = None,
    epoch: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="Length of an epoch, such as P1D, P1W or '1 month'. Default: one that suits the "
            "input.",
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Name of the job. Default: that of the file.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", metavar="FILE", help="Job file to write. Default: the job's name, .yaml."
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing job file.")] = False,
    as_json: AsJson = False,
    *,
    flags: InputFlags,
) -> None:
    """Write a job file for an input, after three questions.

    Asks which file to read, what is counted, and who is trusted; every answer is also an option.
    Without a terminal, the defaults are used and explained. Reads the values on this machine,
    without noise: nothing is sent, deployed or charged.
    """
    asking = sys.stdin.isatty() and sys.stdout.isatty() and not as_json
    if file is None:
        if not asking:
            raise UsageProblem("the file is missing: dpstream init FILE, such as events.csv")
        file = Path(typer.prompt("1. Which file has the events or changes?"))
    wanted = None if trust is None else _trust(trust)
    length = None if epoch is None else _length(epoch)
    called = job_name(file) if name is None else name
    try:
        validate_job_name(called)
    except ValueError as error:
        raise UsageProblem(f"--name: {error}") from None
    output = Path(f"{called}.yaml") if output is None else output
    if output.exists() and not force:
        raise UsageProblem(f"{output} exists: choose another --output, or replace it with --force")
    profile = profile_input(str(file), flags.over(AS_IT_IS))
    if not as_json:
        _show(profile)
    able = countable(profile)
    given = tuple(dict.fromkeys(count or ()))
    breakdowns, open_to_all = _breakdowns(by or (), public or ())
    if asking:
        given = given or _ask_count(able)
        unasked = by is None and public is None and given != (VALUE,)
        breakdowns = _ask_breakdowns(profile) if unasked else breakdowns
        known = FirstAnswers(given, event=tuple(dict.fromkeys(event or ())), length=length)
        wanted = wanted or _ask_trust(profile, known)
        if unasked:
            open_to_all = _ask_visibility(profile, replace(known, trust=wanted), breakdowns)
    answers = FirstAnswers(
        given or tuple(able)[:1],
        breakdowns,
        open_to_all,
        wanted or "none",
        tuple(dict.fromkeys(event or ())),
        length,
    )
    made = first_job(profile, answers, called)
    _write(made, output)
    if as_json:
        print_json(_to_json(profile, answers, made, output))
        return
    if not asking:
        _explain(answers, profile, chosen=bool(count), trusted=trust is not None)
    for note in made.notes:
        print_text(f"* {note}")
    print_text()
    print_text(f"wrote {output}. Next:", "bold")
    for command in _next_steps(output, file, public=bool(open_to_all), bad=bool(profile.bad)):
        print_command(f"  {command}")


def _trust(text: str) -> Trust:
    for known in get_args(Trust):
        if text == known:
            return cast(Trust, known)
    raise UsageProblem(f"--trust: got {text!r}; expected none or shuffle")


def _length(text: str) -> Duration:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise UsageProblem(f"--epoch: {error}") from None


def _breakdowns(by: Sequence[str], public: Sequence[str]) -> tuple[tuple[str, ...], frozenset[str]]:
    return tuple(dict.fromkeys([*by, *public])), frozenset(public)


def _ask_count(able: dict[str, str]) -> tuple[str, ...]:
    if len(able) < 2:
        return tuple(able)
    print_text()
    print_text("2. What is counted?", "bold")
    print_pairs(able.items())
    return _listed("Names from this list, separated by commas", next(iter(able)), able)


def _ask_breakdowns(profile: InputProfile) -> tuple[str, ...]:
    columns = [column.name for column in profile.labels]
    if not columns:
        return ()
    by = _listed(f"Break down by {', '.join(columns)}, or none", "none", [*columns, "none"])
    return tuple(each for each in by if each != "none")


def _ask_trust(profile: InputProfile, answers: FirstAnswers) -> Trust:
    print_text()
    print_text("3. Who is trusted?", "bold")
    errors = {"none": "", "shuffle": ""}
    if answers.count != (VALUE,):
        for each in get_args(Trust):
            known = replace(answers, trust=each)
            text, _ = predicted_error(profile, known)
            errors[each] = f"; at epsilon {known.epsilon}, predicted error {text}"
    print_pairs(
        [
            ("none", f"devices add the noise themselves{errors['none']}"),
            ("shuffle", f"a shuffler, run by a party that users trust{errors['shuffle']}"),
        ]
    )
    while True:
        (found,) = _listed("none or shuffle", "none", ["none", "shuffle"])[:1]
        return _trust(found)


def _ask_visibility(
    profile: InputProfile, answers: FirstAnswers, by: Sequence[str]
) -> frozenset[str]:
    """Ask of each column who may know it, with the predicted errors of both answers."""
    public = set()
    for column in profile.labels:
        if column.name not in by:
            continue
        asked = replace(answers, by=(column.name,))
        if_private, large = predicted_error(profile, asked, column)
        asked = replace(asked, public=frozenset(asked.by))
        if_public, small = predicted_error(profile, asked, column)
        print_text()
        print_text(
            f"Who may know the {column.name} of each user? The predicted error for "
            f"{next(iter(column.users))}:",
            "bold",
        )
        once = "" if column.several < _FEW else "; later values do not count"
        print_pairs(
            [
                ("private", f"{if_private}; only the user's device knows it"),
                (
                    "public",
                    f"{if_public}, {large / small:.1f} times smaller; everyone may know it, from "
                    f"the user list{once}",
                ),
            ]
        )
        if "public" in _listed("private or public", "private", ["private", "public"]):
            public.add(column.name)
    return frozenset(public)


def _listed(question: str, default: str, known: Sequence[str] | dict[str, str]) -> tuple[str, ...]:
    while True:
        text = str(typer.prompt(question, default=default))
        found = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
        unknown = [each for each in found if each not in known]
        if found and not unknown:
            return found
        print_text(f"unknown: {', '.join(unknown)}; expected {', '.join(known)}")


def _show(profile: InputProfile) -> None:
    rows = len(profile.moments)
    print_text(f"{profile.name}: {plural(rows, 'row')} of {plural(profile.users, 'user')}", "bold")
    pairs = [(role, f"{name} ({why})") for role, name, why in profile.places]
    if profile.has_times:
        pairs.append(("from, to", f"{_day(profile.moments.min())}, {_day(profile.moments.max())}"))
    if profile.events:
        pairs.append(("events", _most(profile.events)))
    if profile.value is not None:
        pairs.append(("values", _most(profile.texts)))
    pairs += [(f"by {each.name}", f"users: {_most(each.users)}") for each in profile.labels]
    pairs += [(f"number {each.name}", _numbers(each.numbers)) for each in profile.numbers]
    if profile.unused:
        pairs.append(("not used", ", ".join(profile.unused)))
    print_pairs(pairs)
    for warning in profile.warnings:
        print_text(f"* {warning}")
    print_text(
        "These are values of users, read on this machine without noise. Nothing was sent or spent; "
        "do not publish them."
    )


def _day(moment: Any) -> str:
    return f"{datetime.fromtimestamp(int(moment) / 1_000_000, UTC):%Y-%m-%d %H:%M} UTC"


def _most(counts: Any) -> str:
    shown = [f"{name} {number:,}" for name, number in list(counts.items())[:_LABELS_SHOWN]]
    rest = len(counts) - len(shown)
    return ", ".join(shown) + (f", and {rest} more" if rest else "")


def _numbers(numbers: Any) -> str:
    filled = numbers[numbers == numbers]  # without NaN
    return f"{filled.min():,g} to {filled.max():,g} in {plural(len(filled), 'row')}"


def _explain(answers: FirstAnswers, profile: InputProfile, *, chosen: bool, trusted: bool) -> None:
    print_text()
    if not chosen:
        others = ", ".join(list(countable(profile))[1:])
        print_text(
            f"* counted: {', '.join(answers.count)}, by default"
            + (f". With --count: {others}" if others else "")
        )
    if not trusted:
        print_text("* trusted party: none, by default. With a trusted shuffler: --trust shuffle")
    unused = [each.name for each in profile.labels if each.name not in answers.by]
    if unused and profile.value is None:
        print_text(
            f"* not broken down by {', '.join(unused)}: --by {shlex.quote(unused[0])}, or --public "
            f"{shlex.quote(unused[0])} if everyone may know it of every user"
        )


def _write(made: FirstJob, output: Path) -> None:
    if not os.access(output.absolute().parent, os.W_OK):
        raise UsageProblem(f"cannot write to {output.absolute().parent}: choose another --output")
    with replaced_whole(output) as part:
        part.write_text(made.text, encoding="utf-8")


def _next_steps(output: Path, file: Path, *, public: bool, bad: bool) -> list[str]:
    job, rows = shlex.quote(str(output)), shlex.quote(str(file))
    skip = " --skip-bad-rows" if bad else ""
    users = "users.csv" if public else None
    return [
        f"dpstream preview {job} --input {rows}{f' --write-users {users}' if users else ''}",
        f"dpstream up {job} --input {rows}{f' --users {users}' if users else ''}{skip} --page",
    ]


def _to_json(
    profile: InputProfile, answers: FirstAnswers, made: FirstJob, output: Path
) -> dict[str, Any]:
    return {
        "input": profile.name,
        "output": output,
        "rows": len(profile.moments),
        "bad_rows": profile.bad,
        "users": profile.users,
        "columns": {role: name for role, name, _ in profile.places},
        "unused": profile.unused,
        "events": profile.events,
        "count": answers.count,
        "by": answers.by,
        "public": sorted(answers.public),
        "trust": answers.trust,
        "job": made.text,
        "notes": made.notes,
    }
