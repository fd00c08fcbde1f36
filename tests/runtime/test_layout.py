from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from ffpa_attn.layout import result_strides

SIZE = st.integers(0, 5)


@given(SIZE, SIZE, SIZE, st.integers(1, 8), st.booleans())
def test_results_are_packed_in_the_memory_order_of_the_query(b, h, n, d, nhd):
    q = torch.empty(b, n, 3, h, d)[:, :, 1].transpose(1, 2) if nhd else torch.empty(b, h, 2 * n, d)[:, :, :n]
    out = torch.empty_strided(q.shape, result_strides(q.shape, q.stride()))
    stored = out.transpose(1, 2) if nhd else out
    assert stored.is_contiguous() or (nhd and min(h, n) <= 1 and out.is_contiguous())
