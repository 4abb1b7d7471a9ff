"""Which recorded tensor a tensor is, and that no write goes unnoticed."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from nndiff.recording.capture import lineage as lineages
from nndiff.recording.capture import state as states
from nndiff.recording.capture.lineage import Lineage
from nndiff.recording.capture.state import State
from nndiff.recording.capture.tensors import find_memory, raw_tensor
from nndiff.recording.format import digests as measuring
from nndiff.recording.format.digests import measure_tensor
from nndiff.recording.format.events import TensorEvent
from nndiff.tensors import Site

BASE = torch.arange(24, dtype=torch.float32)
MADE = {
    "in a row": lambda base: base.view(4, 6),
    "permuted": lambda base: base.view(2, 3, 4).permute(2, 0, 1),
    "with gaps": lambda base: base.view(4, 6)[:, ::2],
    "expanded": lambda base: base[:4].expand(3, 4),
    "behind the start": lambda base: base[5:17],
    "half": lambda base: base.half(),
    "conjugated": lambda base: torch.view_as_complex(base.view(-1, 2)).conj(),
}


def event() -> TensorEvent:
    return TensorEvent(0, Site("a", "output"), (1,), "float32", "stats", "0" * 64)


@pytest.fixture(params=["in C", "in torch"])
def _way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "in torch":
        for module in (lineages, measuring, states):
            monkeypatch.setattr(module, "native", None)


@pytest.mark.usefixtures("_way")
@pytest.mark.parametrize("kind", MADE)
@pytest.mark.parametrize("measured", [True, False])
def test_a_tensor_is_known_again_until_a_write_past_torch(kind: str, measured: bool) -> None:
    tensor = MADE[kind](BASE.clone())
    raw = raw_tensor(tensor)
    measure_tensor(raw)
    known = Lineage()
    known.remember(tensor, event(), raw if measured else None)
    assert known.find_event(tensor) == (event(), "same")
    tensor.data[0] += 1
    found = known.find_event(tensor)
    assert found is None or found[1] != "same"


def test_a_storage_freed_by_hand_stays_freed() -> None:
    tensor = BASE.clone()
    view = tensor[4:]
    known = Lineage()
    known.remember(tensor, event())
    tensor.untyped_storage().resize_(0)
    assert known.find_event(view) is None
    assert tensor.untyped_storage().nbytes() == 0


VIEWS = {
    "a part": lambda tensor: tensor[1:],
    "turned": lambda tensor: tensor.transpose(0, 1),
    "other bits": lambda tensor: tensor.view(torch.int32),
}


@pytest.mark.usefixtures("_way")
@pytest.mark.parametrize("kind", VIEWS)
@pytest.mark.parametrize("write", ["copy_", "add_"])
def test_a_view_is_no_longer_one_after_a_write_past_torch(kind: str, write: str) -> None:
    tensor = BASE.clone().view(4, 6)
    view = VIEWS[kind](tensor)
    known = Lineage()
    known.remember(tensor, event())
    assert known.find_event(view) == (event(), "view")
    getattr(tensor.data, write)(torch.ones(4, 6))
    assert known.find_event(view) is None
    again = replace(event(), order=1)
    known.remember(tensor, again)
    assert known.find_event(view) == (again, "view"), "the new contents are known again"


@pytest.mark.usefixtures("_way")
@pytest.mark.parametrize("kind", ["conjugated", "negated"])
def test_views_of_what_is_stored_the_other_way_round(kind: str) -> None:
    tensor = MADE["conjugated"](BASE.clone())
    tensor = tensor.imag if kind == "negated" else tensor
    assert tensor.is_conj() or tensor.is_neg()
    known = Lineage()
    known.remember(tensor, event())
    found = known.find_event(tensor.view(2, 6))
    assert found == ((event(), "view") if kind == "conjugated" else None), "an imaginary part has gaps"


def test_memory_is_only_named_where_it_is_all_of_the_tensor() -> None:
    assert find_memory(BASE) == (BASE.data_ptr(), 96)
    assert find_memory(BASE.view(2, 3, 4).permute(2, 0, 1)) == (BASE.data_ptr(), 96)
    assert find_memory(BASE.as_strided((2, 2), (3, 0))) is None
    assert find_memory(BASE[::2]) is None
    assert find_memory(BASE[:0]) is None
    assert find_memory(torch.empty(4, device="meta")) is None
    assert find_memory(BASE.as_subclass(type("Own", (torch.Tensor,), {}))) is None
    freed = torch.ones(8)[4:]
    freed.untyped_storage().resize_(0)
    assert find_memory(freed) is None


@pytest.mark.usefixtures("_way")
@pytest.mark.parametrize("asked", [True, False])
def test_parameters_written_past_torch_are_put_back(asked: bool) -> None:
    model = torch.nn.Linear(3, 4)
    before = model.weight.detach().clone()
    state = State(model)
    for _ in range(2):  # what was found once must not stand for the next time
        model.weight.data[0, 0] += 1
        if asked:
            assert state.list_changed_parameters() == ["weight"]
        state.restore()
        assert torch.equal(model.weight, before)
        if asked:
            assert state.list_changed_parameters() == []
        state.clear_gradients()


@pytest.mark.parametrize("kind", MADE)
def test_what_a_tensor_was_before_it_was_written_to_is_known(kind: str) -> None:
    base = BASE.clone()
    tensor = MADE[kind](base)
    known = Lineage()
    assert known.find_overwritten(tensor) is None
    known.remember(tensor, replace(event(), order=7))
    assert known.find_overwritten(tensor) is None
    (tensor if kind == "half" else base).mul_(2)  # all others are views of it
    assert known.find_overwritten(tensor) == 7
    assert known.find_overwritten(MADE[kind](BASE.clone())) is None
    known.remember(tensor, replace(event(), order=8))
    assert known.find_overwritten(tensor) is None
