"""A judged pair of two recordings with the recorded tensors behind it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from nndiff.result import Method, Pair
from nndiff.tensors import MODEL, Slot, TensorRef
from nndiff.verdict import RelationKind, Verdict


@dataclass(frozen=True)
class SitePair:
    """Hold a judged pair with the two recorded tensors behind it."""

    pair: Pair
    reference: TensorRef
    candidate: TensorRef

    @property
    def slot(self) -> Slot:
        """Return what the tensor is at its site."""
        return self.reference.site.slot

    @property
    def module(self) -> str:
        """Return the path of the module, by the reference's name."""
        return self.reference.site.module

    @property
    def candidate_module(self) -> str:
        """Return the path of the module, by the candidate's name."""
        return self.candidate.site.module

    @property
    def call(self) -> tuple[str, int]:
        """Return the call it belongs to: module and number of the call, by the reference."""
        return self.module, self.reference.site.call

    @property
    def order(self) -> int:
        """Return when it was taken, as the reference counts."""
        return self.reference.trace.order

    @property
    def orders(self) -> tuple[int, int]:
        """Return when it was taken, as the reference and as the candidate count."""
        return self.order, self.candidate.trace.order

    @property
    def tensors(self) -> tuple[TensorRef, TensorRef]:
        """Return the tensors of reference and candidate."""
        return self.reference, self.candidate

    @property
    def is_gradient(self) -> bool:
        """Return True for gradients."""
        return self.slot.is_gradient

    @property
    def is_part(self) -> bool:
        """Return True if one of the two tensors is a stretch of a larger layer."""
        return self.pair.method is Method.PARTS

    @property
    def is_norm(self) -> bool:
        """Return True for a normalisation layer, by the name of its class."""
        return "norm" in self.reference.site.cls.lower()

    @property
    def passed(self) -> bool:
        """Return True if the pair agrees, after an accepted relation if there is one."""
        return self.pair.verdict.passed

    @property
    def agrees_as_stored(self) -> bool:
        """Return True if the pair agrees without any relation."""
        return self.passed and self.pair.related is None

    @property
    def was_compared(self) -> bool:
        """Return True if numbers or digests decided about it."""
        return self.pair.verdict is not Verdict.NOT_COMPARED

    @property
    def owner(self) -> str:
        """Return the call for people: `encoder.ffn`, `encoder.ffn@2`."""
        module, call = self.call
        return f"{module or MODEL}@{call}" if call else module or MODEL

    def has_relation(self, kind: RelationKind) -> bool:
        """Return True if a relation of this kind was proven for it."""
        return self.pair.related is not None and self.pair.related.relation.kind is kind


def final_outputs_agree(pairs: Iterable[SitePair]) -> bool:
    """Return True if the model returned something that was compared, and all of it agrees."""
    finals = [site.passed for site in pairs if site.pair.is_final_output and site.was_compared]
    return bool(finals) and all(finals)


def outside_agrees(pairs: Iterable[SitePair]) -> bool:
    """Return True if everything that goes in and comes out agrees, a final output among it."""
    outside = [site for site in pairs if site.pair.is_outside]
    return any(site.pair.is_final_output for site in outside) and all(site.passed for site in outside)
