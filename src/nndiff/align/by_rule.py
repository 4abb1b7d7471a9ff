"""The user's rules: --rename REGEX=>REPLACEMENT and mapping files."""

from __future__ import annotations

import re
import stat
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from nndiff.align.alignment import Draft
from nndiff.errors import AlignmentError, UsageError
from nndiff.result import Method

_MAP_LIMIT = 32 << 20  # bytes: a million names; a longer file is no mapping
_MOST_SEARCHED = 5000  # names among which one is looked for that may have been meant; comparing texts is slow


@dataclass(frozen=True)
class Rename:
    """Rewrite candidate names so that they become the reference's."""

    pattern: re.Pattern[str]
    replacement: str

    @classmethod
    def parse(cls, text: str | tuple[str, str]) -> Rename:
        """Return the rule of `REGEX=>REPLACEMENT`, or of the two in a tuple."""
        match text:
            case str():
                regex, _, replacement = text.partition("=>")
                is_rule = bool(regex) and "=>" in text
            case (str(regex), str(replacement)):
                is_rule = bool(regex)
            case _:
                is_rule = False
        if not is_rule:
            raise UsageError(f"--rename {text!r} is not REGEX=>REPLACEMENT, for example '^transformer\\.=>model.'")
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


def apply_renames(name: str, renames: Iterable[Rename]) -> str:
    """Return a name after all rules in turn."""
    for rule in renames:
        name = rule.apply(name)
    return name


def rename_all(names: Iterable[str], rules: Iterable[Rename]) -> tuple[dict[str, str], list[Rename]]:
    """Return {name: new name} after all rules in turn, and the rules that changed nothing."""
    renamed = {name: name for name in names}
    without_effect = []
    for rule in rules:
        changed = {name: rule.apply(new_name) for name, new_name in renamed.items()}
        if changed == renamed:
            without_effect.append(rule)
        renamed = changed
    old_names: dict[str, str] = {}
    for name, new_name in renamed.items():
        if new_name in old_names:
            raise AlignmentError(f"the --rename rules turn both {old_names[new_name]!r} and {name!r} into {new_name!r}")
        old_names[new_name] = name
    return renamed, without_effect


def read_map(path: str) -> dict[str, str]:
    """Return {reference name: candidate name} of a mapping file: JSON, or two names a line."""
    try:
        info = Path(path).stat()
        if not stat.S_ISREG(info.st_mode):  # opening a named pipe would wait for a writer
            raise AlignmentError(f"{path}: not a regular file")
        if info.st_size > _MAP_LIMIT:
            raise AlignmentError(f"{path}: a mapping file may hold at most {_MAP_LIMIT} bytes")
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise AlignmentError(f"{path}: {(error.strerror or str(error)).lower()}") from None
    except UnicodeDecodeError:
        raise AlignmentError(f"{path}: not a text file") from None
    return _map_from_json(path, text) if text.lstrip().startswith("{") else _map_from_lines(path, text)


def _map_from_json(path: str, text: str) -> dict[str, str]:
    import json

    def refuse_repeated_names(entries: list[tuple[str, object]]) -> dict[str, object]:
        names = [name for name, _ in entries]
        if len(set(names)) < len(names):
            repeated = next(name for name in names if names.count(name) > 1)
            raise AlignmentError(f"{path}: {repeated!r} is mapped twice")
        return dict(entries)

    try:
        mapping = json.loads(text, object_pairs_hook=refuse_repeated_names)
    except (ValueError, RecursionError):
        raise AlignmentError(f"{path}: not valid JSON") from None
    if not all(isinstance(name, str) for name in mapping.values()):
        raise AlignmentError(f'{path}: a mapping is an object of names, {{"reference": "candidate"}}')
    return dict(mapping)


_COMMENT = re.compile(r"(^|\s)#.*")  # inside a name, as in `loss:output#2`, it starts no comment


def _map_from_lines(path: str, text: str) -> dict[str, str]:
    mapping: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        entry = _COMMENT.sub("", line).strip()
        if not entry:
            continue
        names = entry.split("=>") if "=>" in entry else entry.split()
        if len(names) != 2:
            raise AlignmentError(f"{path}, line {number}: expected 'REFERENCE => CANDIDATE', got {line.strip()!r}")
        reference, candidate = (name.strip() for name in names)
        if reference in mapping:
            raise AlignmentError(f"{path}, line {number}: {reference!r} is mapped twice")
        mapping[reference] = candidate
    return mapping


def pair_by_map(draft: Draft, mapping: Mapping[str, str]) -> None:
    """Pair what the user's map names: tensors, and modules with all that is inside them."""
    expanded = expand_map(mapping, draft.free_reference, draft.free_candidate)
    for reference_name, candidate_name in expanded.items():
        draft.pair(reference_name, candidate_name, Method.MAP)


def expand_map(mapping: Mapping[str, str], reference: Collection[str], candidate: Collection[str]) -> dict[str, str]:
    """Return a map of tensors; a module stands for all that is inside it, and the closest entry decides."""
    targets = list(mapping.values())
    if len(set(targets)) != len(targets):
        repeated = next(name for name in targets if targets.count(name) > 1)
        raise AlignmentError(f"the mapping gives the candidate's {repeated!r} to two of the reference's")
    expanded = {name: target for name, target in mapping.items() if name in reference}
    taken = set(expanded.values())
    for module, target in sorted(mapping.items(), key=lambda entry: -len(entry[0])):
        if module in reference:
            continue
        inside = {name: target + name[len(module) :] for name in reference if is_inside(name, module)}
        on_both_sides = {name: partner for name, partner in inside.items() if partner in candidate}
        if inside and not on_both_sides and any(is_inside(name, target) for name in candidate):
            raise AlignmentError(
                f"the mapping names {module!r} and {target!r}, but nothing inside them goes by the same names: "
                "map their tensors one by one"
            )
        if not on_both_sides:
            on_both_sides = {module: target}  # refused below, with what may have been meant
        for name, partner in on_both_sides.items():
            if name not in expanded and partner not in taken:
                expanded[name] = partner
                taken.add(partner)
    _refuse_unknown("reference", expanded.keys(), reference)
    _refuse_unknown("candidate", expanded.values(), candidate)
    return expanded


def is_inside(name: str, module: str) -> bool:
    """Return True for a tensor of a module, `module@2:output`, or of one inside it, `module.0.weight`."""
    return name.startswith(module) and name[len(module) : len(module) + 1] in (".", ":", "@")


def _refuse_unknown(side: str, mapped: Iterable[str], known: Collection[str]) -> None:
    for name in mapped:
        if name not in known:
            import difflib

            close = difflib.get_close_matches(name, list(known)[:_MOST_SEARCHED], 1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise AlignmentError(f"the mapping names {name!r}, which the {side} does not have{hint}")
