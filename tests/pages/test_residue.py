"""Nothing names what is gone: no page, rule, dashboard, manifest, privilege, option or module.

What a job file or command line that names it is told is in `dpstream.pipeline.replacements`, which
alone may, with its test.
"""

from __future__ import annotations

import re

import pytest

from tests.support.sources import texts

GONE = {
    "lanes": r"\b(?:lanes?|topics\.lanes)\b",
    "relay": r"\bdpstream[ _]relay|\bpipeline[/.]relay\b|(?<![\w-])--relay\b",
    "bundles of gateways": r"\bbundles?\b",
    "verify-stage": r"\bverify[-_]stage\b",
    "attestation": r"\battest(?:s|ed|ations?)?\b",
    "signed records of stages": r"\bshuffle\.signers\b|\bstage[-_]keys\b|\bsigned[-_ ]stages?\b",
    # Only the cells of items in `shuffled_counts` are still called so.
    "balls_into_bins": r"protocol: balls_into_bins\b|(?<!cells: )\bballs_into_bins[/.]",
    "shuffled_tree": r"\bshuffled_tree\b",
    "shuffled_item_tree": r"\bshuffled_item_tree\b",
    "hadamard_stream": r"\bhadamard_stream\b",
    "range_stream": r"\brange_stream\b",
    "conditional calibration": r"\bcalibration[\"']?: [\"']?conditional\b",
    "plans of fleets": r"\bfleet[-_]costs\b|\bplanning[/.]fleets?\b",
    "raw recordings": r"(?<![\w-])--raw\b",
    "formats that were never released": r"\btests[/.]upgrade\b",
    "survivors": r"\bsurvivors\.md\b",
    "evaluate": r"\bdpstream evaluate\b|\bcli/evaluate\b",
    "public_facts of the product": r"\bpipeline[/.]public_facts\b",
    "rehearsal of containers": r"(?<!tests[/.])\bdocker[/.]rehearsal\b",
}
"""Patterns, whatever the case of letters, by what is gone."""

MAY_NAME_THEM = {
    "pipeline/replacements.py",
    "tests/pages/test_residue.py",
    "tests/pipeline/test_replacements.py",
}
# Words and lists of others.
DATA = re.compile(r"labels-.*\.txt$|\.(?:csv|lock|svg)$|(?:^|/)constraints\.txt$")


def named(pattern: str) -> list[str]:
    """Where something that is gone is named: a path, and a line if it stands in one."""
    gone = re.compile(pattern, re.IGNORECASE)
    found = []
    for path, text in texts().items():
        if path in MAY_NAME_THEM or DATA.search(path):
            continue
        if gone.search(path):
            found.append(path)
        if gone.search(text):
            lines = enumerate(text.splitlines(), 1)
            found += [f"{path}:{number}" for number, line in lines if gone.search(line)]
    return found


@pytest.mark.parametrize("gone", GONE)
def test_nothing_names_what_is_gone(gone: str) -> None:
    assert named(GONE[gone]) == []


@pytest.mark.parametrize(
    ("gone", "text"),
    [
        ("lanes", "  lanes: 2"),
        ("lanes", "waits for lane 3"),
        ("attestation", "an attestation of its machine"),
        ("signed records of stages", "keys in `stage-keys`"),
        ("conditional calibration", "parameters: {calibration: conditional}"),
        ("raw recordings", "dpstream record logins --raw"),
        ("evaluate", "dpstream evaluate comparison"),
    ],
)
def test_names_of_what_is_gone_would_be_noticed(gone: str, text: str) -> None:
    assert re.search(GONE[gone], text, re.IGNORECASE)
