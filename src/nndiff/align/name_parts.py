"""Names with their numbers taken apart: which layer of which kind of block a tensor belongs to."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

_NUMBER = re.compile(r"[0-9]+")
_LONGEST_NUMBER = 9  # digits: longer ones are no number of a layer


class NumberedName(NamedTuple):
    """Hold a name cut at one of its numbers: `h.`, 3, `.attn.weight`."""

    before: str
    number: int
    after: str

    @property
    def block(self) -> str:
        """Return the path of the block that the number counts: `h.3`."""
        return f"{self.before}{self.number}"


def cut_at_numbers(name: str) -> Iterator[NumberedName]:
    """Yield a name cut at each of its numbers in turn; one with zeros in front is a text, not a number."""
    for found in _NUMBER.finditer(name):
        digits = found.group()
        if len(digits) <= _LONGEST_NUMBER and str(int(digits)) == digits:
            yield NumberedName(name[: found.start()], int(digits), name[found.end() :])


def get_parent(name: str) -> str:
    """Return the module that holds a tensor."""
    return name.rpartition(".")[0]


def list_by_region(names: Iterable[str]) -> dict[str, list[str]]:
    """Return names by the parts of the model they lie in: their module, their blocks, and the model, the empty part."""
    regions: dict[str, list[str]] = {}
    for name in names:
        around = {"", f"{get_parent(name)}.", *(cut.block for cut in cut_at_numbers(name))}
        for region in around:
            regions.setdefault(region, []).append(name)
    return regions
