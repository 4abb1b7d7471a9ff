"""Findings: causes with evidence and, where possible, the repair.

Slugs used so far:

    inputs-differ       the two runs were not fed the same
    losses-differ       the backward passes began with losses of another kind
    outputs-missing     only one side returns an output: a cache, hidden states, attentions
    rounding            what differs looks like rounding: small beside the tensors, and it grows without a jump
    more-than-rounding  the first divergence looks like rounding, a later one does not
    train-mode          one side ran in train mode, or both with dropout at work
    weights-differ      the module that diverges first does not hold the same weights or buffers on the two sides
    another-class       one function stands in place of another where the runs part first: an activation, a pooling
    attribute           the module that diverges first has other settings on the two sides
    called-otherwise    a layer is called in place of another, more often, or never, on one side only
    in-place            one side writes over, in place, what it uses again
    norms-only          only normalisation layers diverge on their own
    early-layers        the difference is there before the first layer with weights: preprocessing
    loss-not-finite     the loss is NaN or infinite on both sides: no gradient was compared
    gradients-only      outputs agree, gradients do not
    gradients-missing   one side lacks gradients that the other has: frozen, detached, or not used
    gradients-scaled    every gradient that is out is so by one factor: a loss that is scaled, a factor in a backward
    gradients-idle      gradients at outputs inside differ, and none that they flow into does: masked before or after
    untied              weights are one tensor on one side and several on the other
    shapes-differ       paired sites have other shapes: other architectures
    permuted            agrees after the axes are put in another order, cut or put together where need be
    reshaped            agrees after the shape is changed: the same elements in the same order
    broadcast           agrees after one side is repeated along an axis
    fused               one layer does the work of several of the other side: compared part by part
    restructured        parameters in another form on the two sides: listed, not compared
    inner-only          what differs inside cancels out before it comes out
    unstable            a side does not agree with itself from run to run
    environment         versions or numeric flags differ
"""

from __future__ import annotations
