"""Documentation is correct: links resolve, commands exist, and figures match the code."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from dpstream.pipeline.cli.commands import build_command
from dpstream.pipeline.demo import demo_job_file, demo_shuffled_job_file, demo_stream_job_file
from dpstream.pipeline.jobs.job_files import load_job, make_job
from dpstream.pipeline.jobs.job_sections import Topics
from dpstream.pipeline.planning.job_plan import plan
from dpstream.pipeline.protocols.registry import PROTOCOLS
from experiments.command import build_command as build_experiments
from experiments.evaluation.experiment import load_experiment
from experiments.shipped import shipped_experiments
from tests.support.commands import Commands
from tests.support.page_examples import is_experiment, write_files
from tests.support.pages import FOLDERS, PAGES, README, ROOT, Page

STUDENTS = 28_785
COMPOSE_OPTIONS = {"--profile", "--scale"}
"""Options of ``docker compose``, mentioned without it."""

KEYS = {f"topics.{key}" for key in Topics.model_fields}
"""Job file keys that look like modules of a package with the same name."""
EXAMPLES = {"fresh_response"}
"""Folders of example packages that pages describe."""
PACKAGES = sorted(
    path.parent.relative_to(ROOT)
    for folder in FOLDERS
    if folder != "tests"
    for path in (ROOT / folder).rglob("__init__.py")
)

every_page = pytest.mark.parametrize("page", PAGES.values(), ids=str)


def commands_of_dpstream() -> dict[str, Any]:
    """Return parsers by command name, such as ``plan`` and ``kafka start``."""
    commands = {name: subcommand.loaded for name, subcommand in build_command().commands.items()}  # type: ignore[attr-defined]
    groups = {
        name: subcommand.commands
        for name, subcommand in commands.items()
        if hasattr(subcommand, "commands")
    }
    return {name: subcommand for name, subcommand in commands.items() if name not in groups} | {
        f"{group} {name}": subcommand
        for group, inside in groups.items()
        for name, subcommand in inside.items()
    }


PARSERS = commands_of_dpstream()
OPTIONS = {
    name: {option for each in parser.params for option in each.opts + each.secondary_opts}
    for name, parser in PARSERS.items()
}

OF_EXPERIMENTS = {option for each in build_experiments().params for option in each.opts}


def is_real(path: str) -> bool:
    """Return whether a path on a page is a file of the repository, not an example."""
    return "NAME" not in path and path.split("/")[0] not in EXAMPLES


def subcommand_of(words: list[str]) -> str | None:
    return next((name for n in (2, 1) if (name := " ".join(words[:n])) in PARSERS), None)


def is_defined(name: str, folder: Path) -> bool:
    """Return whether a name in a text about `folder` is a file, module or definition near it."""
    *modules, last = name.split(".")
    for place in (folder, *folder.parents[: len(folder.relative_to(ROOT).parts)]):
        path = place.joinpath(*modules)
        if any(each.exists() for each in (place / name, path / last, path / f"{last}.py")):
            return True
        if (
            modules
            and path.with_suffix(".py").is_file()
            and _defines(path.with_suffix(".py"), last)
        ):
            return True
    below = [*folder.rglob("*.py")]
    return any((each.stem == name and not modules) or _defines(each, name) for each in below)


def _defines(module: Path, name: str) -> bool:
    """Return whether a module defines a class or function, or a class with an attribute."""
    outer, _, attribute = name.partition(".")
    for node in ast.parse(module.read_text()).body:
        if getattr(node, "name", None) == outer:
            return not attribute or attribute in _attributes(node)
    return False


def _attributes(node: ast.stmt) -> set[str]:
    inside = node.body if isinstance(node, ast.ClassDef) else []
    methods = {each.name for each in inside if isinstance(each, ast.FunctionDef)}
    fields = (each.target for each in inside if isinstance(each, ast.AnnAssign))
    return methods | {field.id for field in fields if isinstance(field, ast.Name)}


def test_readme_is_short() -> None:
    assert len(README.text.splitlines()) <= 150


def test_every_page_is_reachable_from_the_readme() -> None:
    found, new = set(), {README.path}
    while new:
        page = PAGES[new.pop()]
        found.add(page.path)
        for link in page.links:
            target = (page.folder / link.partition("#")[0]).resolve()
            path = target.relative_to(ROOT).as_posix()
            if path in PAGES and path not in found:
                new.add(path)
    assert found == set(PAGES)


@every_page
def test_links_have_targets(page: Page) -> None:
    for link in page.links:
        path, _, anchor = link.partition("#")
        target = (page.folder / path).resolve() if path else ROOT / page.path
        assert target.exists(), link
        if anchor:
            assert anchor in PAGES[target.relative_to(ROOT).as_posix()].anchors, link


@every_page
def test_commands_on_pages_exist(page: Page) -> None:
    for command in page.commands:
        program, *words = shlex.split(command)
        match program:
            case "dpstream":
                subcommand = subcommand_of(words)
                assert subcommand is not None, command
                parser = PARSERS[subcommand]
                parser.make_context(subcommand, words[len(subcommand.split()) :]).close()
            case "python" if words[:2] == ["-m", "experiments"]:
                build_experiments().make_context("experiments", words[2:]).close()
            case "make":
                checked = ["make", "--dry-run", *words]
                assert subprocess.run(checked, cwd=ROOT, capture_output=True).returncode == 0
            case "source":
                assert f"VENV := {words[0].partition('/')[0]}" in (ROOT / "Makefile").read_text()
            case "pytest":
                assert all((ROOT / word).exists() for word in words if word.startswith("tests/"))
            case "docker":
                compose = yaml.safe_load((ROOT / words[words.index("--file") + 1]).read_text())
                profile = words[words.index("--profile") + 1]
                assert any(
                    profile in each.get("profiles", ()) for each in compose["services"].values()
                )
            case "kubectl" if words[0] == "apply":
                assert (page.folder / words[-1] / "kustomization.yaml").is_file()
            case "kubectl":
                # Tests in tests/docker check that it is mounted.
                assert words[:3] == ["create", "secret", "generic"]
            case _:
                pytest.fail(f"no test runs this: {command}")


@every_page
def test_commands_appear_only_in_sh_blocks(page: Page) -> None:
    assert not re.findall(r"^ {4}(?:\$ )?(?:dpstream|make|python|pytest|docker) ", page.text, re.M)
    # Examples in js are run by the tests of its package.
    assert {block.language for block in page.blocks} <= {"sh", "yaml", "python", "js", "toml"}


@every_page
def test_options_and_files_named_in_sentences_exist(page: Page) -> None:
    everywhere = {"--help", "--version"}.union(*OPTIONS.values(), OF_EXPERIMENTS, COMPOSE_OPTIONS)
    for code in page.inline_code:
        words = code.split()
        if words[0] in {"docker", "gitlint"}:
            continue
        if words[:2] == ["python", "-m"]:
            assert find_spec(words[2]) is not None, code
        elif words[0] == "python":
            assert (ROOT / words[1]).is_file(), code
        elif words[0] == "pytest":
            assert all((ROOT / word).exists() for word in words if word.startswith("tests/")), code
        elif words[0] != "make":
            subcommand = subcommand_of(words[1:] if words[0] == "dpstream" else words)
            bare = words in (["dpstream"], ["dpstream", "--version"])
            assert subcommand is not None or words[0] != "dpstream" or bare, code
            known = everywhere if subcommand is None else OPTIONS[subcommand]
            assert {word for word in words if re.fullmatch(r"--[a-z-]+", word)} <= known, code
        if re.fullmatch(rf"(?:{'|'.join(FOLDERS)})/[\w/.-]+", code) and is_real(code):
            assert (ROOT / code).exists(), code


@every_page
def test_modules_named_in_sentences_exist(page: Page) -> None:
    """Checks dotted names of a package, names ending in a class, and Python files."""
    for code in page.inline_code:
        ours = rf"(?:dpstream\.)?(?:{'|'.join(FOLDERS)})\.[\w.]+"
        dotted = re.fullmatch(rf"{ours}|[a-z_.]+\.[A-Z]\w+", code)
        if (dotted and code not in KEYS) or re.fullmatch(r"\w+\.py", code):
            assert is_defined(code, page.folder), code
        elif re.fullmatch(r"[\w/]+\.py", code) and is_real(code):
            assert (page.folder / code).is_file() or (ROOT / code).is_file(), code


@pytest.mark.parametrize("package", PACKAGES, ids=str)
def test_modules_named_in_package_docstrings_exist(package: Path) -> None:
    path = ROOT / package / "__init__.py"
    docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
    for name in re.findall(r"(?<!`)`([^`]+)`(?!`)", docstring):
        assert name in PROTOCOLS or is_defined(name, path.parent), name


@every_page
def test_job_files_and_experiments_are_valid(page: Page, tmp_path: Path) -> None:
    (tmp_path / "articles.txt").write_text("\n".join(f"article {n}" for n in range(100)))
    for block in page.blocks:
        if block.language == "yaml":
            path = tmp_path / "file.yaml"
            path.write_text(block.text)
            (load_experiment if is_experiment(block) else load_job)(path)


@every_page
def test_generated_blocks_are_current(page: Page) -> None:
    for module, text in page.generated.items():
        done = subprocess.run(
            [sys.executable, "-m", module], cwd=ROOT, capture_output=True, text=True, check=True
        )
        assert text == done.stdout, f"paste what python -m {module} prints"


def test_privacy_page_lists_all_public_facts() -> None:
    assert "tests.support.public_facts" in PAGES["PRIVACY.md"].generated


def test_numbers_in_the_readme_match_the_plan() -> None:
    local, stream, shuffled = (
        load_job(path()) for path in (demo_job_file, demo_stream_job_file, demo_shuffled_job_file)
    )
    as_published = {"calibration": "published", "estimator": "prefix"}
    published = make_job(
        local.to_json() | {"parameters": {"epsilon": 4, "max_changes": 4} | as_published}
    )
    planned, smoothed = plan(stream, STUDENTS), plan(local, STUDENTS).smoothed_rmse
    assert smoothed is not None
    less = [
        plan(
            make_job(each.to_json() | {"parameters": {"epsilon": 1, "max_changes": 2}}), STUDENTS
        ).rmse
        for each in (stream, local)
    ]
    at_epsilon_1 = make_job(stream.to_json() | {"parameters": {"epsilon": 1, "max_changes": 4}})
    needed, needed_at_1 = (
        {target.error: target.users for target in each.users_needed}
        for each in (planned, plan(at_epsilon_1, STUDENTS))
    )
    sentence = " ".join(README.prose.split())
    for words in (
        f"{planned.rmse:,.0f} students, {planned.rmse / STUDENTS:.1%} of".replace("%", " %"),
        f"epsilon {planned.guarantee.epsilon:.3g} over a student's whole stream of 170 weeks",
        f"| none | 4 | {plan(local, STUDENTS).rmse:,.0f} ("
        f"{plan(published, STUDENTS).rmse:,.0f} with the noise of the FutureRand paper) | "
        f"{smoothed:,.0f} |",
        f"| none | 4 | {planned.rmse:,.0f} | {planned.smoothed_rmse:,.0f} |",
        f"| the shuffler and Kafka's operator | 1 | {plan(shuffled, STUDENTS).rmse:,.0f} |",
        "is {:,.0f} for `value_stream` and {:,.0f} for `future_rand`".format(*less),
        f"RMSE of 10 % with {needed[0.1]:,} users at epsilon 4, and with {needed_at_1[0.1]:,} at "
        "epsilon 1; an RMSE of 1 % needs 100 times as many",
    ):
        assert words in sentence


def test_job_in_the_readme_is_what_init_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path)
    command = next(each for each in README.commands if each.startswith("dpstream init "))
    assert Commands(capsys)(*shlex.split(command)[1:]).code == 0
    (shown,) = (yaml.safe_load(block.text) for block in README.blocks if block.language == "yaml")
    written = yaml.safe_load(Path("events.yaml").read_text())
    written["attributes"]["os"]["values"].sort()
    assert {key: written[key] for key in shown} == shown


def test_predicted_errors_on_pages_match_the_plan() -> None:
    page = PAGES["experiments/README.md"].prose
    experiment = yaml.safe_load(shipped_experiments()["comparison"].read_text())
    for case in experiment["jobs"]:
        parameters = case["parameters"] | {"epsilon": 4}
        job = {"name": "x", "protocol": case["protocol"], "epochs": {"count": 170}}
        planned = plan(make_job(job | {"parameters": parameters}), STUDENTS)
        line = next(
            line
            for line in page.splitlines()
            if line.startswith(f"| `{case['protocol']}`")
            and ("published" in line) == ("published" in case.get("label", "") or "erl" in line)
        )
        assert f"{planned.rmse:,.0f}" in line.split("|")[-2], case
        assert f"{planned.guarantee.epsilon:.3g}" in line.split("|")[2], case
