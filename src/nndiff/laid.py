"""The numbers of a pair once one side of it is rearranged, by what was found to make it agree."""

from __future__ import annotations

import numpy as np

from nndiff.dtypes import from_numpy
from nndiff.findings.layout import Layout
from nndiff.findings.rearranged import Array
from nndiff.sites import SitePair
from nndiff.stats import Job, Metrics, get_engine
from nndiff.tensors import MemoryData, TensorRef


def laid(site: SitePair, layout: Layout) -> Metrics:
    """Return the numbers of a pair after a rearrangement."""
    one, other = layout.both(site)
    job = Job(_tensor(one), _tensor(other), site.pair.atol, site.pair.rtol)
    return next(iter(get_engine().measure([job])))


def _tensor(array: Array) -> TensorRef:
    dtype = from_numpy(array.dtype)
    assert dtype is not None  # it was read as numbers
    return TensorRef("", array.shape, dtype, MemoryData(np.ascontiguousarray(array).reshape(array.shape)))
