"""Folders of older scripts: hook data in the forms it comes in, training steps, and files that mean no good."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nndiff
from nndiff.errors import SourceError, UnsafeFileError
from nndiff.sources import open_source

A, B, C, D = (np.arange(6.0, dtype=np.float32) + each for each in range(4))


def folder(path: Path, hooks: Any, name: str = "hook_data.pkl", **files: Any) -> Path:
    path.mkdir(exist_ok=True)
    (path / name).write_bytes(pickle.dumps(hooks))
    for file, held in files.items():
        ending = "pkl" if file == "metadata" else "pt"
        (path / f"{file}.{ending}").write_bytes(pickle.dumps(held))
    return path


def named(path: Path) -> dict[str, list[float]]:
    return {name: tensor.numpy().tolist() for name, tensor in open_source(path).tensors.items()}


FOUR = {"fc:input.0": A, "fc:output": B, "fc:grad_output": C, "fc:grad_input.0": D}
PER_MODULE = {"forward_inputs": [A], "forward_outputs": B, "backward_input_grads": [D], "backward_output_grads": [C]}


@pytest.mark.parametrize(
    "hooks",
    [
        {"fc": PER_MODULE},
        {"fc": {key.removesuffix("s"): value for key, value in PER_MODULE.items()}},
        {"fc": {key.upper(): value for key, value in PER_MODULE.items()}},
        {key: {"fc": value} for key, value in PER_MODULE.items()},
        {"fc": {"input": (A,), "output": B, "grad_input": (D,), "grad_output": (C,)}},
        {"fc": {"inputs": A, "outputs": B, "input_grads": D, "gradients": C}},
        {"fc": {"forward": {"input": [A], "output": B}, "backward": {"input": [D], "output": [C]}}},
        {"forward": {"fc": {"input": [A], "output": B}}, "backward": {"fc": {"grad_input": [D], "grad_output": [C]}}},
        {"fc": {**PER_MODULE, "all_forward_outputs": [B], "all_forward_inputs": [[A]]}},
        [{"name": "fc", **PER_MODULE}],
        [("fc", PER_MODULE)],
        ({"fc": {"input": [A], "output": B}}, {"fc": {"grad_input": [D], "grad_output": [C]}}),
    ],
)
def test_hook_data_is_read_as_what_it_is_in_any_form(hooks: Any, tmp_path: Path) -> None:
    assert named(folder(tmp_path, hooks)) == {name: value.tolist() for name, value in FOUR.items()}


@pytest.mark.parametrize(
    ("hooks", "names"),
    [
        ({"layers.0": A, "layers.0.fc": B}, ["layers.0.fc:output", "layers.0:output"]),
        ({"output": {"forward": A, "backward": (B,)}}, ["output:output", "output:grad_output"]),
        ({"forward": {"output": A}, "backward": {"output": (B,)}}, ["output:output", "output:grad_output"]),
        ({"fc": {"logits": A, "output": B}}, ["fc:output.logits", "fc:output.output"]),
        ({"fc": {"forward": (A, None, B), "backward": (C, None, D)}}, [
            "fc:output.0", "fc:output.2", "fc:grad_output.0", "fc:grad_output.2",
        ]),
        ({"fc": {"forward": (A,), "backward": B}}, ["fc:output.0", "fc:grad_output.0"]),
        ({"fc": {"backward": (A,)}}, ["fc:grad_output"]),
        ({"fc": {"forward_outputs": B, "all_forward_outputs": [A, B]}}, ["fc:output", "fc@1:output"]),
        ({"": {"forward": A}, "fc": {"forward": B}}, ["fc:output", "(model):output"]),
    ],
)  # fmt: skip
def test_sites_of_hook_data(hooks: Any, names: list[str], tmp_path: Path) -> None:
    assert [*named(folder(tmp_path, hooks))] == names


def test_composites_begin_before_what_is_in_them_and_end_after_it(tmp_path: Path) -> None:
    """In the order of registration, as the public script writes it, and in the order in which hooks fired."""
    registered = ["block", "block.a", "block.b", "head"]
    values = {name: np.full(3, number, np.float32) for number, name in enumerate(registered)}
    for order in (registered, ["block.a", "block.b", "block", "head"]):
        hooks = {name: {"input": values[name], "output": values[name], "grad_output": values[name]} for name in order}
        found = [name.removesuffix(".0") for name in named(folder(tmp_path, hooks))]
        assert found == [
            *("block:input", "block.a:input", "block.a:output", "block.b:input", "block.b:output", "block:output"),
            *("head:input", "head:output"),
            *("head:grad_output", "block:grad_output", "block.b:grad_output", "block.a:grad_output"),
        ]


def test_a_call_knows_what_it_was_given_and_a_gradient_its_output(tmp_path: Path) -> None:
    hooks = {"a": {"input": [A], "output": B, "grad_output": [D]}, "b": {"input": [B, D], "output": C}}
    tensors = open_source(folder(tmp_path, hooks, input_data={"x": A})).tensors
    order = {name: tensor.trace.order for name, tensor in tensors.items()}
    links = [(link.how, link.event) for name in ("a:output", "b:output") for link in tensors[name].trace.inputs]
    fed, made = order["(model):model_input.x"], order["a:output"]
    assert links == [("equal", fed), ("equal", made), ("own", order["b:input.1"])]
    assert tensors["a:grad_output"].trace.forward == made
    assert tensors["a:grad_output"].trace.stats.abs_max == 8


def test_a_step_of_a_training_run_is_read_too(tmp_path: Path) -> None:
    hooks = {"fc": {"forward_inputs": [A], "forward_outputs": B, "all_forward_outputs": [B]}}
    files = {"batch": {"audio": A, "step": 3}, "forward_output": [C], "loss": np.float32(2), "metadata": {"step": 3}}
    source = open_source(folder(tmp_path, hooks, "layer_outputs.pkl", **files))
    assert [*source.tensors] == [
        *("(model):model_input.audio", "fc:input.0", "fc:output", "(model):output.0", "(model):loss"),
    ]
    assert source.meta["holds"] == ["output", "model_input", "loss", "input"]
    assert source.meta["settings"] == {"step": 3}


def test_settings_are_facts_and_no_inputs(tmp_path: Path) -> None:
    path = folder(
        tmp_path,
        {"fc": A},
        input_data={"x": A, "seed": 1, "lang": "en"},
        metadata={"seed": 7, "mode": "eval", "holds": 3},
    )
    source = open_source(path)
    assert [*source.tensors] == ["(model):model_input.x", "fc:output"]
    assert (source.meta["seed"], source.meta["mode"], source.meta["holds"]) == (7, "eval", ["output", "model_input"])
    assert source.meta["settings"] == {"seed": 7, "lang": "en", "mode": "eval", "holds": 3}


def test_what_has_no_place_is_told(tmp_path: Path) -> None:
    notes = open_source(folder(tmp_path, {"fc": {**PER_MODULE, "weights_norm": A}})).notes
    assert notes[0].startswith("1 gradient at module inputs (grad_input)")
    assert notes[1] == "not compared: 1 tensor under 'weights_norm'; the hook data does not say what they are"


class Call:
    def __reduce__(self) -> Any:
        return (pytest.fail, ("a pickle was executed",))


def test_classes_in_hook_data_are_not_loaded(tmp_path: Path) -> None:
    source = open_source(folder(tmp_path, {"fc": {"forward_outputs": A, "hook": Call()}}, input_data={"x": Call()}))
    assert [*source.tensors] == ["fc:output"]
    assert source.foreign


def test_hook_data_that_names_one_node_many_times_is_soon_refused(tmp_path: Path) -> None:
    node: Any = A
    for _ in range(60):
        node = {"forward": node, "Forward": node, "FORWARD": node}
    with pytest.raises(UnsafeFileError):
        named(folder(tmp_path, {f"m{number}": node for number in range(5)}))
    cycle: dict[str, Any] = {}
    cycle["forward"] = cycle
    assert named(folder(tmp_path, cycle)) == {}


@pytest.mark.parametrize("name", ["hook_data.pkl", "input_data.pt", "metadata.pkl", "forward_output.pt"])
@pytest.mark.parametrize("held", [b"", b"\x80\x04", b"no pickle at all", b"PK\x03\x04 no archive"])
def test_a_damaged_file_is_one_sentence(name: str, held: bytes, tmp_path: Path) -> None:
    path = folder(tmp_path, {"fc": A}, input_data={"x": A}, forward_output=A, metadata={})
    (path / name).write_bytes(held)
    with pytest.raises(SourceError, match=name):
        open_source(path)


@pytest.mark.parametrize("hooks", [7, None, "text", [A, B], [[[]]], Call()])
def test_hook_data_without_names_is_refused(hooks: Any, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"hook_data\.pkl: does not name the modules"):
        open_source(folder(tmp_path, hooks, forward_output=A, input_data={"x": A}))


def endless() -> Any:
    held: list[Any] = []
    held.append(held)
    return held


@pytest.mark.parametrize("held", [[1.0, 2.0], [[1.0], [2.0]], "text", Call(), {"a": "b"}, endless()])
@pytest.mark.parametrize("spoilt", ["hook", "forward_output", "parameter_gradients"])
def test_what_holds_no_tensors_is_told_and_never_passes(spoilt: str, held: Any, tmp_path: Path) -> None:
    files: dict[str, Any] = {"input_data": {"x": A}, "forward_output": B, "parameter_gradients": {"fc.weight": C}}
    hooks: dict[str, Any] = {"fc": {"forward": A}, "act": {"forward": B}}
    right = folder(tmp_path / "right", hooks, **files)
    if spoilt == "hook":
        hooks = {**hooks, "act": {"forward": held}}
    else:
        files[spoilt] = held
    wrong = folder(tmp_path / "wrong", hooks, **files)
    assert open_source(wrong).meta["not_recorded"]
    for sides in ((right, wrong), (wrong, right), (wrong, wrong)):
        assert nndiff.compare(*sides).exit_code != 0
    assert nndiff.compare(right, right).exit_code == 0


def test_hooks_that_were_handed_nothing_are_no_loss(tmp_path: Path) -> None:
    hooks = {"fc": {"forward": A, "backward_input_grads": (None,), "backward_output_grads": (C,)}}
    assert "not_recorded" not in open_source(folder(tmp_path, hooks)).meta


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_hook_data_that_is_no_file_is_one_sentence(tmp_path: Path) -> None:
    path = folder(tmp_path, {"fc": A}, forward_output=A, input_data={"x": A})
    (path / "hook_data.pkl").unlink()
    os.mkfifo(path / "hook_data.pkl")
    with pytest.raises(SourceError, match="named pipe"):
        open_source(path)
