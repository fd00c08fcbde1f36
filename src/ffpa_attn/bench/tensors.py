"""Random inputs of a case, and the float32 reference on a sample of its heads and rows."""

from __future__ import annotations

import dataclasses
import math

import torch

from ffpa_attn.bench.cases import Case

DTYPE = {"bf16": torch.bfloat16, "fp16": torch.float16}
SAMPLE_ROWS = 256
SAMPLE_HEADS = 2


@dataclasses.dataclass(frozen=True)
class Inputs:
    """q [B, H, Nq, D], k and v [B, Hkv, Nkv, D]; mask [Nq, Nkv] (bool: True = attend) or None."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    mask: torch.Tensor | None


def make_inputs(case: Case, device: torch.device, seed: int = 0) -> Inputs:
    """Gaussian inputs; never zeros, which run faster than real data does on some cards."""
    generator = torch.Generator(device=device).manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, device=device, dtype=DTYPE[case.dtype])

    q = normal(case.batch, case.heads, case.q_len, case.head_dim)
    k = normal(case.batch, case.kv_heads, case.kv_len, case.head_dim)
    v = normal(case.batch, case.kv_heads, case.kv_len, case.head_dim)
    mask = None
    if case.mask == "additive":
        mask = normal(case.q_len, case.kv_len)
    elif case.mask == "bool":
        mask = torch.rand((case.q_len, case.kv_len), generator=generator, device=device) > 0.25
        mask[:, 0] = True  # every row attends to something, so that every backend's result is defined
    return Inputs(q, k, v, mask)


@dataclasses.dataclass(frozen=True)
class Sample:
    """The rows of the output that are compared: a few (batch, head) pairs, and rows spread from first to last."""

    pairs: tuple[tuple[int, int], ...]
    rows: torch.Tensor

    def take(self, out: torch.Tensor) -> torch.Tensor:
        """The sampled rows of out [B, H, Nq, D] as float32 [pairs, rows, D]."""
        return torch.stack([out[b, h].index_select(0, self.rows) for b, h in self.pairs]).float()


def sample_of(case: Case, device: torch.device) -> Sample:
    """The first and the last head (and batch), and up to SAMPLE_ROWS rows that include both ends."""
    pairs = [(0, 0), (case.batch - 1, case.heads - 1)]
    unique = tuple(dict.fromkeys(pairs))[:SAMPLE_HEADS]
    count = min(case.q_len, SAMPLE_ROWS)
    rows = torch.linspace(0, case.q_len - 1, count, dtype=torch.float64).round().long().to(device)
    return Sample(unique, rows)


def tail_aligned(rows: torch.Tensor, q_len: int, kv_len: int) -> torch.Tensor:
    """Boolean [len(rows), Nkv]: True where query row r attends, k <= r + (Nkv - Nq)."""
    columns = torch.arange(kv_len, device=rows.device)
    return columns[None, :] <= rows[:, None] + (kv_len - q_len)


def reference_rows(inputs: Inputs, case: Case, sample: Sample) -> torch.Tensor:
    """float32 attention of the sampled rows, [pairs, rows, D]. Dropout is left out."""
    group = case.heads // case.kv_heads
    out = []
    for b, h in sample.pairs:
        q = inputs.q[b, h].index_select(0, sample.rows).float()
        k, v = inputs.k[b, h // group].float(), inputs.v[b, h // group].float()
        scores = (q @ k.T) / math.sqrt(case.head_dim)
        if inputs.mask is not None:
            mask = inputs.mask.index_select(0, sample.rows)
            if mask.dtype == torch.bool:
                scores = scores.masked_fill(~mask, float("-inf"))
            else:
                scores = scores + mask.float()
        if case.causal:
            scores = scores.masked_fill(~tail_aligned(sample.rows, case.q_len, case.kv_len), float("-inf"))
        out.append(torch.softmax(scores, -1) @ v)
    return torch.stack(out)


def relative_error(out: torch.Tensor, reference: torch.Tensor) -> float:
    """||out - reference|| / ||reference|| over all elements, NaN if either holds NaN."""
    return float((out.double() - reference.double()).norm() / reference.double().norm())
