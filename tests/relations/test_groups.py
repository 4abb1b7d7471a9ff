"""Groups: names say what to try and the proof decides, in state dicts as torch and PEFT write them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from relation_tensors import check
from stored_tensors import draw, store
from test_relation_fold import train_norm
from torch.nn.utils.fusion import fuse_conv_bn_eval

from nndiff.relations.fold_operations import AddLowRank, FoldBatchNorm, FoldNorm
from nndiff.relations.groups import list_nearest, relate_groups, split_targets
from nndiff.relations.operations import WeightNorm


def as_tensors(state):
    return {name: store(tensor, name) for name, tensor in state.items()}


def relate(reference, candidate, pairs=None):
    common = [(name, name) for name in reference if name in candidate] if pairs is None else pairs
    groups = relate_groups(as_tensors(reference), as_tensors(candidate), common, 1e-5, 1e-5)
    for group in groups:
        sides = [[tensor.numpy() for tensor in tensors] for tensors in (group.reference, group.candidate)]
        check(group.relation, *sides)
    return groups


def make_network():
    torch.manual_seed(0)
    network = torch.nn.Sequential()
    for number in range(3):
        network.add_module(f"conv{number}", torch.nn.Conv2d(8, 8, 3, bias=number == 1))
        network.add_module(f"bn{number}", train_norm(torch.nn.BatchNorm2d(8), seed=10 * number))
    return network.eval()


def fold_network(network):
    folded = torch.nn.Sequential()
    for number in range(3):
        conv, norm = network.get_submodule(f"conv{number}"), network.get_submodule(f"bn{number}")
        folded.add_module(f"conv{number}", fuse_conv_bn_eval(conv, norm))
    return folded


def test_batch_norms_are_found_with_their_layers():
    network = make_network()
    parts, folded = network.state_dict(), fold_network(network).state_dict()
    for sides in ((parts, folded), (folded, parts)):
        groups = relate(*sides)
        assert len(groups) == 3
        for group in groups:
            operations = group.relation.reference or group.relation.candidate
            tensors = group.reference if sides[0] is parts else group.candidate
            assert {tensor.name.split(".")[0][-1] for tensor in tensors} == {tensors[0].name[4]}
            assert any(isinstance(operation, FoldBatchNorm) for operation in (*operations, *group.relation.candidate))


def test_folded_tensors_are_made_one_by_one():
    network = make_network()
    parts, folded = network.state_dict(), fold_network(network).state_dict()
    group = relate(parts, folded)[0]
    targets = split_targets(group.relation, 2)
    for operations, target in zip(targets, group.candidate, strict=True):
        arrays = [tensor.numpy() for tensor in group.reference]
        for operation in operations:
            arrays = operation.apply(arrays)
        assert np.allclose(arrays[0], target.numpy(), atol=1e-6)
    assert split_targets(relate(folded, parts)[0].relation, 6) is None


@pytest.mark.parametrize("wrapper", ["", "base_model.model."])
@pytest.mark.parametrize(("base", "adapter"), [("base_layer.weight", "default.weight"), ("weight", "weight")])
def test_adapters_are_found(wrapper, base, adapter):
    parts, merged = {}, {}
    for number in range(2):
        weight, down, up = draw(16, 24, seed=number), draw(4, 24, seed=5 + number), draw(16, 4, seed=9 + number)
        parts[f"{wrapper}layers.{number}.q.{base}"] = weight
        parts[f"{wrapper}layers.{number}.q.lora_A.{adapter}"] = down
        parts[f"{wrapper}layers.{number}.q.lora_B.{adapter}"] = up
        merged[f"layers.{number}.q.weight"] = weight + 0.5 * up @ down
    groups = relate(parts, merged, pairs=[])
    assert [group.relation.reference for group in groups] == [(AddLowRank(0.5, False),)] * 2
    merged["layers.1.q.weight"][3, 3] += 1e-3
    assert len(relate(parts, merged, pairs=[])) == 1


@pytest.mark.parametrize("normalise", [torch.nn.utils.weight_norm, torch.nn.utils.parametrizations.weight_norm])
@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
def test_weight_norm_is_found_in_both_forms(normalise):
    torch.manual_seed(0)
    plain = torch.nn.Sequential(torch.nn.Conv1d(4, 6, 3), torch.nn.Linear(6, 5))
    state = {name: tensor.clone() for name, tensor in plain.state_dict().items()}
    normed = torch.nn.Sequential(*[normalise(layer) for layer in plain]).state_dict()
    for sides in ((state, normed), (normed, state)):
        groups = relate(*sides)
        assert len(groups) == 2
        operations = [*groups[0].relation.reference, *groups[0].relation.candidate]
        assert isinstance(operations[0], WeightNorm)
    name = next(name for name in normed if name.endswith(("_v", "original1")))
    normed[name] = normed[name].flip(0)
    assert len(relate(state, normed)) == 1


def test_the_norm_before_a_layer_is_found():
    parts, folded = {}, {}
    for number in range(2):
        gamma = 1 + 0.1 * draw(16, seed=number)
        parts[f"h.{number}.input_norm.weight"], folded[f"h.{number}.input_norm.weight"] = gamma, torch.ones(16)
        for seed, leaf in enumerate(("q", "k", "v")):
            weight = draw(12, 16, seed=10 * number + seed + 5)
            parts[f"h.{number}.attn.{leaf}.weight"], folded[f"h.{number}.attn.{leaf}.weight"] = weight, weight * gamma
    groups = relate(parts, folded)
    assert len(groups) == 6
    for group in groups:
        assert group.relation.reference == (FoldNorm(1, False),)
        assert group.reference[0].name[:3] == group.reference[1].name[:3]


def test_unrelated_tensors_make_no_group():
    network, other = make_network(), make_network()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(1e-3 * torch.randn_like(parameter))
    assert relate(network.state_dict(), fold_network(other).state_dict()) == []
    assert relate(network.state_dict(), other.state_dict()) == []


def test_the_nearest_come_first():
    names = [f"h.{number}.norm" for number in range(12)]
    assert list_nearest("h.3.q", names)[0] == "h.3.norm"
    assert len(list_nearest("h.3.q", names)) == 8  # MOST_NORMS_TRIED
    assert list_nearest("bn2", ["conv1", "conv2", "conv3"])[0] == "conv2"
    assert list_nearest("features.3", ["features.0", "features.2", "features.11"])[0] == "features.2"
