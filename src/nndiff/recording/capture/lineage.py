"""Which recorded tensor a tensor is, by its memory and version; keeps no tensor alive."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import torch
from torch.multiprocessing import reductions

from nndiff.recording.capture.tensors import find_memory
from nndiff.recording.format.digests import RawTensor, native, threads_for
from nndiff.recording.format.events import TensorEvent

_SWEPT_AT_ONCE = 4
_HASH_SPEEDUP = 4  # hashing is this much faster than measuring: only larger tensors are worth a second thread


@dataclass(frozen=True)
class _Snapshot:
    """Hold one recorded tensor as it lay in memory when it was recorded."""

    event: TensorEvent
    version: int
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    is_conj: bool
    is_neg: bool
    graph_node: tuple[int, ...]
    checksum: bytes
    low: int  # first byte in the storage
    high: int  # and the one behind the last
    is_dense: bool  # all bytes between belong to the tensor

    def is_tensor(self, tensor: torch.Tensor) -> bool:
        """Return True if a tensor has this place, form and graph node; its bytes are not looked at."""
        return (
            (self.offset, self.dtype) == (tensor.storage_offset(), tensor.dtype)
            and (self.shape, self.stride) == (tuple(tensor.shape), tensor.stride())
            and (self.is_conj, self.is_neg) == (tensor.is_conj(), tensor.is_neg())
            and self.graph_node == _get_graph_node(tensor)
        )

    def contains(self, low: int, high: int) -> bool:
        """Return True if a range of bytes lies inside."""
        return self.low <= low <= high <= self.high

    def is_unchanged(self, tensor: torch.Tensor, storage: torch.UntypedStorage) -> bool:
        """Return True if the memory still holds what was recorded: writes to `.data` raise no version."""
        if storage.nbytes() < self.high:
            return False  # freed by hand; a tensor placed there would make it grow again
        with torch.no_grad():
            now = torch.empty(0, dtype=self.dtype, device=tensor.device)
            now.set_(storage, self.offset, self.shape, self.stride)
            if self.is_conj:
                now = now.conj()
            if self.is_neg:
                now = torch._neg_view(now)
            return _compute_checksum(now) == self.checksum


class Lineage:
    """Find the event of a tensor that was recorded before.

    A storage's address is not enough, it may be reused: a weak reference tells whether it is still the same storage.
    The version tells whether torch wrote to it since; a checksum catches writes that torch does not see (`.data`,
    foreign kernels).
    """

    def __init__(self) -> None:
        self._storages: dict[int, tuple[_StorageReference, list[_Snapshot]]] = {}
        self._sweep_queue: deque[int] = deque()

    def remember(self, tensor: torch.Tensor, event: TensorEvent, raw: RawTensor | None = None) -> None:
        """Note the event of a tensor; hashes of `raw`, if it was measured, spare another pass over its bytes."""
        place = _find_storage(tensor)
        if place is None:
            return
        storage, version = place
        reference, snapshots = self._storages.get(storage._cdata, (None, []))
        if reference is None or reference.is_expired():
            reference, snapshots = _StorageReference(storage), []
        current = [snapshot for snapshot in snapshots if snapshot.version == version]
        current.append(_take_snapshot(tensor, version, event, raw))
        if storage._cdata not in self._storages:
            self._sweep_queue.append(storage._cdata)
        self._storages[storage._cdata] = (reference, current)

    def find_event(self, tensor: torch.Tensor) -> tuple[TensorEvent, str] | None:
        """Return the event a tensor is (`same`) or is a view of (`view`), or None."""
        self._sweep()
        storage, version, snapshots = self._find_snapshots(tensor)
        if storage is None:
            return None
        current = [snapshot for snapshot in reversed(snapshots) if snapshot.version == version]
        candidates = [snapshot for snapshot in current if snapshot.is_tensor(tensor)]
        if candidates:
            checksum = _compute_checksum(tensor)
            for snapshot in candidates:
                if snapshot.checksum == checksum:
                    return snapshot.event, "same"
        low, high = _find_byte_range(tensor)
        for snapshot in current:
            if snapshot.is_dense and snapshot.contains(low, high) and snapshot.is_unchanged(tensor, storage):
                return snapshot.event, "view"
        return None

    def find_overwritten(self, tensor: torch.Tensor) -> int | None:
        """Return the order of the event a tensor was before torch wrote to its memory in place, if it was one."""
        storage, version, snapshots = self._find_snapshots(tensor)
        if storage is None:
            return None
        low, high = _find_byte_range(tensor)
        for snapshot in reversed(snapshots):
            if snapshot.version < version and snapshot.contains(low, high):
                return snapshot.event.order
        return None

    def _find_snapshots(self, tensor: torch.Tensor) -> tuple[torch.UntypedStorage | None, int, list[_Snapshot]]:
        """Return a tensor's storage, version and the snapshots there; no storage if nothing is known of it."""
        place = _find_storage(tensor)
        if place is None:
            return None, 0, []
        storage, version = place
        reference, snapshots = self._storages.get(storage._cdata, (None, []))
        if reference is None or reference.is_expired():
            return None, 0, []
        return storage, version, snapshots

    def _sweep(self) -> None:
        """Forget storages that are gone, a few of the newest and of the oldest at a time.

        A weak reference keeps the small head of a storage in memory. Left between freed activations it would
        keep the allocator from joining their space, and memory would grow as if nothing were freed.
        """
        queue = self._sweep_queue
        newest = [queue.pop() for _ in range(min(_SWEPT_AT_ONCE, len(queue)))]
        oldest = [queue.popleft() for _ in range(min(_SWEPT_AT_ONCE, len(queue)))]
        for key in (*oldest, *reversed(newest)):
            if self._storages[key][0].is_expired():
                del self._storages[key]
            else:
                queue.append(key)


