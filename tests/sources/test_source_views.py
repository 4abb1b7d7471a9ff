"""Views of any shape, stride and offset: what torch sees is what is read, whole or in pieces."""

from __future__ import annotations

import math
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from source_checks import EVERY, raw_bytes, tensor_of

from nndiff.errors import SourceError
from nndiff.files import RegularFile, Window
from nndiff.tensors import StridedFileData, is_contiguous, take

FAR = 1 << 21  # elements of a storage in which views lie far apart
axes = st.lists(st.integers(0, 5), max_size=5)


@st.composite
def views(draw: st.DrawFn) -> tuple[list[int], list[int], int, int]:
    """Draw shape, strides, offset and the elements a storage must have."""
    shape = draw(axes)
    strides = [draw(st.integers(0, 30)) for _ in shape]
    offset = draw(st.integers(0, 20))
    last = offset + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True) if size)
    return shape, strides, offset, last + 1 + draw(st.integers(0, 3))


ranges = st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=6)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("views")


@pytest.fixture(scope="module")
def far_storage(folder: Path) -> tuple[Path, np.ndarray]:
    storage = np.arange(FAR, dtype=np.uint32)
    storage.tofile(folder / "far")
    return folder / "far", storage


@settings(max_examples=150)
@given(view=views(), dtype=st.sampled_from(EVERY), ranges=ranges, lead=st.integers(0, 9))
def test_strided_views_of_a_file(
    folder: Path,
    view: tuple[list[int], list[int], int, int],
    dtype: torch.dtype,
    ranges: list[tuple[float, float]],
    lead: int,
) -> None:
    shape, strides, offset, held = view
    storage = tensor_of(dtype, (held,))
    truth = torch.as_strided(storage, shape, strides, offset)
    wanted, item = raw_bytes(truth), storage.element_size()
    path = folder / "storage"
    path.write_bytes(b"x" * lead + raw_bytes(storage) + b"tail")  # legacy files align nothing
    window = Window(RegularFile(str(path)), lead, held * item)
    data = StridedFileData(window, np.dtype(f"V{item}"), offset, tuple(shape), tuple(strides))
    count = math.prod(shape)
    for low, high in [(0.0, 1.0), *ranges]:
        start, stop = sorted((round(low * count), round(high * count)))
        assert data.read(start, stop).tobytes() == wanted[start * item : stop * item]


@st.composite
def far_views(draw: st.DrawFn) -> tuple[list[int], list[int], int]:
    """Draw shape, strides and offset of a view with gaps of up to a hundred kilobytes, and megabytes in all."""
    offset = draw(st.integers(0, 100))
    shape, strides, last = [], [], offset
    for _ in range(draw(st.integers(1, 4))):
        stride = draw(st.one_of(st.integers(0, 30), st.integers(0, 1 << 15)))
        size = draw(st.integers(1, 20))
        size = min(size, (FAR - 1 - last) // stride + 1) if stride else size
        shape.append(size)
        strides.append(stride)
        last += (size - 1) * stride
    return shape, strides, offset


@settings(max_examples=150)
@given(view=far_views(), ranges=ranges)
@example(view=([900, 1000], [1, 2000], 7), ranges=[(0.1, 0.9)])  # a transposed matrix, too large to be read at once
def test_views_that_lie_far_apart_in_a_file(
    far_storage: tuple[Path, np.ndarray], view: tuple[list[int], list[int], int], ranges: list[tuple[float, float]]
) -> None:
    path, storage = far_storage
    shape, strides, offset = view
    truth = np.lib.stride_tricks.as_strided(storage[offset:], shape, [stride * 4 for stride in strides]).reshape(-1)
    data = StridedFileData(Window(RegularFile(str(path))), storage.dtype, offset, tuple(shape), tuple(strides))
    for low, high in [(0.0, 1.0), *ranges]:
        start, stop = sorted((round(low * truth.size), round(high * truth.size)))
        np.testing.assert_array_equal(data.read(start, stop), truth[start:stop])


def test_a_view_beyond_its_storage_is_refused(far_storage: tuple[Path, np.ndarray]) -> None:
    path, storage = far_storage
    data = StridedFileData(Window(RegularFile(str(path))), storage.dtype, 1, (FAR // 1024, 2), (1024, 1023))
    with pytest.raises(SourceError, match=f"ends after {storage.nbytes} bytes"):
        data.read(0, FAR // 512)


@settings(max_examples=150)
@given(view=views(), ranges=ranges)
def test_taking_a_range_of_any_view(
    view: tuple[list[int], list[int], int, int], ranges: list[tuple[float, float]]
) -> None:
    shape, strides, offset, held = view
    storage = np.arange(held)
    array = np.lib.stride_tricks.as_strided(storage[offset:], shape, [stride * 8 for stride in strides])
    truth = array.reshape(-1)
    for low, high in ranges:
        start, stop = sorted((round(low * array.size), round(high * array.size)))
        np.testing.assert_array_equal(take(array, start, stop), truth[start:stop])


@given(view=views())
def test_contiguous_means_what_torch_means(view: tuple[list[int], list[int], int, int]) -> None:
    shape, strides, offset, held = view
    truth = torch.as_strided(torch.zeros(held), shape, strides, offset)
    assert is_contiguous(shape, strides) == truth.is_contiguous()


@settings(max_examples=40)
@given(views=st.lists(views(), min_size=1, max_size=4), as_zip=st.booleans())
def test_views_saved_by_torch(folder: Path, views: list[tuple[list[int], list[int], int, int]], as_zip: bool) -> None:
    from nndiff.sources import open_source

    storage = torch.arange(float(max(held for *_, held in views)))
    wanted = {str(number): torch.as_strided(storage, *view[:3]) for number, view in enumerate(views)}
    torch.save(wanted, folder / "x.pt", _use_new_zipfile_serialization=as_zip)
    opened = open_source(folder / "x.pt")
    for name, truth in wanted.items():
        assert opened.tensors[name].shape == tuple(truth.shape)
        np.testing.assert_array_equal(opened.tensors[name].numpy(), truth.numpy())
