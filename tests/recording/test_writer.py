"""The writer in plain NumPy: what goes in comes out, and nothing that is there is overwritten."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from nndiff.errors import SourceError, UsageError
from nndiff.recording import Writer, open_recording
from nndiff.recording.format.arrays import raw_array
from nndiff.recording.format.digests import PART, measure_tensor
from nndiff.recording.format.keep_levels import Keep, parse_keep, sketch_positions

KINDS = ["f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "?", "c8", "c16", ">f4", ">i8"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 3), (3, 4, 5)])
def test_arrays_come_back(kind: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    array = (np.arange(np.prod(shape)).reshape(shape) - 2).astype(kind)
    with Writer(tmp_path / "a.nnrec") as writer:
        writer.add("fc", "output", array)
        writer.add("fc", "output", array.T)
    tensors = open_recording(tmp_path / "a.nnrec").source().tensors
    assert list(tensors) == ["fc:output", "fc@1:output"]
    for name, wanted in (("fc:output", array), ("fc@1:output", array.T)):
        assert tensors[name].shape == wanted.shape
        assert tensors[name].dtype.name == array.dtype.newbyteorder("<").name
        assert np.array_equal(tensors[name].numpy(), wanted)


@pytest.mark.parametrize(
    ("numbers", "dtype", "wanted"),
    [
        ([1.5, 2, 3], None, "float64"),
        ([[1, 2, 3], [4, 5, 6]], None, "int64"),
        ([[True], [False]], None, "bool"),
        ([1, 2.5], "float32", "float32"),
        ([[[]]], None, "float64"),
    ],
)
def test_a_list_of_numbers_is_an_array(numbers: list[Any], dtype: str | None, wanted: str, tmp_path: Path) -> None:
    with Writer(tmp_path / "a.nnrec") as writer:
        writer.add("fc", "output", numbers, dtype=dtype)
        writer.add(
            "", "output", {"x": numbers, "y": (1.0, [np.ones(2), 3.0])}, dtype=dtype if dtype != "float32" else None
        )
    recording = open_recording(tmp_path / "a.nnrec")
    tensor = recording.source().tensors["fc:output"]
    assert (tensor.dtype.name, tensor.numpy().tolist()) == (wanted, numbers)
    assert [event.site.name for event in recording.tensors] == ["fc:output", "(model):output.x", "(model):output.y.1.0"]


@pytest.mark.parametrize("numbers", [[[1, 2], [3]], [1, [2, 3]], [2**70, 1], [[1, 2], []]])
def test_a_list_that_is_no_array_is_refused(numbers: list[Any], tmp_path: Path) -> None:
    with (
        Writer(tmp_path / "a.nnrec") as writer,
        pytest.raises(UsageError, match="'fc:output': this list of numbers cannot be turned into an array"),
    ):
        writer.add("fc", "output", numbers)


@pytest.mark.parametrize(
    ("slot", "meant"), [("foo", ""), ("outputs", " (did you mean output?)"), ("", ""), ("x" * 999, "")]
)
def test_a_slot_that_is_none_is_refused(slot: str, meant: str, tmp_path: Path) -> None:
    with Writer(tmp_path / "a.nnrec") as writer, pytest.raises(UsageError) as caught:
        writer.add("fc", slot, np.ones(3))
    assert str(caught.value).startswith(
        f"{slot[:100]!r} is not a slot{meant}; the slots are model_input, input, output,"
    )


ONE, TWO = np.ones((2, 3), np.float32), np.arange(4)


def test_a_module_that_is_no_text_is_refused(tmp_path: Path) -> None:
    with Writer(tmp_path / "a.nnrec") as writer, pytest.raises(UsageError, match="module must be a str, not 5"):
        writer.add(5, "output", np.ones(2))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "args", "kwargs"),
    [
        ([("", ONE)], 1, []),
        ([("", (ONE, TWO))], 2, []),
        ([("1", TWO), ("0", ONE)], 2, []),
        ([("", {"x": ONE, "mask": TWO})], 0, ["x", "mask"]),
        ([("0", ONE), ("length", 3), ("name", "text"), ("nothing", None)], 1, ["length", "name", "nothing"]),
    ],
)
def test_inputs_are_fed_again_by_their_paths(given: list[Any], args: int, kwargs: list[str], tmp_path: Path) -> None:
    with Writer(tmp_path / "a.nnrec") as writer:
        for path, value in given:
            writer.add("", "model_input", value, path=path)
    found, named = open_recording(tmp_path / "a.nnrec").inputs()
    assert (len(found), [*named]) == (args, kwargs)
    assert [each.numpy().tolist() for each in found] == [each.tolist() for each in (ONE, TWO)[:args]]
    assert {name: each for name, each in named.items() if not hasattr(each, "numpy")} == {
        path: value for path, value in given if path in ("length", "name", "nothing")
    }


@pytest.mark.parametrize("path", ["1", "x.0", "a b", "00", "²", "-1", "9" * 5000])
def test_inputs_whose_paths_say_nothing_are_not_fed(path: str, tmp_path: Path) -> None:
    with Writer(tmp_path / "a.nnrec") as writer:
        writer.add("", "model_input", ONE, path=path[:900])
    with pytest.raises(SourceError, match="cannot be fed again: the path of a model_input is the name of an argument"):
        open_recording(tmp_path / "a.nnrec").inputs()


def test_inputs_of_a_second_call_are_not_fed(tmp_path: Path) -> None:
    with Writer(tmp_path / "a.nnrec") as writer:
        writer.add("", "model_input", ONE)
        writer.add("", "model_input", ONE)
    with pytest.raises(SourceError, match="'\\(model\\)@1:model_input' is not from the first call"):
        open_recording(tmp_path / "a.nnrec").inputs()


@pytest.mark.parametrize("kind", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz"])
def test_element_types_numpy_lacks(kind: str, tmp_path: Path) -> None:
    array = np.linspace(-3, 3, 7).astype(getattr(ml_dtypes, kind))
    with Writer(tmp_path / "a.nnrec") as writer:
        writer.add("typed", "output", array)
        writer.add("raw", "output", array.view(f"u{array.itemsize}"), dtype=kind)
    tensors = open_recording(tmp_path / "a.nnrec").source().tensors
    assert tensors["typed:output"].dtype.name == tensors["raw:output"].dtype.name == kind
    assert np.array_equal(tensors["raw:output"].numpy(), array.astype(np.float32))
    assert tensors["typed:output"].trace.digest == tensors["raw:output"].trace.digest


def test_shards_are_plain_safetensors(tmp_path: Path) -> None:
    values = {"a": np.arange(5.0), "b": np.array([[True, False]]), "c": np.float16(2)}
    with Writer(tmp_path / "a.nnrec") as writer:
        writer.add("", "output", values)
    held = safetensors.numpy.load_file(tmp_path / "a.nnrec" / "shard-00000.safetensors")
    assert {name: value.tolist() for name, value in held.items()} == {
        f"(model):output.{name}": np.asarray(value).tolist() for name, value in values.items()
    }


def test_equal_bytes_are_stored_once(tmp_path: Path) -> None:
    array = np.random.default_rng(0).normal(size=(100, 100))
    with Writer(tmp_path / "a.nnrec") as writer:
        for number in range(10):
            writer.add(f"layer{number}", "output", array.copy())
        writer.add("turned", "output", array.reshape(50, 200))
    assert writer.data_bytes == 2 * array.nbytes
    recording = open_recording(tmp_path / "a.nnrec")
    assert [event.same for event in recording.tensors] == [None, *[0] * 9, None]
    assert all(np.array_equal(ref.numpy().ravel(), array.ravel()) for ref in recording.source().tensors.values())


def test_shards_roll_and_hold_what_the_events_say(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    arrays = {f"m{number}": random.normal(size=random.integers(1, 3000)) for number in range(60)}
    with Writer(tmp_path / "a.nnrec", shard_bytes=50_000) as writer:
        for name, array in arrays.items():
            writer.add(name, "output", array)
        writer.add("big", "output", np.ones(20_000))
    shards = sorted(path.name for path in (tmp_path / "a.nnrec").glob("*.safetensors"))
    assert len(shards) > 5
    tensors = open_recording(tmp_path / "a.nnrec").source().tensors
    assert all(np.array_equal(tensors[f"{name}:output"].numpy(), array) for name, array in arrays.items())


def test_a_header_that_is_full_rolls_too(tmp_path: Path) -> None:
    with Writer(tmp_path / "a.nnrec") as writer:
        for number in range(1500):
            writer.add("m" * 60 + str(number), "output", np.int8(number % 100))
    assert len(list((tmp_path / "a.nnrec").glob("*.safetensors"))) == 1  # equal bytes are stored once
    with Writer(tmp_path / "b.nnrec") as writer:
        for number in range(1500):
            writer.add("m" * 60 + str(number), "output", np.int32(number))
    assert len(list((tmp_path / "b.nnrec").glob("*.safetensors"))) > 2
    assert len(open_recording(tmp_path / "b.nnrec").source().tensors) == 1500


def test_plain_values_and_nothing(tmp_path: Path) -> None:
    values: dict[str, Any] = {
        "none": None,
        "nan": float("nan"),
        "inf": -float("inf"),
        "big": 2**70,
        "text": "",
        "flag": True,
    }
    with Writer(tmp_path / "a.nnrec") as writer:
        writer.add("", "output", values)
    recording = open_recording(tmp_path / "a.nnrec")
    found = {event.site.path: (event.type, event.value) for event in recording.values}
    assert found == {
        "none": ("NoneType", None), "nan": ("float", "nan"), "inf": ("float", "-inf"), "text": ("str", ""),
        "flag": ("bool", True),
    }  # fmt: skip
    (big,) = recording.tensors  # JSON has no room for it: its digits are kept as bytes
    assert (big.site.path, big.dtype, big.shape) == ("big", "uint8", (len(hex(2**70)),))


def test_one_site_is_recorded_once(tmp_path: Path) -> None:
    with Writer(tmp_path / "a.nnrec") as writer:
        writer.add("fc", "output", np.ones(3), call=0)
        with pytest.raises(UsageError, match="'fc:output' was recorded already"):
            writer.add("fc", "output", np.ones(3), call=0)
    with pytest.raises(UsageError, match="after the recording was finished"):
        writer.add("late", "output", np.ones(3))


def test_arrays_without_numbers_are_refused(tmp_path: Path) -> None:
    with Writer(tmp_path / "a.nnrec") as writer, pytest.raises(UsageError, match="cannot be recorded"):
        writer.add("fc", "output", np.array(["text"]))


def test_a_folder_with_something_else_is_never_touched(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("important")
    for overwrite in (False, True):
        with pytest.raises(SourceError, match="exists and is not a recording"):
            Writer(tmp_path, overwrite=overwrite)
    with pytest.raises(SourceError, match="exists and is not a folder"):
        Writer(tmp_path / "thesis.txt", overwrite=True)
    assert (tmp_path / "thesis.txt").read_text() == "important"
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_recording_is_overwritten_only_when_told(tmp_path: Path) -> None:
    path = tmp_path / "a.nnrec"
    for number in range(2):
        with Writer(path, {"run": number}, overwrite=bool(number), shard_bytes=1000) as writer:
            for step in range(5 - number * 3):
                writer.add(f"m{step}", "output", np.arange(200.0) + step)
    with pytest.raises(SourceError, match="overwrite=True"):
        Writer(path)
    recording = open_recording(path)
    assert recording.meta["run"] == 1
    assert len(list(path.glob("*.safetensors"))) == 2
    (path / "notes.txt").write_text("mine")
    with pytest.raises(SourceError, match="holds other files than a recording"):
        Writer(path, overwrite=True)
    assert len(open_recording(path).tensors) == 2


def test_an_exception_leaves_a_readable_recording(tmp_path: Path) -> None:
    def fail() -> None:
        with Writer(tmp_path / "a.nnrec") as writer:
            writer.add("fc", "output", np.arange(4.0))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    recording = open_recording(tmp_path / "a.nnrec")
    assert not recording.complete
    assert recording.notes == ("incomplete: the run was cut off, 1 event can be read",)
    assert np.array_equal(recording.source().tensors["fc:output"].numpy(), np.arange(4.0))
    assert not list((tmp_path / "a.nnrec").glob("*.part"))


def test_recordings_can_be_moved_and_name_no_folder(tmp_path: Path) -> None:
    with Writer(tmp_path / "a.nnrec") as writer:
        writer.add("fc", "output", np.arange(4.0))
    moved = (tmp_path / "a.nnrec").rename(tmp_path / "b.nnrec")
    assert np.array_equal(open_recording(moved).source().tensors["fc:output"].numpy(), np.arange(4.0))
    text = "".join((moved / name).read_text() for name in ("manifest.json", "events.jsonl"))
    assert str(tmp_path) not in text
    json.loads((moved / "manifest.json").read_text())


@pytest.mark.parametrize("level", ["digest", "stats", "sketch", "full"])
def test_levels_keep_what_they_say(level: str, tmp_path: Path) -> None:
    array = np.random.default_rng(0).normal(size=(50, 100))
    with Writer(tmp_path / "a.nnrec", keep=level) as writer:
        writer.add("fc", "output", array)
    (ref,) = open_recording(tmp_path / "a.nnrec").source().tensors.values()
    assert ref.trace.digest == measure_tensor(raw_array(array)).digest
    assert (ref.trace.stats is not None) == (level != "digest")
    assert (ref.missing is None) == (level == "full")
    if level == "sketch":
        assert np.array_equal(ref.trace.sketch.numpy(), array.ravel()[sketch_positions(array.size)])
    wanted = {"digest": 0, "stats": 0, "sketch": 1024 * 8, "full": array.nbytes}
    assert writer.data_bytes == wanted[level]


def test_keep_rules() -> None:
    assert parse_keep("stats") == Keep("stats")
    rules = parse_keep(["full:encoder.*", "digest:re:norm$", "sketch"])
    assert rules.level("encoder.norm", "encoder.norm:output") == "full"
    assert rules.level("decoder.norm", "decoder.norm:output") == "digest"
    assert rules.level("decoder.fc", "decoder.fc:output") == "sketch"
    assert parse_keep(["full:head"]).level("body", "body:output") == "stats"
    assert parse_keep(["full:head"]).level("head.fc", "head.fc:output") == "full"
    for bad in ("all", "full:", ["full", "stats"]):
        with pytest.raises(UsageError):
            parse_keep(bad)


@given(st.integers(0, 10_000_000))
def test_sketch_positions_are_inside_ascending_and_fixed(count: int) -> None:
    positions = sketch_positions(count)
    assert positions.size == min(count, 1024)
    assert np.array_equal(positions, sketch_positions.__wrapped__(count))
    if count:
        assert positions[0] >= 0
        assert positions[-1] < count
        assert (np.diff(positions) > 0).all()


FLOATS = hnp.arrays(
    st.sampled_from([np.float32, np.float64, np.float16, np.int64, np.uint8, np.bool_, np.complex64]),
    hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=6),
)


@given(FLOATS)
@example(np.array(1.35e154))  # its square is beyond float64
def test_statistics_are_those_of_numpy(array: np.ndarray[Any, Any]) -> None:
    stats = measure_tensor(raw_array(array)).stats
    assert stats is not None
    wide = np.abs(array.astype(np.complex128)) if array.dtype.kind == "c" else array.astype(np.float64)
    finite = wide[np.isfinite(wide)]
    assert (stats.count, stats.nonfinite) == (array.size, array.size - finite.size)
    if finite.size:
        assert (stats.min, stats.max) == (finite.min(), finite.max())
        assert stats.abs_max == np.abs(finite).max()
        with np.errstate(over="ignore", invalid="ignore"):
            wanted = finite.mean(), finite.std(), np.sqrt((finite**2).sum())
        for found, number in zip((stats.mean, stats.std, stats.l2), wanted, strict=True):
            if np.isfinite(number):
                assert found == pytest.approx(number, rel=1e-6, abs=1e-9 * (stats.abs_max or 1))


@pytest.mark.parametrize("offset", [0.0, 1e6, 1e12])
def test_statistics_of_many_parts_far_from_zero(offset: float) -> None:
    array = np.random.default_rng(0).normal(size=5 * PART // 8 + 3) + offset
    array[7] = np.nan
    stats = measure_tensor(raw_array(array)).stats
    assert stats is not None
    good = np.delete(array, 7)
    assert stats.nonfinite == 1
    assert stats.mean == pytest.approx(good.mean(), rel=1e-12)
    assert stats.std == pytest.approx(good.std(), rel=1e-4 if offset == 1e12 else 1e-7)


@given(FLOATS)
def test_digests_tell_values_places_types_and_shapes_apart(array: np.ndarray[Any, Any]) -> None:
    found = measure_tensor(raw_array(array)).digest
    assert found == measure_tensor(raw_array(array.copy(order="F"))).digest
    assert found != measure_tensor(raw_array(array[np.newaxis])).digest
    if array.size > 1 and array.tobytes() != array.ravel()[::-1].tobytes():
        assert found != measure_tensor(raw_array(array.ravel()[::-1].reshape(array.shape))).digest
    if array.dtype == np.float32:
        assert found != measure_tensor(raw_array(array.view(np.int32))).digest


def test_the_digest_is_the_documented_one() -> None:
    import hashlib

    import xxhash

    array = np.arange(3 * PART // 4 + 5, dtype=np.float32)
    data = array.tobytes()
    parts = (data[start : start + PART].ljust(256, b"\0") for start in range(0, len(data), PART))
    leaves = b"".join(xxhash.xxh3_128_intdigest(part).to_bytes(16, "little") for part in parts)
    wanted = hashlib.sha256(f"nndiff.tensor.2\nfloat32\n{array.size}\n".encode() + leaves).hexdigest()
    assert measure_tensor(raw_array(array)).digest == wanted


def test_a_run_that_never_went_backward_lacks_no_gradients(tmp_path: Path) -> None:
    import nndiff

    for name, gradient in (("a", False), ("b", True)):
        with Writer(tmp_path / name) as writer:
            writer.add("fc", "output", np.ones(3, np.float32))
            writer.add("", "output", np.ones(3, np.float32))
            if gradient:
                writer.add("fc", "grad_output", np.ones(3, np.float32))
    assert nndiff.compare(tmp_path / "a", tmp_path / "b").exit_code == 0
