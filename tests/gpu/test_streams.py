"""Streams, CUDA graphs, threads, and repeatability."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from ffpa_attn import CUDABackend, ffpa_attn_func

from .support import attend, kernel_of, qkv, relative_error

PROBLEMS = {"prefill": (1, 2, 515, 700), "decode": (2, 8, 1, 4097)}


@pytest.fixture(params=PROBLEMS)
def problem(request):
    return PROBLEMS[request.param]


def overwrite(inputs, seed):
    (batch, heads, q_len, head_dim), kv_len = inputs[0].shape, inputs[1].shape[2]
    for tensor, new in zip(inputs, qkv(batch, heads, q_len, kv_len, head_dim, seed=seed), strict=True):
        tensor.copy_(new)


@pytest.mark.parametrize("head_dim", [72, 128, 512])
def test_graph_captured_on_a_side_stream_replays_on_new_inputs_as_eager(problem, head_dim):
    inputs = qkv(*problem, head_dim)
    kernel_of(*inputs)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        out, lse = attend(*inputs, return_lse=True)
    for seed in (1, 2):
        overwrite(inputs, seed)
        graph.replay()
        torch.cuda.synchronize()
        eager, eager_lse = attend(*inputs, return_lse=True)
        assert torch.equal(out, eager) and torch.equal(lse, eager_lse)


def test_repeated_calls_are_equal_bit_for_bit(problem, dtype):
    inputs = qkv(*problem, 256, dtype)
    kernel_of(*inputs)
    first = attend(*inputs)
    assert all(torch.equal(attend(*inputs), first) for _ in range(20))


def test_a_call_runs_on_the_current_stream(problem):
    """The inputs arrive late on a side stream: a launch on any other stream would read the old ones."""
    inputs, late = qkv(*problem, 64), qkv(*problem, 64, seed=9)
    kernel_of(*inputs)
    expected = attend(*late)
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(50_000_000)  # cycles: some 25 ms
        for tensor, new in zip(inputs, late, strict=True):
            tensor.copy_(new)
        out = attend(*inputs)
        assert not side.query(), "the call waited for the device"
    side.synchronize()
    assert torch.equal(out, expected)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_result_is_as_one_that_torch_allocates(mode):
    with mode():
        inputs = qkv(1, 2, 640, 640, 128)
        kernel_of(*inputs)
        for call in range(3):  # the first makes the plan, the third takes the shortest way
            before = torch.cuda.memory_allocated()
            out, usual = attend(*inputs), torch.empty_like(inputs[0])
            size = out.untyped_storage().nbytes()
            assert torch.cuda.memory_allocated() - before >= 2 * size, call
            assert out.is_inference() == usual.is_inference() and not out.requires_grad
            assert (out.shape, out.stride(), out.dtype, out.device) == (
                usual.shape,
                usual.stride(),
                usual.dtype,
                usual.device,
            )
            out.record_stream(torch.cuda.Stream())
            out.untyped_storage().resize_(0)
            assert torch.cuda.memory_allocated() - before < 2 * size
            del out, usual


def test_two_threads_on_one_card_do_not_disturb_each_other():
    problems = [qkv(1, 2, 640, 640, 64), qkv(1, 4, 515, 1001, 320, kv_heads=2)]
    for inputs in problems:
        kernel_of(*inputs)
    expected = [attend(*inputs) for inputs in problems]
    torch.cuda.synchronize()
    start, wrong = threading.Barrier(len(problems)), []

    def work(index):
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                start.wait()
                outs = [attend(*problems[index]) for _ in range(50)]
                torch.cuda.current_stream().synchronize()
            wrong.extend((index, i) for i, out in enumerate(outs) if not torch.equal(out, expected[index]))
        except Exception as error:
            wrong.append((index, repr(error)))

    threads = [threading.Thread(target=work, args=(index,)) for index in range(len(problems))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two cards")
def test_the_card_is_that_of_the_tensors():
    inputs = qkv(1, 2, 640, 640, 64)
    kernel_of(*inputs)
    other = [x.to("cuda:1") for x in inputs]
    out = attend(*other)
    assert out.device == other[0].device and torch.cuda.current_device() == 0
    assert torch.equal(out.to("cuda:0"), attend(*inputs))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two cards")
def test_two_threads_on_two_cards_need_no_set_device():
    inputs = qkv(1, 2, 640, 640, 64)
    kernel_of(*inputs)
    expected = attend(*inputs)

    def work(index):
        mine = [x.to(f"cuda:{index}") for x in inputs]
        return all(torch.equal(attend(*mine), expected.to(f"cuda:{index}")) for _ in range(50))

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(work, (1, 0))) == [True, True]
    assert torch.cuda.current_device() == 0


BACKEND = CUDABackend()


@torch.no_grad()
def backend_outside(q, k, v):
    return ffpa_attn_func(q, k, v, backend=BACKEND, strict=True)


@torch.no_grad()
def backend_inside(q, k, v):
    return ffpa_attn_func(q, k, v, forward_backend=CUDABackend(), strict=True)


@pytest.mark.parametrize("function", [backend_outside, backend_inside])
def test_compiled_without_graph_breaks_equals_eager(function):
    torch._dynamo.reset()
    compiled = torch.compile(function, fullgraph=True, dynamic=True, backend="aot_eager")
    for lengths in ((515, 515), (777, 900), (600, 1001)):
        inputs = qkv(1, 2, *lengths, 80)
        kernel_of(*inputs)
        out, eager = compiled(*inputs), function(*inputs)
        assert torch.equal(out, eager) and out.stride() == eager.stride()


@torch.no_grad()
def test_compiled_by_inductor_with_neighbours_equals_eager():
    torch._dynamo.reset()

    def block(q, k, v):
        return backend_outside(q * 2, k, v).transpose(1, 2).flatten(2) + 1

    inputs = qkv(1, 2, 640, 640, 128)
    kernel_of(*inputs)
    assert relative_error(torch.compile(block, fullgraph=True)(*inputs), block(*inputs)) < 1e-3


@torch.no_grad()
def test_the_operator_passes_opcheck():
    q, k, v = qkv(1, 2, 515, 600, 80)
    kernel_of(q, k, v)
    ffpa_attn_func(q, k, v)
    arguments = (q, k, v, None, 0.0, False, None, BACKEND.spec, True, True)
    torch.library.opcheck(torch.ops.ffpa_attn.attention, arguments)
