"""Print the ledger: charges, releases and remaining budgets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from dpstream.pipeline.cli.output import (
    instant,
    iso,
    print_command,
    print_pairs,
    print_table,
    print_text,
)
from dpstream.pipeline.cli.population_lines import population_json, population_pairs
from dpstream.pipeline.errors import one_line
from dpstream.pipeline.jobs.budget_declarations import BudgetDeclaration
from dpstream.pipeline.jobs.budgets import Charge
from dpstream.pipeline.json_values import json_fields
from dpstream.pipeline.ledger.chain import LedgerLocation
from dpstream.pipeline.ledger.entries import Draft, EntryKind
from dpstream.pipeline.ledger.ledger_report import LedgerReport, released_in_words
from dpstream.pipeline.ledger.verification import Inconsistency
from dpstream.randomizers.guarantee import rounded_up


class Selection:
    def __init__(self, job: str | None, population: str | None) -> None:
        self._job = job
        self._population = population

    @property
    def in_words(self) -> str:
        if self._job is not None:
            return f", from jobs named {self._job}; to select a population: --population NAME"
        return "" if self._population is None else f", for population {self._population}"

    def has_charge(self, charge: Charge) -> bool:
        return self._job in (None, charge.job) and self._population in (None, charge.population)

    def has_budget(self, budget: BudgetDeclaration, populations: Sequence[str]) -> bool:
        wanted = self._population in (None, budget.population)
        return wanted and (self._job is None or budget.population in populations)

    def has_fact(self, draft: Draft) -> bool:
        return self._job in (None, draft.facts.get("job")) and self._population is None


def show_entries(report: LedgerReport, selection: Selection) -> None:
    rows = list(_rows(report, selection))
    if not rows:
        print_text(f"no charges and no declared budgets{selection.in_words}")
        return
    print_table(["when (UTC)", "entry", "population", ">epsilon", ">delta", "what"], rows)


def _rows(report: LedgerReport, selection: Selection) -> Iterator[Sequence[str]]:
    state = report.state
    charges = [each for each in state.charges if selection.has_charge(each)]
    populations = sorted({each.population for each in charges})
    for place in state.chain.counting:
        yield from _place_rows(report, place, selection, populations)
    for charge in state.lost_charges:
        if selection.has_charge(charge):
            yield _charge_row(report, charge, "lost", "only in dpstream.jobs; ")
    for budget in state.lost_budgets:
        if selection.has_budget(budget, populations):
            yield _budget_row(budget, "only in dpstream.jobs; ")


def _place_rows(
    report: LedgerReport, place: LedgerLocation, selection: Selection, populations: Sequence[str]
) -> Iterator[Sequence[str]]:
    assert place.entry is not None
    draft = place.entry.draft
    carried = "carried over; " if draft.kind == EntryKind.CARRIED else ""
    for budget in draft.budgets:
        if selection.has_budget(budget, populations):
            yield _budget_row(budget, carried)
    for charge in draft.charges:
        if selection.has_charge(charge):
            what = f"{draft.facts['protocol']}; " if "protocol" in draft.facts else ""
            yield _charge_row(report, charge, draft.kind, carried + what)
    if not draft.budgets and not draft.charges and selection.has_fact(draft):
        yield _time(draft.at), draft.kind, "", "", "", _facts_in_words(draft)


def _charge_row(report: LedgerReport, charge: Charge, kind: str, what: str) -> Sequence[str]:
    horizons = "" if charge.horizons == 1 else f", {_horizons(charge)}"
    return (
        _time(charge.at),
        kind,
        charge.population,
        rounded_up(charge.epsilon),
        rounded_up(charge.delta),
        f"{what}job {charge.job}, deployment {charge.deployment[:8]}{horizons}: "
        f"{report.deployment_status(charge)}",
    )


def _horizons(charge: Charge) -> str:
    return "for each horizon, unlimited" if charge.horizons is None else f"x {charge.horizons:,}"


def _budget_row(budget: BudgetDeclaration, what: str) -> Sequence[str]:
    amounts = ("-" if each is None else rounded_up(each) for each in (budget.epsilon, budget.delta))
    return _time(budget.at), "budget", budget.population, *amounts, what + budget.who


def _facts_in_words(draft: Draft) -> str:
    facts = draft.facts
    parts = []
    if "job" in facts:
        parts.append(f"job {facts['job']}")
    if "deployment" in facts:
        parts.append(f"deployment {str(facts['deployment'])[:8]}")
    if "replay_of" in facts:
        parts.append(f"a replay of {str(facts['replay_of'])[:8]}: no charge")
    if "without" in facts:
        parts.append(f"continued without {len(facts['without']):,} lost entries")
    if "reason" in facts:
        parts.append(str(facts["reason"]))
    return ", ".join(map(one_line, parts))


def _time(milliseconds: int) -> str:
    return instant(milliseconds).removesuffix(" UTC")


def show_releases(report: LedgerReport, selection: Selection) -> None:
    rows = []
    for charge in report.state.charges:
        releases = report.releases.get(charge.deployment)
        if releases is None or not selection.has_charge(charge):
            continue
        low, high = releases.contributors or (None, None)
        devices = "-" if low is None else f"{low:,}" if low == high else f"{low:,} to {high:,}"
        rows.append(
            [
                f"{charge.job} {charge.deployment[:8]}",
                released_in_words(releases),
                devices,
                "; ".join(releases.guarantees[-1:]) or "-",
            ]
        )
    if rows:
        print_text("\nreleased windows, according to manifests", "bold")
        print_table(["deployment", "windows", ">contributors", "each with"], rows)


def show_streams(report: LedgerReport, selection: Selection) -> None:
    rows = [
        (
            f"{charge.job} {charge.deployment[:8]}"
            + (f", horizon {each.horizon:,}" if charge.horizons != 1 else ""),
            each.present.windows,
            each.present.devices,
            each.present.producers,
            rounded_up(each.charged.epsilon),
            rounded_up(each.charged.delta),
            each.present.other_producers,
            rounded_up(each.charged.others),
        )
        for charge in report.state.charges
        if selection.has_charge(charge)
        for each in report.streams_of(charge.deployment)
    ]
    if rows:
        print_text("\nwhole streams, charged once to devices in every released window", "bold")
        always = [">devices", ">producers", ">epsilon", ">delta"]
        print_table(["deployment", ">windows", *always, ">others", ">epsilon"], rows)
        print_text(_ABOUT_STREAMS)


_ABOUT_STREAMS = (
    "The left part of the table covers producers that are in every released window. It shows the "
    "minimum number of their devices that were in every window, and the charge of those devices. "
    "This charge assumes that the shuffler shuffles, that these users are honest, that only their "
    "content links a user's messages across epochs, and that values do not react to published "
    "results. Everyone else, including a device that missed a window, is charged the local loss. "
    "The ledger records the local loss, which holds against everyone who sees the reports."
)


def show_findings(report: LedgerReport, findings: Sequence[Inconsistency]) -> None:
    for each in findings:
        where = "" if each.offset is None else f"offset {each.offset:,}: "
        when = "" if each.at is None else f" ({instant(each.at)})"
        print_text(f"problem: {where}{each.what}{when}", "bold red")
    void = [place for place in report.state.chain.places if not place.counts]
    counting = len(report.state.chain.counting)
    if not findings:
        races = f"; {len(void):,} void (another writer was first)" if void else ""
        print_text(
            f"intact: {counting:,} entries, each with the hash of the previous one{races}", "green"
        )


def show_head(report: LedgerReport) -> None:
    print_text(
        "\nhead, for ledger --verify --expected-head. Store it where writers of the topic cannot "
        "write:"
    )
    print_command(report.state.chain.head)


def ledger_json(
    report: LedgerReport, selection: Selection, findings: Sequence[Inconsistency] | None
) -> dict[str, Any]:
    state = report.state
    charges = [each for each in state.charges if selection.has_charge(each)]
    populations = sorted({each.population for each in charges})
    body: dict[str, Any] = {
        "head": state.chain.head,
        "entries": [_entry_json(place) for place in state.chain.counting],
        "void": sum(not place.counts for place in state.chain.places),
        "charges": [_charge_json(report, each) for each in charges],
        "budgets": [
            {
                "population": each.population,
                "epsilon": each.epsilon,
                "delta": each.delta,
                "by": each.who,
                "at": iso(each.at),
            }
            for each in state.declared
            if selection.has_budget(each, populations)
        ],
    }
    body["populations"] = [population_json(state, each) for each in _populations(report, selection)]
    if findings is not None:
        body["problems"] = [
            json_fields(each) | {"at": None if each.at is None else iso(each.at)}
            for each in findings
        ]
    return body


def _entry_json(place: LedgerLocation) -> dict[str, Any]:
    assert place.entry is not None
    entry = place.entry
    return {
        "offset": place.offset,
        "hash": entry.hash,
        "previous": entry.previous,
        "kind": entry.draft.kind,
        "at": iso(entry.draft.at),
        "software": entry.software,
        "deployments": [charge.deployment for charge in entry.draft.charges],
        **{key: value for key, value in entry.draft.facts.items() if key != "guarantee"},
    }


def _charge_json(report: LedgerReport, charge: Charge) -> dict[str, Any]:
    releases = report.releases.get(charge.deployment)
    return {
        **json_fields(charge),
        "at": iso(charge.at),
        "deployment_status": report.deployment_status(charge),
        "released": None
        if releases is None
        else {
            "windows": {
                window_status.value: count
                for window_status, count in releases.windows_by_status.items()
            },
            "contributors": releases.contributors,
            "estimates": releases.estimates,
            "guarantees": releases.guarantees,
            "without_manifest": [each.epoch for each in releases.unbacked],
            "streams": report.streams_of(charge.deployment),
        },
    }


def show_populations(report: LedgerReport, selection: Selection) -> None:
    for population in _populations(report, selection):
        print_text(f"\npopulation {population}", "bold")
        print_pairs(population_pairs(report.state, population))


def _populations(report: LedgerReport, selection: Selection) -> list[str]:
    state = report.state
    charged = {each.population for each in state.charges if selection.has_charge(each)}
    declared = {
        each.population for each in state.declared if selection.has_budget(each, sorted(charged))
    }
    return sorted(charged | declared)
