"""What was joined is tried again where the sides differ alone."""

from __future__ import annotations

import torch
from layer_trials import Code, draw, make_trial
from torch.nn.functional import interpolate

from nndiff.findings.causes import Cause
from nndiff.findings.hypotheses import explain_trials
from nndiff.findings.hypotheses.narrowing import narrow_trial


def join(change):
    """Return code that joins a part as it is and one that something is done to."""
    return Code(lambda x: torch.cat([x, change(x), x[:, :1]], 1))


def test_a_trial_is_narrowed_to_the_block_that_differs():
    trial = make_trial(join(torch.sin), join(torch.cos), draw(2, 6, 5))
    narrowed, where = narrow_trial(trial)
    assert narrowed.reference.shape == narrowed.candidate.shape == (2, 6, 5)
    assert where.startswith("at places 6 to 11 along axis 1")
    assert torch.allclose(torch.from_numpy(narrowed.reference_values).float(), torch.sin(draw(2, 6, 5)))


def test_nothing_is_narrowed_where_all_differs_or_no_block_does():
    assert narrow_trial(make_trial(Code(torch.sin), Code(torch.cos), draw(2, 6, 5))) is None
    scattered = torch.tensor([1.0, 2.0, 1.0, 2.0, 1.0])
    assert narrow_trial(make_trial(Code(lambda x: x), Code(lambda x: x * scattered), draw(2, 6, 5))) is None
    one_sample = torch.tensor([1.0, 2.0])[:, None, None]
    assert narrow_trial(make_trial(Code(lambda x: x), Code(lambda x: x * one_sample), draw(2, 6, 5))) is None


def test_the_cause_of_a_part_says_where_it_is():
    def grow(is_aligned):
        resized = lambda x: interpolate(x, scale_factor=2, mode="bilinear", align_corners=is_aligned)  # noqa: E731
        return Code(lambda x: torch.cat([x.repeat(1, 1, 2, 2), resized(x)], 1))

    (finding,) = explain_trials([make_trial(grow(False), grow(True), draw(2, 4, 5, 5))])
    assert finding.cause == Cause.INTERPOLATION
    assert finding.evidence.endswith("at places 4 to 7 along axis 1, the only ones that differ")
