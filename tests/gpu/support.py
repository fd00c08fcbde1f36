"""What the GPU tests share: inputs, the float64 oracle, SDPA's error as the yardstick, and the strict call."""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from ffpa_attn import CUDABackend, ReferenceBackend, explain, ffpa_attn_func, installed_packs
from ffpa_attn.manifest import KernelInfo
from ffpa_attn.routing import FallbackRoute, KernelRoute

from .selection import left_out

HEAD_DIMS = (8, 40, 64, 72, 80, 88, 96, 128, 160, 192, 224, 256, 320, 512, 576, 640, 768, 1000, 1024)

# Of SDPA's own kernel on the same input. Both round P and O to 16 bits, so the two errors are alike.
SDPA_RATIO = 1.2
# The absolute ceilings: 0.0023 is the measured error of bf16 kernels on Gaussian inputs, fp16 has three more bits.
CEILING = {torch.bfloat16: 3.5e-3, torch.float16: 5e-4}
LSE_ATOL = 1e-3
# Kernels that accumulate in 16 bits: 8e-4 and 2e-3 were measured.
F16_ACC_CEILING, F16_ACC_LSE_ATOL = 2e-3, 2e-2

DEVICE = "cuda"
NATIVE = CUDABackend(enable_tma=False, enable_cute=False)
# What the card runs unasked, and the families that other cards run.
FAMILIES = {"auto": CUDABackend(), "native": NATIVE, "tma": CUDABackend(enable_tma=True, enable_cute=False)}
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
SEED = 20260102


def _installed():
    """The kernels of the installed packs that this device loads, emulated ones included."""
    if not torch.cuda.is_available():
        return []
    here = "{}.{}".format(*torch.cuda.get_device_capability())
    return [kernel for pack in installed_packs().packs for kernel in pack.kernels if here in kernel.capabilities]


KERNELS = _installed()


@dataclass(frozen=True)
class Group:
    """Installed kernels that differ in dtype, head dim and features only. A test names the one that fits its call, so
    that it runs on kernels that no call takes unasked too, such as those of an emulated arch."""

    impl: str
    arch: str
    acc: str
    stages: int
    emulated: bool

    @classmethod
    def of(cls, kernel: KernelInfo):
        return cls(f"{kernel.family}.{kernel.impl}", kernel.arch, kernel.acc, kernel.stages, "-for_" in kernel.id)

    def __str__(self):
        name = f"{self.impl}-{self.arch}-s{self.stages}" + ("-accf16" if self.acc == "f16" else "")
        return name + ("-emulated" if self.emulated else "")

    def backend(self, q, attn_mask=None, dropout_p=0.0):
        """The backend that names the kernel for a call with these tensors, that of the nearest head dim. The test is
        skipped where the group leaves out all kernels of such a call."""
        kernels = [kernel for kernel in KERNELS if Group.of(kernel) == self]
        features = {"dropout"} if dropout_p else set()
        if attn_mask is not None:
            exact = features | {"bias32" if attn_mask.dtype == torch.float32 else "bias"}
            # A float32 mask that no kernel reads is converted.
            features |= exact if any(set(kernel.features) == exact for kernel in kernels) else {"bias"}
        rules = {
            f"{q.dtype}": lambda kernel: DTYPES[kernel.dtype] == q.dtype,
            f"head dim {q.shape[-1]}": lambda kernel: kernel.head_dim >= q.shape[-1],
            f"the features {sorted(features)}": lambda kernel: set(kernel.features) == features,
        }
        for what, fits in rules.items():
            if not any(map(fits, kernels)):
                pytest.skip(f"{self} has no kernel for {what}")
        fitting = [kernel for kernel in kernels if all(fits(kernel) for fits in rules.values())]
        assert fitting, f"{self} lacks the kernel for {', '.join(rules)}"
        return naming(min(fitting, key=lambda kernel: kernel.head_dim))


def naming(kernel):
    """The backend that runs this kernel and no other."""
    return CUDABackend(kernel=kernel.id, acc=kernel.acc)


def groups(problem, *features, acc="f32"):
    """Parameters of a test: each group that serves this kind of call with these features."""
    found = {
        Group.of(kernel): None
        for kernel in KERNELS
        if problem in kernel.problems and set(features) <= set(kernel.features) and kernel.acc == acc
    }
    return [pytest.param(group, id=str(group)) for group in found]


def normal(*shape, dtype=torch.bfloat16, seed=0):
    """Gaussian tensor on the GPU; another seed for every tensor of a problem."""
    generator = torch.Generator(device=DEVICE).manual_seed(seed)
    return torch.randn(shape, generator=generator, device=DEVICE, dtype=torch.float32).to(dtype)


def qkv(batch, heads, q_len, kv_len, head_dim, dtype=torch.bfloat16, kv_heads=None, seed=0):
    """Q [B, H, Nq, D], K and V [B, Hkv, Nkv, D], contiguous."""
    kv_shape = (batch, kv_heads or heads, kv_len, head_dim)
    q = normal(batch, heads, q_len, head_dim, dtype=dtype, seed=3 * seed)
    return q, normal(*kv_shape, dtype=dtype, seed=3 * seed + 1), normal(*kv_shape, dtype=dtype, seed=3 * seed + 2)


def expand_kv(q, k, v):
    """K and V with one head a query head."""
    group = q.shape[1] // k.shape[1]
    return (k, v) if group == 1 else (k.repeat_interleave(group, 1), v.repeat_interleave(group, 1))


