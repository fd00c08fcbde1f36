"""Cases: how much work a problem is, and what each task builds."""

import dataclasses

import pytest
import torch

from ffpa_attn.bench.cases import CPU_SIZES, GPU_SIZES, TASKS, Case, build_cases
from ffpa_attn.bench.tensors import make_inputs, reference_rows, relative_error, sample_of, tail_aligned

CPU = torch.device("cpu")


def case(**changes) -> Case:
    base = Case("self", batch=1, heads=4, kv_heads=4, q_len=8, kv_len=8, head_dim=16, dtype="bf16")
    return dataclasses.replace(base, **changes)


def one(task: str, **changes) -> list[Case]:
    sizes = dataclasses.replace(GPU_SIZES, **changes)
    return list(build_cases([task], [128], ["bf16"], sizes, causal=False))


def test_flops_are_two_products_of_two_operations_an_element():
    assert case(q_len=3, kv_len=5).flops == 4 * 1 * 4 * 3 * 5 * 16


def test_square_causal_counts_half():
    assert case(causal=True).flops == case().flops / 2


@pytest.mark.parametrize(("q_len", "kv_len"), [(1, 7), (3, 9), (7, 8)])
def test_rectangular_causal_counts_the_pairs_of_the_tail_aligned_triangle(q_len, kv_len):
    pairs = int(tail_aligned(torch.arange(q_len), q_len, kv_len).sum())
    assert case(q_len=q_len, kv_len=kv_len, causal=True).attended_pairs == pairs


def test_kv_bytes_count_each_kv_head_once():
    assert case(kv_heads=2, kv_len=10).kv_bytes == 2 * 2 * 2 * 10 * 16


@pytest.mark.parametrize("task", TASKS)
def test_every_task_builds_cases_that_are_valid_problems(task):
    for built in one(task):
        assert built.heads % built.kv_heads == 0
        assert built.q_len >= 1 and built.kv_len >= built.q_len
        assert not (built.causal and built.mask != "none")


def test_tasks_differ_from_self_in_what_they_are_named_for():
    assert one("cross")[0].q_len != one("cross")[0].kv_len
    assert {c.kv_heads for c in one("decode")} == {32, 4} and {c.q_len for c in one("decode")} == {1}
    assert one("gqa")[0].kv_heads == 4
    assert one("causal")[0].causal
    assert {c.mask for c in one("attn-mask")} == {"bool", "additive"}
    assert one("dropout")[0].dropout_p > 0
    assert one("non-aligned")[0].q_len % 2 == 1


def test_given_kv_heads_replace_the_grouped_ones():
    assert [c.kv_heads for c in one("gqa", kv_heads=16)] == [16]
    assert [c.kv_heads for c in one("decode", kv_heads=16)] == [16]


def test_causal_sweep_leaves_masked_cases_alone():
    built = list(build_cases(TASKS, [64], ["bf16"], CPU_SIZES, causal=True))
    assert {c.task for c in built if not c.causal} == {"attn-mask"}


def test_labels_within_a_sweep_are_unique():
    built = list(build_cases(TASKS, [64], ["bf16"], GPU_SIZES, causal=True))
    assert len({c.label for c in built}) == len(built)


def test_unknown_task_is_refused_with_the_allowed_ones():
    with pytest.raises(ValueError, match=r"'train' is unknown; allowed: self"):
        list(build_cases(["train"], [64], ["bf16"], CPU_SIZES, causal=False))


def test_tail_aligned_lets_the_last_query_see_every_key():
    assert tail_aligned(torch.arange(2), 2, 5).tolist() == [[True] * 4 + [False], [True] * 5]


@pytest.mark.parametrize(
    "changes",
    [{}, {"causal": True}, {"q_len": 5, "kv_len": 300, "causal": True}, {"kv_heads": 1}, {"mask": "additive"},
     {"mask": "bool"}, {"q_len": 1}],
)  # fmt: skip
def test_reference_rows_agree_with_sdpa_in_float64(changes):
    problem = case(**{"q_len": 300, "kv_len": 300, "batch": 2, **changes})
    inputs = make_inputs(problem, CPU)
    sample = sample_of(problem, CPU)
    mask = inputs.mask
    if problem.causal:
        mask = tail_aligned(torch.arange(problem.q_len), problem.q_len, problem.kv_len)
    if mask is not None and mask.dtype != torch.bool:
        mask = mask.double()
    out = torch.nn.functional.scaled_dot_product_attention(
        inputs.q.double(), inputs.k.double(), inputs.v.double(), attn_mask=mask, enable_gqa=True
    )
    assert relative_error(reference_rows(inputs, problem, sample), sample.take(out)) < 1e-5


def test_sample_holds_both_ends():
    sample = sample_of(case(batch=3, q_len=5000), CPU)
    assert sample.pairs == ((0, 0), (2, 3))
    assert sample.rows[0] == 0 and sample.rows[-1] == 4999 and len(sample.rows) == 256


def test_relative_error_shows_nan():
    out = torch.ones(4)
    out[1] = float("nan")
    assert relative_error(out, torch.ones(4)) != relative_error(out, torch.ones(4))


def test_inputs_repeat_under_a_seed():
    a, b = make_inputs(case(), CPU), make_inputs(case(), CPU)
    assert torch.equal(a.q, b.q) and torch.equal(a.v, b.v) and not torch.equal(a.k, a.v)