class _StorageReference:
    """Tell whether a storage still exists, without keeping it alive."""

    def __init__(self, storage: torch.UntypedStorage) -> None:
        self._reference = reductions.StorageWeakRef(storage)  # type: ignore[no-untyped-call]

    def is_expired(self) -> bool:
        """Return True if the storage is gone."""
        return bool(self._reference.expired())  # type: ignore[no-untyped-call]


def _find_storage(tensor: torch.Tensor) -> tuple[torch.UntypedStorage, int] | None:
    if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_inference() or tensor.numel() == 0:
        return None  # no single block of memory, or no version
    try:
        return tensor.untyped_storage(), tensor._version
    except (NotImplementedError, RuntimeError):
        return None  # wrappers without memory of their own


def _take_snapshot(tensor: torch.Tensor, version: int, event: TensorEvent, raw: RawTensor | None) -> _Snapshot:
    low, high = _find_byte_range(tensor)
    checksum = b""
    if native is not None and raw is not None and raw.hashes:
        # the digest was taken of the tensor's own memory, not of a copy: its hashes are the checksum
        measured_memory = (raw.flat.__array_interface__["data"][0], raw.flat.nbytes)
        checksum = raw.hashes if measured_memory == find_memory(tensor) else b""
    return _Snapshot(
        event=event,
        version=version,
        offset=int(tensor.storage_offset()),
        shape=tuple(tensor.shape),
        stride=tensor.stride(),
        dtype=tensor.dtype,
        is_conj=tensor.is_conj(),
        is_neg=tensor.is_neg(),
        graph_node=_get_graph_node(tensor),
        checksum=checksum or _compute_checksum(tensor),
        low=low,
        high=high,
        is_dense=high - low == tensor.numel() * tensor.element_size(),
    )


def _get_graph_node(tensor: torch.Tensor) -> tuple[int, ...]:
    """Return which node of the graph made a tensor: after a detach or an identity it is another."""
    node = tensor.grad_fn if tensor.requires_grad else None
    number = -1 if node is None else int(node._sequence_nr())
    return int(tensor.requires_grad), number, tensor.output_nr


def _find_byte_range(tensor: torch.Tensor) -> tuple[int, int]:
    """Return the first byte of a tensor in its storage, and the one behind the last."""
    first = last = int(tensor.storage_offset())
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        last += (size - 1) * stride
    return first * tensor.element_size(), (last + 1) * tensor.element_size()


def _compute_checksum(tensor: torch.Tensor) -> bytes:
    """Return what any stray write would change: the hashes of its memory, or a sum where there is no extension."""
    memory = find_memory(tensor) if native is not None else None
    if memory is not None:
        return bytes(native.hashes(*memory, threads_for(memory[1] // _HASH_SPEEDUP)))
    with torch.no_grad():
        plain = tensor.detach()
        if plain.is_complex():
            plain = torch.view_as_real(plain.resolve_conj())
        if plain.element_size() == 1 and plain.is_floating_point():
            plain = plain.view(torch.uint8)  # float8 has no sum
        is_short_float = plain.is_floating_point() and plain.element_size() < 4
        total = plain.sum(dtype=torch.float32) if is_short_float else plain.sum()
        return bytes(total.cpu().numpy().tobytes())
