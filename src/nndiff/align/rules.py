"""The user's rules: --rename REGEX=>REPLACEMENT and mapping files."""

from __future__ import annotations

import re
import stat
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from nndiff.errors import AlignmentError, UsageError

_MAP_LIMIT = 32 << 20


@dataclass(frozen=True)
class Rename:
    """Rewrite candidate names so that they become the reference's."""

    pattern: re.Pattern[str]
    replacement: str

    @classmethod
    def parse(cls, text: str | tuple[str, str]) -> Rename:
        """Return the rule of `REGEX=>REPLACEMENT`, or of the two in a tuple."""
        regex, replacement = _two_parts(text)
        try:
            rule = cls(re.compile(regex), replacement)
            rule.pattern.sub(replacement, "")  # a bad group number shows only when it is used
            re.compile(regex + "|").sub(replacement, "x")
        except (re.error, IndexError) as error:
            raise UsageError(f"--rename {text!r}: {error}") from None
        return rule

    def apply(self, name: str) -> str:
        """Return the name as the reference would have it."""
        return self.pattern.sub(self.replacement, name)


def _two_parts(rule: str | tuple[str, str]) -> tuple[str, str]:
    regex, arrow, replacement = rule.partition("=>") if isinstance(rule, str) else _of_tuple(rule)
    if not arrow or not regex:
        raise UsageError(f"--rename {rule!r} is not REGEX=>REPLACEMENT, for example '^transformer\\.=>model.'")
    return regex, replacement


def _of_tuple(rule: object) -> tuple[str, str, str]:
    match rule:
        case (str(regex), str(replacement)):
            return regex, "=>", replacement
    return "", "", ""


def rename_all(names: Iterable[str], rules: Iterable[Rename]) -> tuple[dict[str, str], list[Rename]]:
    """Return {name: new name} after all rules in turn, and the rules that changed nothing."""
    renamed = {name: name for name in names}
    idle = []
    for rule in rules:
        changed = {name: rule.apply(new) for name, new in renamed.items()}
        if changed == renamed:
            idle.append(rule)
        renamed = changed
    taken: dict[str, str] = {}
    for name, new in renamed.items():
        if new in taken:
            raise AlignmentError(f"the rename rules make one name, {new!r}, of both {taken[new]!r} and {name!r}")
        taken[new] = name
    return renamed, idle


def read_map(path: str) -> dict[str, str]:
    """Return {reference name: candidate name} of a mapping file: JSON, or two names a line."""
    try:
        info = Path(path).stat()
        if not stat.S_ISREG(info.st_mode):  # opening a named pipe would wait for a writer
            raise AlignmentError(f"{path}: not a regular file")
        if info.st_size > _MAP_LIMIT:
            raise AlignmentError(f"{path}: a mapping file of more than {_MAP_LIMIT} bytes is not read")
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise AlignmentError(f"{path}: {(error.strerror or str(error)).lower()}") from None
    except UnicodeDecodeError:
        raise AlignmentError(f"{path}: not a text file") from None
    return _map_from_json(path, text) if text.lstrip().startswith("{") else _map_from_lines(path, text)


def _map_from_json(path: str, text: str) -> dict[str, str]:
    import json

    def once(entries: list[tuple[str, object]]) -> dict[str, object]:
        names = [name for name, _ in entries]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise AlignmentError(f"{path}: {twice!r} is mapped twice")
        return dict(entries)

    try:
        found = json.loads(text, object_pairs_hook=once)
    except (ValueError, RecursionError):
        raise AlignmentError(f"{path}: not valid JSON") from None
    if not all(isinstance(name, str) for name in found.values()):
        raise AlignmentError(f'{path}: a mapping is an object of names, {{"reference": "candidate"}}')
    return dict(found)


_COMMENT = re.compile(r"(^|\s)#.*")  # in `act#2:output` it numbers a call


def _map_from_lines(path: str, text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        bare = _COMMENT.sub("", line).strip()
        if not bare:
            continue
        names = bare.split("=>") if "=>" in bare else bare.split()
        if len(names) != 2:
            raise AlignmentError(f"{path}, line {number}: expected 'REFERENCE => CANDIDATE', got {line.strip()!r}")
        reference, candidate = (name.strip() for name in names)
        if reference in found:
            raise AlignmentError(f"{path}, line {number}: {reference!r} is mapped twice")
        found[reference] = candidate
    return found


def expand_map(mapping: Mapping[str, str], reference: Collection[str], candidate: Collection[str]) -> dict[str, str]:
    """Return a map of tensors: a module stands for all that has its path, what is mapped more closely comes first."""
    targets = list(mapping.values())
    if len(set(targets)) != len(targets):
        twice = next(name for name in targets if targets.count(name) > 1)
        raise AlignmentError(f"the mapping gives the candidate's {twice!r} to two of the reference's")
    found = {one: other for one, other in mapping.items() if one in reference}
    taken = set(found.values())
    for module, partner in sorted(mapping.items(), key=lambda entry: -len(entry[0])):
        if module in reference:
            continue
        inside = {name: partner + name[len(module) :] for name in reference if _is_inside(name, module)}
        known = {name: other for name, other in inside.items() if other in candidate}
        if inside and not known and any(_is_inside(name, partner) for name in candidate):
            raise AlignmentError(
                f"the mapping names {module!r} and {partner!r}, but nothing inside them goes by the same names: "
                "map their tensors one by one"
            )
        for name in known or (module,):  # what is nowhere is refused later, with what may have been meant
            other = known.get(name, partner)
            if name not in found and other not in taken:
                found[name] = other
                taken.add(other)
    _refuse_unknown(found, reference, candidate)
    return found


def _is_inside(name: str, module: str) -> bool:
    """Tell whether a tensor is of a module, `module#2:output`, or of one inside it, `module.0.weight`."""
    return name.startswith(module) and name[len(module) : len(module) + 1] in (".", ":", "#")


def _refuse_unknown(mapping: Mapping[str, str], reference: Collection[str], candidate: Collection[str]) -> None:
    """Refuse a map that names what is not there."""
    for side, names, wanted in (("reference", reference, mapping.keys()), ("candidate", candidate, mapping.values())):
        for name in wanted:
            if name not in names:
                import difflib

                close = difflib.get_close_matches(name, list(names)[:5000], 1)
                hint = f"; did you mean {close[0]!r}?" if close else ""
                raise AlignmentError(f"the mapping names {name!r}, which the {side} does not have{hint}")
