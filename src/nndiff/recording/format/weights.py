"""Parameters and buffers that models held when they were recorded; their digests tell whether they are equal."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any, NamedTuple

from nndiff.names import ancestors


class HeldTensor(NamedTuple):
    """Identify the content of one parameter or buffer."""

    dtype: str
    shape: tuple[int, ...]
    digest: str

    @property
    def is_counter(self) -> bool:
        """Return True for a single integer, such as num_batches_tracked."""
        return self.shape == () and "int" in self.dtype


def read_held_tensors(meta: Mapping[str, Any]) -> dict[str, HeldTensor]:
    """Return the parameters and buffers of a recording by name; recordings by other writers may list none."""
    listed = meta.get("held")
    tensors: dict[str, HeldTensor] = {}
    for name, entry in listed.items() if isinstance(listed, Mapping) else ():
        if not isinstance(entry, Mapping):
            continue
        dtype, shape, digest = entry.get("dtype"), entry.get("shape"), entry.get("digest")
        if not (isinstance(dtype, str) and isinstance(digest, str) and isinstance(shape, list)):
            continue
        if all(type(size) is int for size in shape):
            tensors[name] = HeldTensor(dtype, tuple(shape), digest)
    return tensors


def collect_module_digests(meta: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Return the sorted digests of each module's own tensors: equal ones are known equal whatever their names."""
    digests: dict[str, list[str]] = {}
    for name, tensor in read_held_tensors(meta).items():
        digests.setdefault(name.rpartition(".")[0], []).append(tensor.digest)
    return {module: tuple(sorted(module_digests)) for module, module_digests in digests.items()}


def may_be_transposed(tensor: HeldTensor) -> bool:
    """Return True if swapping axes may keep the shape, so that another class may hold the same tensor transposed."""
    sizes = [size for size in tensor.shape if size > 1]
    return len(sizes) > len(set(sizes))


class WeightDifference(NamedTuple):
    """Hold how the tensors of two modules differ, by the reference's names."""

    common: int  # how many could be compared
    differing: tuple[str, ...]
    alone: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())  # own tensors that only one of the modules has


def compare_held_tensors(
    sides: tuple[Mapping[str, HeldTensor], Mapping[str, HeldTensor]],
    modules: tuple[str, str],
    without: Container[str] = (),
) -> WeightDifference:
    """Compare the tensors of two modules, and of the modules inside them, that have one name, shape and dtype.

    A tensor of another shape or dtype may have another layout, so nothing is known of it. Counters and the inner
    modules named in `without` are left out.
    """
    reference = _select_inside(sides[0], modules[0])
    candidate = _select_inside(sides[1], modules[1])
    prefix = f"{modules[0]}." if modules[0] else ""
    common, differing = 0, []
    for name, tensor in reference.items():
        partner = candidate.get(name)
        if partner is None or (tensor.dtype, tensor.shape) != (partner.dtype, partner.shape) or tensor.is_counter:
            continue
        if any(prefix + module in without for module in ancestors(name) if module):
            continue
        common += 1
        if tensor.digest != partner.digest:
            differing.append(prefix + name)
    alone = (_list_alone(reference, candidate, modules[0]), _list_alone(candidate, reference, modules[1]))
    return WeightDifference(common, tuple(differing), alone)


def _select_inside(tensors: Mapping[str, HeldTensor], module: str) -> dict[str, HeldTensor]:
    """Return the tensors of a module and of those inside it, by their names within the module."""
    prefix = f"{module}." if module else ""
    return {name[len(prefix) :]: tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _list_alone(tensors: Mapping[str, HeldTensor], partners: Mapping[str, HeldTensor], module: str) -> tuple[str, ...]:
    """Return the full names of the module's own tensors that its partner lacks."""
    names = []
    for name, tensor in tensors.items():
        if "." not in name and name not in partners and not tensor.is_counter:
            names.append(f"{module}.{name}".lstrip("."))
    return tuple(names)
