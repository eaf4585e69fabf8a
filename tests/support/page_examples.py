"""Jobs and files used by the commands in the documentation."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path

from tests.support.pages import PAGES, ROOT, Block, Page

USERS = 120

_CHANGES = "parameters: {{epsilon: 4, max_changes: 2, {}}}\nepochs: {{count: 4}}\n"
_SETS = (
    "protocol: count_min\nparameters: {{epsilon: 8, delta: 1e-6, items: {}, domain: {}}}\n"
    f"epochs: {{{{count: 4}}}}\nshuffle: {{{{minimum: {USERS}}}}}\n"
)
_EVERY = (1, 2, 3, 4)


@dataclass(frozen=True, slots=True)
class Example:
    """Job file without the name, and the values of users in turn at some epochs."""

    text: str
    values: tuple[str, ...]
    epochs: tuple[int, ...] = _EVERY

    def rows(self) -> str:
        held = (
            f"user{user},{epoch},{self.values[(user + epoch) % len(self.values)]}\n"
            for epoch in self.epochs
            for user in range(USERS)
        )
        return "user,epoch,value\n" + "".join(held)


EXAMPLES = {
    "logins": Example(
        "protocol: value_stream\nparameters: {epsilon: 4, max_changes: 4}\nepochs: {count: 170}\n",
        ("1", "0"),
        (1, 60, 169, 170),
    ),
    "commutes": Example(
        "protocol: hadamard_values\n" + _CHANGES.format("domain: [walk, bus, car]"),
        ("walk", "bus", "car"),
    ),
    "waits": Example(
        "protocol: range_values\n" + _CHANGES.format("low: 0, high: 80, buckets: 16"),
        ("5", "15", "30"),
    ),
    "shop": Example(_SETS.format(8, "{file: articles.txt}"), ("milk", "bread")),
    "delays": Example(_SETS.format(1, "{low: 0, high: 80, buckets: 80}"), ("7", "23")),
    "places": Example(
        _SETS.format(1, "{grid: [64, 64]}, messages_per_user: 20000"), ("3;17", "60;5")
    ),
}
"""Examples by their names in the documentation; `job.yaml` is the first one."""


def _events() -> str:
    """Return events of all users in most of the weeks of the job in the README."""
    rows = (
        f"user{user},{date(2024, 1, 1) + timedelta(weeks=week, days=user % 7)},open,"
        f"{('android', 'ios', 'web')[user % 3]}\n"
        for week in range(26)
        for user in range(USERS)
        if (user + week // 4) % 3
    )
    return "user,time,event,os\n" + "".join(rows)


def write_files(folder: Path) -> None:
    files = {
        "job.yaml": f"name: logins\n{EXAMPLES['logins'].text}",
        "events.csv": _events(),
        "other.yaml": "name: shop\n"
        + EXAMPLES["shop"].text.replace("items: 8", "items: 8, estimator: {underestimated: 0.001}"),
        "changes.csv": EXAMPLES["logins"].rows(),
        "users.txt": "".join(f"user{user}\n" for user in range(USERS)),
        "histogram.csv": "changes,share\n1,0.5\n2,0.4\n6,0.1\n",
        "articles.txt": "milk\nbread\n" + "".join(f"tea {n}\n" for n in range(14)),
        **{f"{name}.yaml": f"name: {name}\n{each.text}" for name, each in EXAMPLES.items()},
        **{f"{name}.csv": each.rows() for name, each in EXAMPLES.items()},
    }
    for page in PAGES.values():
        for block in page.blocks:
            if is_experiment(block):
                files["experiment.yaml"] = block.text
            elif block.language == "yaml" and block.text.startswith("name: first-report\n"):
                files["first-report.yaml"] = block.text
    for name, text in files.items():
        (folder / name).write_text(text)
    (folder / "pipeline").symlink_to(ROOT / "pipeline")


def is_experiment(block: Block) -> bool:
    return block.language == "yaml" and "\njobs:" in block.text


def words_of(page: Page) -> list[list[str]]:
    """Return the arguments of each line that runs ``dpstream``."""
    lines = (shlex.split(line) for line in page.commands)
    return [words[1:] for words in lines if words[0] == "dpstream"]


def experiments_of(page: Page) -> list[list[str]]:
    lines = (shlex.split(line) for line in page.commands)
    return [words[3:] for words in lines if words[:3] == ["python", "-m", "experiments"]]


def has_program(page: Page) -> bool:
    return any(block.language == "python" for block in page.blocks)


_IN_MEMORY = {"plan", "simulate", "deploy", "budget", "ledger", "estimates", "query"}

WITH_COMMANDS = [page for page in PAGES.values() if words_of(page) or has_program(page)]
IN_MEMORY = [
    page
    for page in WITH_COMMANDS
    if {words[0] for words in words_of(page)} <= _IN_MEMORY and not has_program(page)
]
"""Pages whose commands require neither other processes nor a broker."""
ON_KAFKA = [page for page in WITH_COMMANDS if page not in IN_MEMORY]
