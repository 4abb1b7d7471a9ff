"""What every family of findings looks at: two runs, where they part, and what is known of their models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from nndiff.diagnosis.first_divergence import Place, Run
from nndiff.diagnosis.modules import Meta, Trees, read_module_tree, was_run_by_nndiff
from nndiff.diagnosis.site_pairs import SitePair
from nndiff.result import Judgement, Leftover
from nndiff.verdict import Outcome


@dataclass(frozen=True)
class Case:
    """Hold two runs, where they part, and what is known of their models."""

    run: Run
    reference: Meta
    candidate: Meta
    judgement: Judgement
    place: Place | None = None
    leftovers: Sequence[Leftover] = ()

    @property
    def passed(self) -> bool:
        """Return True if the candidate was judged to be the same."""
        return self.judgement.outcome in (Outcome.IDENTICAL, Outcome.CLOSE)

    @property
    def first(self) -> SitePair | None:
        """Return the pair that differs first; None where nothing does, or where a side lacks a tensor."""
        return self.place if isinstance(self.place, SitePair) else None

    @property
    def metas(self) -> tuple[Meta, Meta]:
        """Return what is known of reference and candidate."""
        return self.reference, self.candidate

    @cached_property
    def trees(self) -> Trees:
        """Return the modules of reference and candidate by their path."""
        return read_module_tree(self.reference), read_module_tree(self.candidate)

    @property
    def was_run_by_nndiff(self) -> bool:
        """Return True if nndiff ran both models itself, so that its options can run them differently."""
        return was_run_by_nndiff(self.reference) and was_run_by_nndiff(self.candidate)