def tail_aligned(q_len, kv_len):
    """Boolean [Nq, Nkv]: True where row r attends, k <= r + (Nkv - Nq)."""
    return torch.ones(q_len, kv_len, dtype=torch.bool, device=DEVICE).tril(kv_len - q_len)


def attention_f64(q, k, v, *, is_causal=False, attn_mask=None, scale=None):
    """O and LSE in float64. A row with nothing to attend to gives 0 and -inf."""
    k, v = expand_kv(q, k, v)
    scores = (q.double() @ k.double().mT) * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    if attn_mask is not None:
        if attn_mask.dtype == torch.bool:
            scores = scores.masked_fill(~attn_mask, -math.inf)
        else:
            scores = scores + attn_mask.double()
    if is_causal:
        scores = scores.masked_fill(~tail_aligned(q.shape[2], k.shape[2]), -math.inf)
    lse = torch.logsumexp(scores, -1)
    # Not exp(scores - lse): beside logits of -3e38 the logarithm of the sum is lost even in float64.
    weights = torch.softmax(scores, -1).masked_fill(lse.isneginf()[..., None], 0)
    return weights @ v.double(), lse


def sdpa(q, k, v, *, is_causal=False, attn_mask=None, scale=None, fused=True):
    """PyTorch's attention, tail-aligned, on plain contiguous tensors; ``fused`` keeps out the float32 math path."""
    k, v = expand_kv(q, k, v)
    if is_causal and q.shape[2] != k.shape[2]:
        is_causal, attn_mask = False, tail_aligned(q.shape[2], k.shape[2])
    if attn_mask is not None:
        if attn_mask.dtype != torch.bool:
            attn_mask = attn_mask.to(q.dtype)
        attn_mask = attn_mask.expand(q.shape[0], q.shape[1], q.shape[2], k.shape[2])
    kernels = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]
    with sdpa_kernel(kernels) if fused else contextlib.nullcontext():
        return F.scaled_dot_product_attention(
            q.contiguous(), k.contiguous(), v.contiguous(), attn_mask=attn_mask, is_causal=is_causal, scale=scale
        )


def relative_error(out, reference):
    """||out - reference|| / ||reference||."""
    return ((out.double() - reference.double()).norm() / reference.double().norm()).item()


def route_of(q, k, v, *, backend=None, **options):
    """The KernelRoute of a call, and what it copies. The test is skipped when the installed packs leave out all kernels
    of its kind, and fails when the call goes to SDPA for any other reason."""
    backend = CUDABackend() if backend is None else backend
    explanation = explain(q, k, v, backend=backend, enable_gqa=q.shape[1] != k.shape[1], **options)
    taken = explanation.taken
    if isinstance(taken, FallbackRoute) and taken.reason.code == "no_kernel":
        reason = left_out(explanation.problem, backend, KERNELS)
        assert reason is not None, f"packs with kernels of every kind have none for the call: {taken.reason.text}"
        pytest.skip(reason)
    assert isinstance(taken, KernelRoute), f"not on a kernel: {explanation.reason or explanation.error}"
    return taken, explanation.copies


def kernel_of(q, k, v, **options):
    """The id of the kernel that this call runs; skips and fails as ``route_of``."""
    return route_of(q, k, v, **options)[0].kernel.id


def skip_without_decode_kernels():
    """Packs may hold prefill kernels only; those serve short queries too, so the route alone does not tell."""
    if not any("decode" in kernel.problems for pack in installed_packs().packs for kernel in pack.kernels):
        pytest.skip("the installed packs have no decode kernels")


@torch.no_grad()
def attend(q, k, v, *, backend=None, **options):
    """The public API with the CUDA backend named and strict mode, so that a fallback is an error."""
    backend = CUDABackend() if backend is None else backend
    gqa = q.shape[1] != k.shape[1]
    return ffpa_attn_func(q, k, v, backend=backend, strict=True, enable_gqa=gqa, **options)


@torch.no_grad()
def reference(q, k, v, **options):
    """The public API's reference, which drops the elements that kernels drop under the same seed."""
    gqa = q.shape[1] != k.shape[1]
    return ffpa_attn_func(q, k, v, backend=ReferenceBackend(), enable_gqa=gqa, **options)


def seeded(function, *args, **options):
    """The function's result with the generators newly seeded."""
    torch.manual_seed(SEED)
    return function(*args, **options)


def check(q, k, v, *, backend=None, lse_atol=LSE_ATOL, **options):
    """Run a call and hold O and LSE against float64, with SDPA's error on the same input as the bound. Returns the
    kernel id and the output."""
    kernel = kernel_of(q, k, v, backend=backend, **options)
    out, lse = attend(q, k, v, backend=backend, return_lse=True, **options)
    expected, expected_lse = attention_f64(q, k, v, **options)
    assert out.shape == (*q.shape[:3], v.shape[-1]) and out.dtype == q.dtype
    error, yardstick = relative_error(out, expected), relative_error(sdpa(q, k, v, **options), expected)
    allowed = min(SDPA_RATIO * yardstick, CEILING[q.dtype])
    if backend is not None and backend.acc == "f16":
        allowed, lse_atol = F16_ACC_CEILING, F16_ACC_LSE_ATOL
    assert error <= allowed, f"{kernel}: error {error:.3g}, SDPA {yardstick:.3g}, allowed {allowed:.3g}"
    assert lse.shape == q.shape[:3] and lse.dtype == torch.float32
    torch.testing.assert_close(lse.double(), expected_lse, atol=lse_atol, rtol=1e-5, msg=lambda m: f"{kernel} LSE: {m}")
    return kernel, out
