"""Which recorded tensor a tensor is: by its memory and version, holding no tensor alive."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import torch
from torch.multiprocessing import reductions

from nndiff.recording.capture.tensors import memory_of
from nndiff.recording.format.digests import Raw
from nndiff.recording.format.events import TensorEvent
from nndiff.recording.format.native import native, threads_for

_SWEPT = 4
_CHEAP = 4  # how much less a hash takes than measuring: only large ones are worth a second thread


@dataclass(frozen=True)
class _Known:
    """Hold one recorded tensor as it lay in memory when it was taken."""

    event: TensorEvent
    version: int
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    flags: tuple[bool, bool]
    node: tuple[int, ...]
    check: bytes
    low: int  # bytes of the storage
    high: int
    dense: bool  # every one of them belongs to the tensor


class Lineage:
    """Find the event of a tensor that was recorded before.

    A storage's address alone is not enough, it may be given out again: a weak reference tells whether it
    is still the same. A version says whether torch wrote to it since; a checksum catches writes that go
    past torch (`.data`, foreign kernels).
    """

    def __init__(self) -> None:
        self._storages: dict[int, tuple[_Alive, list[_Known]]] = {}
        self._turn: deque[int] = deque()

    def remember(self, tensor: torch.Tensor, event: TensorEvent, raw: Raw | None = None) -> None:
        """Note which event a tensor became; `raw` is what was measured of it, which may spare another look."""
        place = _place(tensor)
        if place is None:
            return
        storage, version = place
        reference, known = self._storages.get(storage._cdata, (None, []))
        if reference is None or reference.expired():
            reference, known = _Alive(storage), []
        known = [each for each in known if each.version == version]
        known.append(_known(tensor, version, event, _check_of(raw, tensor) or _checksum(tensor)))
        if storage._cdata not in self._storages:
            self._turn.append(storage._cdata)
        self._storages[storage._cdata] = (reference, known)

    def find(self, tensor: torch.Tensor) -> tuple[TensorEvent, str] | None:
        """Return the event a tensor is (`same`) or is a view of (`view`), be it one of all of it, or None."""
        self._sweep()
        place = _place(tensor)
        if place is None:
            return None
        storage, version = place
        reference, known = self._storages.get(storage._cdata, (None, []))
        if reference is None or reference.expired():
            return None
        now = [each for each in known if each.version == version]
        return _same(tensor, now) or _view(tensor, storage, now)

    def before(self, tensor: torch.Tensor) -> int | None:
        """Return the order of the event a tensor was before torch wrote to its memory in place, if it was one."""
        place = _place(tensor)
        reference, known = self._storages.get(place[0]._cdata, (None, [])) if place else (None, [])
        if place is None or reference is None or reference.expired():
            return None
        low, high = _span(tensor)
        older = (each for each in reversed(known) if each.version < place[1])
        return next((each.event.order for each in older if each.low <= low <= high <= each.high), None)

    def _sweep(self) -> None:
        """Let go of storages that are gone, the newest and a few others at each turn.

        A weak reference keeps the small head of a storage in memory. Left between freed activations it would
        keep the allocator from joining their space, and memory would grow as if nothing were freed.
        """
        newest = [self._turn.pop() for _ in range(min(_SWEPT, len(self._turn)))]
        oldest = [self._turn.popleft() for _ in range(min(_SWEPT, len(self._turn)))]
        self._turn.extend(key for key in (*oldest, *reversed(newest)) if self._is_alive(key))

    def _is_alive(self, key: int) -> bool:
        if self._storages[key][0].expired():
            del self._storages[key]
            return False
        return True


class _Alive:
    """Tell whether a storage is still there, without keeping it there."""

    def __init__(self, storage: torch.UntypedStorage) -> None:
        self._reference = reductions.StorageWeakRef(storage)  # type: ignore[no-untyped-call]

    def expired(self) -> bool:
        """Tell whether the storage is gone."""
        return bool(self._reference.expired())  # type: ignore[no-untyped-call]


def _place(tensor: torch.Tensor) -> tuple[torch.UntypedStorage, int] | None:
    if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_inference() or tensor.numel() == 0:
        return None  # memory that cannot be told apart, or versions that are not counted
    try:
        return tensor.untyped_storage(), tensor._version
    except (NotImplementedError, RuntimeError):
        return None  # wrappers without memory of their own


def _known(tensor: torch.Tensor, version: int, event: TensorEvent, check: bytes) -> _Known:
    low, high = _span(tensor)
    return _Known(
        event=event,
        version=version,
        offset=int(tensor.storage_offset()),
        shape=tuple(tensor.shape),
        stride=tensor.stride(),
        dtype=tensor.dtype,
        flags=(tensor.is_conj(), tensor.is_neg()),
        node=_node(tensor),
        check=check,
        low=low,
        high=high,
        dense=high - low == tensor.numel() * tensor.element_size(),
    )


def _same(tensor: torch.Tensor, known: list[_Known]) -> tuple[TensorEvent, str] | None:
    alike = [
        each
        for each in reversed(known)
        if (each.offset, each.dtype) == (tensor.storage_offset(), tensor.dtype)
        and (each.shape, each.stride) == (tuple(tensor.shape), tensor.stride())
        and each.flags == (tensor.is_conj(), tensor.is_neg())
        and each.node == _node(tensor)
    ]
    check = _checksum(tensor) if alike else b""
    return next(((each.event, "same") for each in alike if each.check == check), None)


def _node(tensor: torch.Tensor) -> tuple[int, ...]:
    """Return which node of the graph made a tensor: what is detached, or goes through an identity, is another."""
    made_by = tensor.grad_fn if tensor.requires_grad else None
    number = -1 if made_by is None else int(made_by._sequence_nr())
    return int(tensor.requires_grad), number, tensor.output_nr


def _view(tensor: torch.Tensor, storage: torch.UntypedStorage, known: list[_Known]) -> tuple[TensorEvent, str] | None:
    low, high = _span(tensor)
    for each in reversed(known):
        if each.dense and each.low <= low <= high <= each.high and _is_unwritten(each, tensor, storage):
            return each.event, "view"
    return None


def _is_unwritten(known: _Known, tensor: torch.Tensor, storage: torch.UntypedStorage) -> bool:
    """Tell whether a recorded tensor still lies in memory as it was taken: `.data` writes raise no version."""
    if storage.nbytes() < known.high:
        return False  # freed by hand; to lay a tensor there would make it grow again
    with torch.no_grad():
        now = torch.empty(0, dtype=known.dtype, device=tensor.device)
        now.set_(storage, known.offset, known.shape, known.stride)
        now = now.conj() if known.flags[0] else now
        now = torch._neg_view(now) if known.flags[1] else now
        return _checksum(now) == known.check


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    start = int(tensor.storage_offset())
    return start * tensor.element_size(), (start + reach + 1) * tensor.element_size()


def _check_of(raw: Raw | None, tensor: torch.Tensor) -> bytes:
    """Return the hashes that were taken with the digest, if those were of the very memory of the tensor."""
    if native is None or raw is None or not raw.hashes:
        return b""
    memory = (raw.flat.__array_interface__["data"][0], raw.flat.nbytes)
    return raw.hashes if memory == memory_of(tensor) else b""


def _checksum(tensor: torch.Tensor) -> bytes:
    """Return what any stray write would change: the hashes of its memory, or without the extension a sum."""
    memory = memory_of(tensor) if native is not None else None
    if memory is not None:
        return bytes(native.hashes(*memory, threads_for(memory[1] // _CHEAP)))
    with torch.no_grad():
        bare = tensor.detach()
        if bare.is_complex():
            bare = torch.view_as_real(bare.resolve_conj())
        if bare.element_size() == 1 and bare.is_floating_point():
            bare = bare.view(torch.uint8)  # float8 has no sum
        small = bare.is_floating_point() and bare.element_size() < 4
        total = bare.sum(dtype=torch.float32) if small else bare.sum()
        return bytes(total.cpu().numpy().tobytes())
