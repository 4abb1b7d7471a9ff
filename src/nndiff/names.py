"""Names of tensors: natural order, patterns, groups, wrapper prefixes."""

from __future__ import annotations

import fnmatch
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from nndiff.errors import UsageError

if TYPE_CHECKING:
    from nndiff.dtypes import DType  # brings NumPy, which a command line that only says no can do without

# What wrappers put around a model. The first kind stands anywhere in a path, because inner
# modules are wrapped too; the second only in front, because models have parts of that name.
_ANYWHERE = frozenset(
    ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_forward_module", "_fpw_module")
)
_IN_FRONT = ("base_model.model", "module", "model")

_BUFFER_ENDINGS = frozenset(
    (
        "running_mean",
        "running_var",
        "num_batches_tracked",
        "inv_freq",
        "original_inv_freq",
        "position_ids",
        "token_type_ids",
        "masked_bias",
        "attn_mask",
        "causal_mask",
        "fb",
        "window",
    )
)
_DIGITS = re.compile(r"(\d+)")


def natural_key(name: str) -> tuple[tuple[int, int, str], ...]:
    """Return a sort key that puts layer 9 before layer 10."""
    return tuple(
        (0, int(part), "") if part.isascii() and part.isdigit() and len(part) < 20 else (1, 0, part)
        for part in _DIGITS.split(name)
    )


def strip_wrappers(name: str) -> str:
    """Return the name without what DDP, FSDP, torch.compile, PEFT and their kind put around it."""
    parts = [part for part in name.split(".") if part not in _ANYWHERE]
    bare = ".".join(parts)
    while True:
        for prefix in _IN_FRONT:
            if bare.startswith(prefix + ".") and len(bare) > len(prefix) + 1:
                bare = bare[len(prefix) + 1 :]
                break
        else:
            return bare


def looks_trainable(name: str, dtype: DType) -> bool:
    """Guess whether a tensor is a parameter: of a float type and not named as buffers are."""
    return dtype.kind in ("float", "complex") and name.rsplit(".", 1)[-1] not in _BUFFER_ENDINGS


def ancestors(module: str) -> Iterator[str]:
    """Yield the paths around a module, from the inside out, the model itself (an empty path) last."""
    while module:
        module = module.rpartition(".")[0]
        yield module


_NUMBER = re.compile(r"\d+")


def without_numbers(module: str) -> str:
    """Return a path with every number as `#`: what layers of one kind in all blocks have in common."""
    return _NUMBER.sub("#", module)


@lru_cache(maxsize=4096)
def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        if pattern.startswith("re:"):
            return re.compile(pattern[3:])
        return re.compile(fnmatch.translate(pattern))
    except re.error as error:
        raise UsageError(f"pattern {pattern!r} is not a regular expression: {error}") from None


def check_pattern(pattern: str) -> None:
    """Refuse a pattern that is not a regular expression though it says so."""
    _compiled(pattern)


def matches(name: str, pattern: str) -> bool:
    r"""Tell whether a pattern names this tensor.

    A pattern is a shell pattern over the whole name (`*.bias`), a module's path, which stands for
    all below it and all that was recorded of it (`encoder.layers.0`, so `encoder.layers.0@1:output` too), or a
    regular expression found anywhere (`re:layers\.[0-3]\.`). What names a module names what was recorded of it
    (`*.norm`, `re:norm$`).
    """
    if _found(name, pattern):
        return True
    if ":" not in name or _WHOLE.search(pattern.removeprefix("re:")):
        return False
    return any(_found(each, pattern) for each in _owners(name))


_WHOLE = re.compile(r":|\(\?<?!")  # what speaks of slots, or of what is not there, is meant of the whole name
_SITE = re.compile(r"([^:@]+)(?:@\d+)?:([A-Za-z_]\w*)(?:[.#].*)?", re.DOTALL)
_OWNED = ("param", "param_grad", "buffer", "buffer_before")


def _owners(name: str) -> Iterator[str]:
    """Yield what a recorded tensor is of: a module; a parameter or buffer, and the module that has it."""
    site = _SITE.fullmatch(name)
    if site is None:
        return
    owner, slot = site.groups()
    if "%" in owner:  # a module may be called `relu@2`
        from urllib.parse import unquote

        owner = unquote(owner)
    yield owner
    if slot in _OWNED and "." in owner:
        yield owner.rpartition(".")[0]


def _found(name: str, pattern: str) -> bool:
    if pattern.startswith("re:"):
        return _compiled(pattern).search(name) is not None
    below = name.startswith(pattern) and name[len(pattern) : len(pattern) + 1] in ("", ".", ":", "@")
    return below or _compiled(pattern).match(name) is not None


def matches_any(name: str, patterns: Iterable[str]) -> bool:
    """Tell whether one of the patterns names this tensor, as written or without its wrappers."""
    bare = strip_wrappers(name)
    return any(matches(name, pattern) or matches(bare, pattern) for pattern in patterns)


def selected(name: str, include: Sequence[str], exclude: Sequence[str]) -> bool:
    """Tell whether a name is let in by `include` (empty: all) and not shut out by `exclude`."""
    if include and not matches_any(name, include):
        return False
    return not matches_any(name, exclude)


def parse_groups(specs: Iterable[str]) -> dict[str, str]:
    """Return {name: pattern} of `NAME=PATTERN` options."""
    groups: dict[str, str] = {}
    for spec in specs:
        name, equals, pattern = spec.partition("=")
        if not (name and equals and pattern):
            raise UsageError(f"--group {spec!r} is not NAME=PATTERN, for example head=classifier.*")
        if name in groups:
            raise UsageError(f"--group {name!r} is given twice")
        _compiled(pattern)
        groups[name] = pattern
    return groups


_SIZE_OR_DIRECTION = re.compile(r"(.+)_([gv])")
_PARAMETRIZATION = re.compile(r"(?:(.*)\.)?parametrizations\.([^.]+)")
_ROLES = {"original0": "g", "original1": "v"}


class Made(NamedTuple):
    """Say of which weight a parameter may be the size (g) or the direction (v)."""

    module: str
    weight: str
    role: str  # g or v


def made_of(module: str, tensor: str) -> Made | None:
    """Return what a parameter is by its name, if weight norm gives such names."""
    computed = original_of(module, tensor)
    if computed and tensor in _ROLES:
        return Made(*computed, _ROLES[tensor])
    named = _SIZE_OR_DIRECTION.fullmatch(tensor)
    return Made(module, named[1], named[2]) if named else None


def original_of(module: str, tensor: str) -> tuple[str, str] | None:
    """Return the module and name of what a parametrisation computes from a parameter, if one does."""
    computed = _PARAMETRIZATION.fullmatch(module)
    return (computed[1] or "", computed[2]) if computed and tensor.startswith("original") else None


def fits(g: Sequence[int], v: Sequence[int]) -> bool:
    """Return True if a tensor of shape `g` may hold the norms of one of shape `v`, as weight norm has them."""
    return bool(weight_norm_shapes(g, v))


def weight_norm_shapes(g: Sequence[int], v: Sequence[int]) -> list[tuple[int, ...]]:
    """Return the shapes in which the sizes of weight norm may be multiplied with the directions."""
    if len(g) == len(v) and all(size in (1, length) for size, length in zip(g, v, strict=True)):
        return [tuple(g)]
    if math.prod(g) == 1:
        return [(1,) * len(v)]
    shapes = []
    for axis, length in enumerate(v):
        if len(g) == 1 and length == g[0]:
            shapes.append((1,) * axis + (length,) + (1,) * (len(v) - axis - 1))
    return shapes
