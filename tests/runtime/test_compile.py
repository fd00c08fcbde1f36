"""torch.compile keeps a call in one graph."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from ffpa_attn import CUDABackend, FallbackError, ReferenceBackend, ffpa_attn_func
from ffpa_attn.backends import resolve_backend
from ffpa_attn.op import attention_op


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()


@pytest.mark.parametrize("backend", ["reference", None, CUDABackend(acc="f32", stages=2)])
@pytest.mark.filterwarnings("ignore::ffpa_attn.errors.FFPAFallbackWarning")
def test_one_graph_with_dynamic_lengths_and_the_strides_of_an_eager_call(backend):
    def call(q, k, v):
        out, lse = ffpa_attn_func(q, k, v, is_causal=True, backend=backend, return_lse=True)
        return out * 2, lse

    compiled = torch.compile(call, fullgraph=True, dynamic=True, backend="aot_eager")
    for n in (5, 9, 13):
        q, k, v = (torch.randn(1, n, h, 80, dtype=torch.bfloat16).transpose(1, 2) for h in (4, 2, 2))
        for got, want in zip(compiled(q, k, v), call(q, k, v), strict=True):
            assert got.stride() == want.stride()
            torch.testing.assert_close(got, want)


def test_gradients_are_the_same_in_a_graph():
    q, k, v = (torch.randn(1, 2, n, 16, requires_grad=True) for n in (4, 6, 6))
    compiled = torch.compile(lambda *t: ffpa_attn_func(*t, is_causal=True), fullgraph=True, backend="aot_eager")
    got = torch.autograd.grad(compiled(q, k, v).sum(), (q, k, v))
    want = torch.autograd.grad(ffpa_attn_func(q, k, v, is_causal=True).sum(), (q, k, v))
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b)


def test_a_backend_made_inside_the_graph():
    q = torch.randn(1, 2, 4, 16)

    def call(t):
        return ffpa_attn_func(t, t, t, backend=ReferenceBackend())

    torch.testing.assert_close(torch.compile(call, fullgraph=True, backend="aot_eager")(q), call(q))


def test_strict_raises_from_a_graph_too():
    q = torch.randn(1, 2, 4, 16)
    compiled = torch.compile(lambda t: ffpa_attn_func(t, t, t, strict=True), fullgraph=True, backend="aot_eager")
    with pytest.raises(FallbackError, match="strict mode"):
        compiled(q)


def arguments(q, k, mask=None, lse=False, backend="reference", causal=False, dropout_p=0.0):
    return (q, k, k, mask, dropout_p, causal, None, resolve_backend(backend, None).spec, lse, None)


@pytest.mark.parametrize("backend", ["reference", "sdpa"])
@pytest.mark.parametrize("lse", [False, True])
@pytest.mark.parametrize("nhd", [False, True])
def test_opcheck(backend, lse, nhd):
    q, k = (torch.randn(2, n, h, 16) for n, h in ((5, 4), (7, 2)))
    q, k = (t.transpose(1, 2) if nhd else t.transpose(1, 2).contiguous() for t in (q, k))
    tests = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
    torch.library.opcheck(attention_op, arguments(q, k, None, lse, backend, True), test_utils=tests)
    torch.library.opcheck(attention_op, arguments(q[0], k[0], torch.rand(5, 7) > 0.5, lse, backend), test_utils=tests)


def test_the_fake_of_an_nhd_call_has_the_callers_layout():
    with torch._subclasses.FakeTensorMode():
        q = torch.empty(2, 5, 4, 16)
        out, lse = torch.ops.ffpa_attn.attention(*arguments(q, q, None, True, CUDABackend(tensor_layout="NHD")))
    assert out.shape == q.shape and out.is_contiguous() and lse.shape == (2, 4, 5)


@pytest.mark.parametrize("grad", [False, True])
def test_autocast_gives_a_graph_the_dtype_of_an_eager_call(grad):
    q, v = torch.randn(1, 2, 4, 16, requires_grad=grad), torch.randn(1, 2, 4, 16, dtype=torch.float16)
    mask = torch.randn(4, 4, dtype=torch.float16)

    def call(q, v, mask):
        with torch.autocast("cpu", torch.bfloat16):
            return ffpa_attn_func(q, q, v, mask)

    got = torch.compile(call, fullgraph=True, backend="aot_eager")(q, v, mask)
    assert got.dtype == torch.bfloat16
    torch.testing.assert_close(got, call(q, v, mask))


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("backend", ["reference", "sdpa"])
def test_a_traced_call_asks_nothing_that_dynamo_of_torch_2_11_cannot_trace(backend, grad, monkeypatch):
    def untraceable(device):
        raise AssertionError(f"is_autocast_available({device!r}) within a call")

    monkeypatch.setattr(torch.amp, "is_autocast_available", untraceable)
    monkeypatch.setattr(torch.amp.autocast_mode, "is_autocast_available", lambda device: True)  # torch.autocast's own
    q = torch.randn(1, 2, 4, 16, requires_grad=grad)
    torch.compile(lambda q: ffpa_attn_func(q, q, q, backend=backend), fullgraph=True, backend="aot_eager")(q)


def test_tracers_without_dynamo_see_the_operator():
    q = torch.randn(1, 2, 4, 16)
    graph = make_fx(lambda t: ffpa_attn_func(t, t, t, backend="reference"), tracing_mode="fake")(q)
    assert torch.ops.ffpa_attn.attention.default in {node.target for node in graph.graph.nodes}
    torch.testing.assert_close(graph(q), ffpa_attn_func(q, q, q, backend="reference"))
    with FakeTensorMode() as mode:
        assert ffpa_attn_func(*[mode.from_tensor(q)] * 3).shape == q.shape


def test_graph_passes_are_told_that_the_operator_draws_random_numbers():
    assert torch.Tag.nondeterministic_seeded in attention_op.tags
    q, k = torch.randn(1, 4, 5, 16), torch.randn(1, 2, 7, 16)
    for backend in ("reference", "sdpa"):
        torch.library.opcheck(
            attention_op, arguments(q, k, backend=backend, dropout_p=0.3), test_utils=("test_schema", "test_faketensor")
        )


@pytest.mark.parametrize("backend", ["reference", "sdpa"])
@pytest.mark.parametrize("grad", [False, True])
def test_calls_with_dropout_stay_apart_in_a_graph_and_the_reference_draws_what_it_draws_eagerly(backend, grad):
    q, k = torch.randn(1, 4, 8, 16, requires_grad=grad), torch.randn(1, 2, 12, 16)

    def call(q, k):
        return [ffpa_attn_func(q, k, k, dropout_p=0.5, backend=backend) for _ in range(2)]

    def seeded(function):
        torch.manual_seed(3)
        outs = function(q, k)
        return [*outs, *(torch.autograd.grad(outs[0].sum() + outs[1].sum(), q) if grad else ())]

    got = seeded(torch.compile(call, fullgraph=True, backend="aot_eager_decomp_partition"))
    assert not torch.equal(got[0], got[1])
    if backend == "reference":  # torch decomposes SDPA in a graph, and then it draws other numbers
        torch.testing.assert_close(got, seeded(call))


def test_dropout_with_gradients_reads_no_number_from_a_tensor():
    """It would wait for the device, and not every dynamo can trace it."""
    q = torch.randn(1, 2, 8, 16, requires_grad=True)
    graphs = []

    def record(graph, inputs):
        graphs.append(graph)
        return graph

    call = torch.compile(
        lambda t: ffpa_attn_func(t, t, t, dropout_p=0.5, backend="reference"), fullgraph=True, backend=record
    )
    call(q).sum().backward()
    assert not {"item", "tolist"} & {node.target for node in graphs[0].graph.nodes} and q.grad is not None
