"""The commands ``dpstream up`` and ``dpstream demo``: a whole job on this machine."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from dpstream.pipeline.cli.command_errors import UsageProblem
from dpstream.pipeline.cli.commands import installed_commands
from dpstream.pipeline.cli.input_flags import InputFlags, takes_input_flags
from dpstream.pipeline.cli.inputs import ToEpoch, UserList
from dpstream.pipeline.cli.options import (
    AsJson,
    JobFile,
    KafkaConfig,
    Servers,
    SkipBadRows,
    Yes,
    ask,
)
from dpstream.pipeline.cli.output import (
    PrintableConsole,
    console,
    plural,
    print_json,
    print_table,
    print_text,
    silence,
    tell,
)
from dpstream.pipeline.demo import (
    demo_change_log,
    demo_job_file,
    demo_run,
    demo_shuffled_job_file,
    demo_stream_job_file,
)
from dpstream.pipeline.demo.compared_runs import COMPARED, compared, write_comparison
from dpstream.pipeline.demo.devices.run_demo import DemoSettings, run_demo
from dpstream.pipeline.demo.walkthrough import (
    PEOPLE,
    STUDENT,
    WalkthroughScreen,
    explain_estimates,
    explain_guarantee,
    explain_reports,
    explain_statistic,
    values_of,
)
from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job
from dpstream.pipeline.jobs.epoch_words import period
from dpstream.pipeline.jobs.job_files import load_job
from dpstream.pipeline.operations.losses import UnconfirmedLossError
from dpstream.pipeline.operations.restarted_processes import ProcessError
from dpstream.pipeline.operations.signals import SignaledError
from dpstream.pipeline.operations.up.job_run import UpSettings
from dpstream.pipeline.operations.up.outcome import Outcome, next_steps, summary
from dpstream.pipeline.operations.up.run_up import run_up
from dpstream.pipeline.operations.up.screen import Screen
from dpstream.pipeline.plots import PlotError
from dpstream.pipeline.results.curves import curves_of, plotted_query, write_curves
from dpstream.pipeline.results.file_formats import csv_chunks
from dpstream.pipeline.results.published_rows import PublishedRows
from dpstream.pipeline.stages.topic_uses import stages_of
from dpstream.pipeline.whole_files import replaced_whole

Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        metavar="FOLDER",
        help="Folder for estimates.csv and estimates.png. Default: a new folder here.",
    ),
]
Rate = Annotated[float | None, typer.Option(metavar="EPOCHS", help="Maximum epochs per second.")]
Browser = Annotated[
    bool,
    typer.Option(
        "--browser/--no-browser",
        help="Open the live page if this machine has a screen. Its address is always printed.",
    ),
]

_DEMO_FOLDER = Path("dpstream-demo")
_DEMO_CREDIT = "OULAD (Kuzilek, Hlosta and Zdrahal, 2017), CC BY 4.0"
_SIGNALED = 128


@takes_input_flags
def up(
    job: JobFile,
    input: Annotated[
        Path,
        typer.Option(
            "--input",
            metavar="FILE",
            help="Change log, or events: CSV, JSON lines or Parquet.",
        ),
    ],
    output: Output = None,
    rate: Rate = None,
    users: UserList = None,
    to_epoch: ToEpoch = None,
    skip_bad_rows: SkipBadRows = False,
    page: Annotated[
        bool,
        typer.Option(
            "--page", help="Also serve the live page, which stays up until Ctrl-C or SIGTERM."
        ),
    ] = False,
    browser: Browser = True,
    yes: Yes = False,
    servers: Servers = None,
    kafka_config: KafkaConfig = None,
    as_json: AsJson = False,
    *,
    flags: InputFlags,
) -> None:
    """Run a whole job on this machine; compare its estimates with the ground truth.

    Runs the job from deployment to its last estimate. Starts the local broker, a worker for each
    stage and a producer, and stops them all. Asks before replacing a deployed job of the same name,
    which charges its users again. The ground truth is taken from the input and sent nowhere.
    """
    if str(input) == "-":
        raise UsageProblem(
            "up needs the whole input for the ground truth. For a live source, use 'dpstream "
            "deploy', 'dpstream run shuffle', 'dpstream run aggregate', 'dpstream run publish' "
            "and 'dpstream produce --input -'"
        )
    if rate is not None and not rate > 0:
        raise UsageProblem(f"--rate: got {rate:g}; expected a number above 0")
    if page:
        _check_installed("serve")
    settings = UpSettings(
        (job,),
        input,
        servers,
        kafka_config,
        rate,
        page=page,
        users=users,
        to_epoch=to_epoch,
        skip_bad_rows=skip_bad_rows,
        agreed=yes,
        adapted=flags.adapted,
    )
    _run(replace(_watched(settings, browser, as_json), linger=page), output, as_json)


class Demo(StrEnum):
    students = "students"
    devices = "devices"


def demo(
    what: Annotated[
        Demo,
        typer.Argument(
            metavar="[students|devices]",
            help="students: one input, three jobs, end to end. devices: 10,000 devices that "
            "report by themselves, and a page on which your browser is one more.",
        ),
    ] = Demo.students,
    output: Output = _DEMO_FOLDER,
    rate: Rate = None,
    browser: Browser = True,
    servers: Servers = None,
    kafka_config: KafkaConfig = None,
    as_json: AsJson = False,
) -> None:
    """Count 28,785 real students by week, with a privacy limit for each of them.

    Runs three jobs on the same students: two without a trusted party (the published protocol and
    the most accurate one), and one that trusts the shuffler. Then serves the live page of all jobs,
    on a terminal until Ctrl-C. With devices, your browser is one of the devices, until Ctrl-C.
    """
    if what is Demo.devices:
        _check_installed("collect", "serve")
        _demo_devices(browser, servers, kafka_config)
        return
    settings = UpSettings(
        (demo_job_file(), demo_stream_job_file(), demo_shuffled_job_file()),
        demo_change_log(),
        servers,
        kafka_config,
        rate,
        page="serve" in installed_commands(),
        adapted=demo_run(),
    )
    jobs = [
        deploy_job(settings.adapted(load_job(path)), deployed_at=0) for path in settings.job_files
    ]
    if not as_json:
        student = values_of(settings.input, STUDENT, jobs[0].epochs.count)
        _print_screen(explain_statistic(jobs, PEOPLE))
        _print_screen(explain_reports(jobs[1], student))
        print_text()
    _run(_watched(settings, browser, as_json), output, as_json, credit=_DEMO_CREDIT)


def _check_installed(*commands: str) -> None:
    missing = ", ".join(
        f"dpstream {command}" for command in commands if command not in installed_commands()
    )
    if missing:
        raise UsageProblem(
            f"this command requires {missing}, which is not part of this installation"
        )


def _print_screen(screen: WalkthroughScreen) -> None:
    print_text()
    print_text(screen.heading, "bold")
    for line in screen.folded(console().width):
        print_text(line, whole=True)


def _demo_devices(browser: bool, servers: str | None, kafka_config: Path | None) -> None:
    silence("kafka")
    interactive = sys.stdin.isatty() and sys.stdout.isatty()
    settings = DemoSettings(
        servers=servers,
        kafka_config=kafka_config,
        browser=browser and interactive and has_screen(),
    )
    try:
        run_demo(settings, print_text)
    except ProcessError as error:
        tell(f"error: {error}")
        raise typer.Exit(1) from None


def has_screen() -> bool:
    """Return whether this machine has a graphical display for a browser."""
    displays = {"DISPLAY", "WAYLAND_DISPLAY"}
    return sys.platform in ("darwin", "win32") or not displays.isdisjoint(os.environ)


def _watched(settings: UpSettings, browser: bool, as_json: bool) -> UpSettings:
    interactive = sys.stdin.isatty() and sys.stdout.isatty() and not as_json
    return replace(
        settings,
        browser=settings.page and browser and interactive and has_screen(),
        linger=settings.page and interactive,
    )


def _run(
    settings: UpSettings, output: Path | None, as_json: bool, credit: str | None = None
) -> None:

    silence("kafka")
    _check_folder(output or Path())

    def finished(outcomes: Sequence[Outcome], page: str | None) -> None:
        written = [_write(outcome, output, alone=len(outcomes) == 1) for outcome in outcomes]
        if as_json:
            _print_json(outcomes, written)
            _announce(page, tell)
            return
        for outcome, files in zip(outcomes, written, strict=True):
            _show(outcome, files, credit)
        if credit is not None:
            _show_comparison(outcomes, output or Path())
            # Printed last, so that the end of the explanation is on screen.
            published = [(outcome.job, outcome.records) for outcome in outcomes]
            _print_screen(explain_estimates(published, page))
            _print_screen(explain_guarantee([outcome.job for outcome in outcomes]))
        last = outcomes[0].rows[-1].epoch if outcomes[0].rows else 1
        _show_next_steps(settings, outcomes[0].job, last, example=credit is not None)
        _announce(page, lambda line: print_text(line, whole=True))

    def screen() -> Screen:
        return Screen(PrintableConsole(stderr=as_json, highlight=False))

    try:
        try:
            run_up(settings, screen(), finished)
        except UnconfirmedLossError as error:
            # Asked when all processes have ended: Ctrl-C at the prompt leaves no process running.
            ask("\n".join(error.losses), "nothing is deployed or charged")
            run_up(replace(settings, agreed=True), screen(), finished)
    except SignaledError as error:
        tell(f"{error}. The processes have ended, and nothing was written")
        raise typer.Exit(_SIGNALED + error.number) from None
    except ProcessError as error:
        tell(f"error: {error}")
        raise typer.Exit(1) from None


def _announce(page: str | None, show: Callable[[str], None]) -> None:
    """Show the address of a page that stays up, after the results."""
    if page is None:
        return
    # Files and pipes would otherwise receive the results only when the page ends.
    sys.stdout.flush()
    stop = "Ctrl-C" if sys.stdin.isatty() else f"Ctrl-C or SIGTERM (kill {os.getpid()})"
    for line in ("", f"The live page: {page}", f"It stays up until {stop}."):
        show(line)
    sys.stdout.flush()


def _print_json(outcomes: Sequence[Outcome], written: Sequence[Mapping[str, Path]]) -> None:
    summaries = [
        {**outcome.to_json(), "files": files}
        for outcome, files in zip(outcomes, written, strict=True)
    ]
    print_json(summaries[0] if len(summaries) == 1 else summaries)


def _check_folder(folder: Path) -> None:
    existing = folder.absolute()
    while not existing.exists():
        existing = existing.parent
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        raise UsageProblem(f"cannot write to {existing}: choose another folder with --output")


def _write(outcome: Outcome, output: Path | None, *, alone: bool) -> dict[str, Path]:
    """Write the CSV table and plot, in a folder per job if there are several; return the paths."""
    folder = output or Path(f"{outcome.job.name}-{outcome.job.deployment.hex()[:8]}")
    if not alone:
        folder = folder / outcome.job.name
    folder.mkdir(parents=True, exist_ok=True)
    files = {"estimates": folder / "estimates.csv"}
    job, records = outcome.job, outcome.records
    with replaced_whole(files["estimates"]) as part, part.open("wb") as file:
        file.writelines(
            csv_chunks(PublishedRows.of(job, ground_truths=outcome.ground_truths), records)
        )
    plot = folder / "estimates.png"
    query = plotted_query(job.domain, None, records)
    try:
        write_curves(
            plot, job, query.counts_query, records, curves_of(query, records, outcome.known)
        )
        files["plot"] = plot
    except PlotError as error:
        tell(str(error))
    return files


def _show(outcome: Outcome, files: Mapping[str, Path], credit: str | None) -> None:
    print_text()
    print_text(
        f"{outcome.job.name}: {plural(len(outcome.rows), period(outcome.job))} of "
        f"{outcome.users:,} {outcome.job.people} in {outcome.seconds:.1f} s",
        "bold",
    )
    credits = {} if credit is None else {"data": credit}
    pairs = {**dict(summary(outcome)), **credits, **files}
    width = max(map(len, pairs))
    for about, what in pairs.items():
        print_text(f"  {about:<{width}} {what}")


def _show_comparison(outcomes: Sequence[Outcome], folder: Path) -> None:
    print_text()
    print_text("comparison", "bold")
    print_table(
        [">" * (place > 0) + name for place, name in enumerate(COMPARED)], compared(outcomes)
    )
    picture = folder / "comparison.png"
    try:
        write_comparison(outcomes, picture)
    except PlotError:  # already reported for each job
        return
    print_text(f"all jobs: {picture}")


def _show_next_steps(
    settings: UpSettings, job: DeployedJob, last_epoch: int, *, example: bool
) -> None:

    # Not wrapped at the edge of the terminal: commands are for copying.
    unfolded = Console(highlight=False, soft_wrap=True)
    cluster = (("--bootstrap-servers", settings.servers), ("--kafka-config", settings.kafka_config))
    steps = next_steps(
        settings.job_files[0],
        _program(),
        example=example,
        recurring=job.epochs.renew,
        stages=stages_of(job),
        groups="" if not job.by else f" --by {','.join(job.by[0])} --epoch {last_epoch}",
        rows=settings.row_options,
        cluster=[str(each) for option in cluster if option[1] is not None for each in option],
    )
    for purpose, commands in steps:
        print_text()
        print_text(f"Next steps: {purpose}", "bold")
        for command in commands:
            unfolded.print(Text(f"  {command}", "cyan"), soft_wrap=True)


def _program() -> str:
    if shutil.which("dpstream"):
        return "dpstream"
    script = Path(sys.argv[0]).absolute()
    if script.name != "dpstream":
        return f"{shlex.quote(sys.executable)} -m dpstream.pipeline.cli"
    here = Path.cwd()
    return shlex.quote(str(script.relative_to(here) if script.is_relative_to(here) else script))
