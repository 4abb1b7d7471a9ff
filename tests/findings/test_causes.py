"""Causes are one closed list, each with a description, and every finding takes its cause from there."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest

import nndiff.findings
from nndiff.findings.causes import Cause

FOLDER = Path(nndiff.findings.__file__).parent
SOURCES = [*FOLDER.rglob("*.py"), *(FOLDER.parent / "runs" / "causes").glob("*.py")]


@pytest.mark.parametrize("cause", Cause)
def test_a_cause_is_a_slug_with_a_description(cause):
    assert re.fullmatch(r"[a-z]+(-[a-z]+)*", cause.value)
    assert cause == cause.value == str(cause) == f"{cause}" == json.loads(json.dumps(cause))
    assert cause.description
    assert isinstance(cause.depends_on_tolerance, bool)


def list_cause_arguments():
    """Return the source of the first argument of every finding that is made."""
    arguments = []
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Finding":
                arguments.append(ast.unparse(node.args[0]))
    return arguments


def test_every_finding_takes_its_cause_from_the_list():
    arguments = list_cause_arguments()
    assert len(arguments) > 25
    named = {argument.removeprefix("Cause.") for argument in arguments if argument.startswith("Cause.")}
    assert named <= set(Cause.__members__)
    # the others are of relations, whose causes come from a table of the same list
    assert {argument for argument in arguments if not argument.startswith("Cause.")} == {
        "cause", "classify_moves(moved)", "get_cause(related.relation)", "proof.cause",
    }  # fmt: skip


def test_every_cause_is_used():
    text = "".join(path.read_text() for path in SOURCES if path.name != "causes.py")
    assert {name for name in Cause.__members__ if f"Cause.{name}" not in text} == set()
