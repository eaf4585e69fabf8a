"""How it looks who sees what of a job, and what each learns of a person at most."""

from __future__ import annotations

from collections.abc import Sequence

from dpstream.pipeline.cli.output import say, say_table
from dpstream.pipeline.planning.odds import times_right
from dpstream.pipeline.planning.parties import PartyGuarantee


def show_parties(parties: Sequence[PartyGuarantee], epochs: int) -> None:
    """Print a row for each party, and what its figures rest on."""
    say("\nwhat each party can learn about one person at most", "bold")
    done = "did, in all epochs together," if epochs > 1 else "has"
    say(
        f"a guess about what one person {done} that was right 50 times in 100 becomes right at "
        "most so often"
    )
    say_table(
        {"who": "party", ">right": _right, ">epsilon": _epsilon, ">delta": _delta, "sees": "sees"},
        parties,
    )
    resting = [each for each in parties if each.epsilon is not None]
    for assumed, names in _by_assumption(resting):
        say(f"{', '.join(names)}: rests on {assumed}")


def _by_assumption(parties: Sequence[PartyGuarantee]) -> list[tuple[str, list[str]]]:
    assumed = dict.fromkeys(each.assumes for each in parties)
    return [(words, [each.party for each in parties if each.assumes == words]) for words in assumed]


def _right(party: PartyGuarantee) -> str:
    if party.whole_epsilon is None:
        return "always"
    return times_right(party.whole_epsilon, party.whole_delta)


def _epsilon(party: PartyGuarantee) -> str:
    return "no bound" if party.whole_epsilon is None else f"{party.whole_epsilon:.4g}"


def _delta(party: PartyGuarantee) -> str:
    return "-" if party.whole_epsilon is None else f"{party.whole_delta:g}"
