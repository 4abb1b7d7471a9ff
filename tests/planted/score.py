"""Score nndiff on planted faults, combinations of them, and harmless rewrites.

python tests/planted/score.py [NAME ...] [--kind faults|combinations|rewrites] [--failing]

A fault is scored by three rules, and there are no others:
- Its place is right if the modules of all own errors (without own errors: the module of the first divergence) are
  exactly one of the sets that the case states. A set holds the module whose weights, settings or code are at fault;
  for code between two calls, the call that receives the result is as right as the module that holds the code.
- Its cause is right if a finding that is not harmless names an acceptable cause at a right module: the finding's
  first site lies in that module, is an input of a call directly inside it, or is what it overwrites in place.
- A module that is in none of the sets is a false place.

A rewrite raises no alarm if the verdict is identical or close, or if it is different, no module has an own error,
and there are findings and every one of them is harmless.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))

from block_faults import FAULTS
from block_rewrites import REWRITES
from combinations import COMBINATIONS
from truth import Combination, Fault, Rewrite

import nndiff
from nndiff.result import Comparison, Finding

Case = Fault | Combination | Rewrite
KINDS: dict[str, dict[str, Case]] = {
    "faults": {**FAULTS},
    "combinations": {**COMBINATIONS},
    "rewrites": {**REWRITES},
}


@dataclass(frozen=True)
class Score:
    """Hold what nndiff said of a case, and what of it is right."""

    case: Case
    verdict: str
    places: tuple[str, ...]
    causes: tuple[str, ...]  # of findings; harmless ones in brackets
    seconds: float
    is_place_right: bool = False
    is_cause_right: bool = False
    false_places: tuple[str, ...] = ()
    is_alarm: bool = False

    @property
    def is_right(self) -> bool:
        """Return whether everything about the case is right."""
        if isinstance(self.case, Rewrite):
            return not self.is_alarm
        return self.is_place_right and self.is_cause_right


def score_case(case: Case) -> Score:
    """Return how nndiff does on one case."""
    reference, candidate = case.make_sides()
    modules = {name for name, _ in reference.named_modules()}
    start = time.perf_counter()
    result = nndiff.compare(reference, candidate, inputs=case.inputs(), backward=case.backward)
    seconds = time.perf_counter() - start
    places = find_places(result)
    causes = tuple(f"({finding.cause})" if finding.harmless else finding.cause for finding in result.findings)
    said = (case, str(result.verdict), places, causes, seconds)
    if isinstance(case, Rewrite):
        return Score(*said, is_alarm=raises_alarm(result))
    faults = case.faults if isinstance(case, Combination) else (case,)
    right_modules = frozenset().union(*case.places)
    return Score(
        *said,
        is_place_right=frozenset(places) in case.places,
        is_cause_right=all(names_cause(result.findings, fault, modules) for fault in faults),
        false_places=tuple(place for place in places if place not in right_modules),
    )


def find_places(result: Comparison) -> tuple[str, ...]:
    """Return the modules that nndiff holds to be at fault, by the reference's names."""
    if result.own_errors:
        return tuple(dict.fromkeys(error.module for error in result.own_errors))
    return () if result.first_divergence is None else (result.first_divergence.module,)


def raises_alarm(result: Comparison) -> bool:
    """Return True if a rewrite is taken for a fault."""
    if result.verdict in ("identical", "close"):
        return False
    return bool(result.own_errors) or not result.findings or not all(finding.harmless for finding in result.findings)


def names_cause(findings: Iterable[Finding], fault: Fault, modules: set[str]) -> bool:
    """Return True if a finding names an acceptable cause of a fault at its place."""
    right = frozenset().union(*fault.places)
    for finding in findings:
        if finding.harmless or finding.cause not in fault.causes or not finding.where:
            continue
        module, is_input = read_site(finding.where[0], modules)
        if module in right or (is_input and module and module.rpartition(".")[0] in right):
            return True
        if fault.shows_at and module == fault.shows_at:
            return True
    return False


def read_site(name: str, modules: set[str]) -> tuple[str, bool]:
    """Return the module that a site, weight or module of this name belongs to, and whether it is an input."""
    owner, _, slot = name.partition(":")
    owner = "" if owner == "(model)" else owner.partition("@")[0]
    while owner not in modules:
        owner = owner.rpartition(".")[0]
    parents = owner.split(".")
    # a list of layers is no caller: the input of layers.1 is made by what holds the list
    if slot.startswith("input") and parents[-1].isdigit():
        owner = ".".join(parents[:-1])
    return owner, slot.startswith("input")


def print_score(score: Score) -> None:
    """Print one line about a case."""
    if isinstance(score.case, Rewrite):
        marks = "ALARM" if score.is_alarm else "ok"
    else:
        marks = ("place " if score.is_place_right else "----- ") + ("cause" if score.is_cause_right else "-----")
    places = ", ".join(place or "(model)" for place in score.places) or "-"
    causes = ", ".join(score.causes) or "-"
    print(f"{score.case.name:42} {marks:11} {score.verdict:10} {score.seconds:5.2f}s  at {places}  because {causes}")


def print_shares(scores: list[Score]) -> None:
    """Print the shares of what is right, for each kind."""
    rewrites = [score for score in scores if isinstance(score.case, Rewrite)]
    for kind, scored in (("faults", Fault), ("combinations", Combination)):
        chosen = [score for score in scores if isinstance(score.case, scored)]
        if chosen:
            counts = {
                "place right": sum(score.is_place_right for score in chosen),
                "cause right": sum(score.is_cause_right for score in chosen),
                "both right": sum(score.is_right for score in chosen),
            }
            shares = ", ".join(f"{name} {count} ({count / len(chosen):.0%})" for name, count in counts.items())
            false_places = sum(len(score.false_places) for score in chosen)
            print(f"{kind}: {len(chosen)} cases, {shares}, false places {false_places}")
    if rewrites:
        print(f"rewrites: {len(rewrites)} cases, false alarms {sum(score.is_alarm for score in rewrites)}")
    print(f"{sum(score.seconds for score in scores):.0f} s in all")


def list_failures(scores: Iterable[Score]) -> list[str]:
    """Return what is wrong, one line for each, as `failing.txt` has it."""
    lines = []
    for score in scores:
        if isinstance(score.case, Rewrite):
            lines += [f"alarm {score.case.name}"] * score.is_alarm
        else:
            lines += [f"place {score.case.name}"] * (not score.is_place_right)
            lines += [f"cause {score.case.name}"] * (not score.is_cause_right)
    return lines


def main() -> int:
    """Score the cases that are named on the command line, or all."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="cases; without names, all of them")
    parser.add_argument("--kind", choices=KINDS, action="append", help="score only this kind")
    parser.add_argument("--failing", action="store_true", help="print only what is wrong, as failing.txt has it")
    options = parser.parse_args()
    cases = {name: case for kind in options.kind or KINDS for name, case in KINDS[kind].items()}
    unknown = [name for name in options.names if name not in cases]
    if unknown:
        parser.error(f"no case is called {', '.join(unknown)}")
    scores = []
    for name in options.names or cases:
        scores.append(score_case(cases[name]))
        if not options.failing:
            print_score(scores[-1])
    if options.failing:
        print("\n".join(list_failures(scores)))
    else:
        print_shares(scores)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
