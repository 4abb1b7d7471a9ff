"""A port in bfloat16 with other names, classes and order: its fault is found where it is."""

from __future__ import annotations

import pytest
import torch

import nndiff
from short_ports import ported

pytestmark = pytest.mark.usefixtures("weights_unknown")


def test_a_fault_in_a_short_port_is_found_where_it_is():
    net, port = ported()
    with torch.no_grad():
        port.query[2].weight.mul_(1.5)
    inputs = torch.randn(2, 8, 16, generator=torch.Generator().manual_seed(2)).bfloat16()
    result = nndiff.compare(net.bfloat16(), port.bfloat16(), inputs=inputs, atol=0.1, rtol=0.1)
    assert result.first_divergence.name == "blocks.2.attn.q:output"
    assert result.first_divergence.candidate_name == "query.2:output"
