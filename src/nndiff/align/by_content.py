"""Pairing by equal content: outputs and inputs of the model whose bytes are the same on both sides."""

from __future__ import annotations

from collections.abc import Hashable

from nndiff.align.alignment import Draft
from nndiff.align.calls import Call, CallPairs
from nndiff.align.containers import pairs_of_same_content
from nndiff.result import Method
from nndiff.tensors import Slot, TensorRef


def pair_model_inputs(draft: Draft) -> None:
    """Pair equal inputs of the two models that go by different names, or by their places."""
    reference = [tensor for tensor in draft.free_tensors(False) if tensor.site.slot is Slot.MODEL_INPUT]
    candidate = [tensor for tensor in draft.free_tensors(True) if tensor.site.slot is Slot.MODEL_INPUT]
    for reference_tensor, candidate_tensor in pairs_of_same_content(reference, candidate):
        draft.pair(reference_tensor.name, candidate_tensor.name, Method.CONTENT)


def pair_by_content(pairs: CallPairs) -> None:
    """Pair calls of one class whose outputs are the same bytes, where only one on each side returns them."""
    pairs.pair_unique(_class_and_content, Method.CONTENT, certain=True)
    calls = (*pairs.reference, *pairs.candidate)
    if not all(call.cls for call in calls):  # whoever wrote the recording did not tell classes
        pairs.pair_unique(_content, Method.CONTENT, certain=True)


def _class_and_content(call: Call) -> Hashable | None:
    content = _content(call)
    return None if content is None else (call.cls, content)


def _content(call: Call) -> Hashable | None:
    """Return shapes and digests of the outputs; None where too little is there to tell them from others."""
    digests = tuple(output.trace.digest for output in call.outputs)
    is_telling = all(digests) and any(_is_telling(output) for output in call.outputs)
    return (call.shapes, digests) if is_telling else None


def _is_telling(tensor: TensorRef) -> bool:
    """Return False for single elements and constants, which are equal by chance."""
    stats = tensor.trace.stats
    return tensor.count > 1 and (stats is None or stats.min != stats.max)
