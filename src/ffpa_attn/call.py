"""The arguments of a call, brought to the form that problems and launches have: [B, H, N, D] in one dtype."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from .autocast import autocast
from .backends import Backend, CUDABackend
from .problem import Problem


@dataclass(frozen=True)
class Call:
    """One call. The tensors are [B, H, N, D] views, cast as autocast asks; `problem` describes them.

    Attributes:
        nhd: the caller's tensors, and the result, are [B, N, H, D].
        unbatched: leading dimensions that the caller's tensors lack.
        is_view: the tensors are the caller's own or transposed, without a cast or an added dimension.
    """

    problem: Problem
    query: Tensor
    key: Tensor
    value: Tensor
    attn_mask: Tensor | None
    nhd: bool
    unbatched: int
    is_view: bool

    @classmethod
    def of(
        cls,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None,
        dropout_p: float,
        is_causal: bool,
        scale: float | None,
        backend: Backend | None,
        want_lse: bool,
    ) -> Call:
        """Validate and normalise; raises as `Problem.from_call`."""
        given = (query, key, value)
        nhd = isinstance(backend, CUDABackend) and backend.tensor_layout == "NHD"
        unbatched = _missing_dimensions(given, nhd)
        tensors = [t[(None,) * unbatched] for t in given] if unbatched else list(given)
        if nhd:
            tensors = [t.transpose(1, 2) if isinstance(t, Tensor) and t.ndim == 4 else t for t in tensors]
        q, k, v, attn_mask = autocast(tensors[0], tensors[1], tensors[2], attn_mask)
        problem = Problem.from_call(
            q, k, v, attn_mask, dropout_p=dropout_p, is_causal=is_causal, scale=scale, want_lse=want_lse
        )
        is_view = not unbatched and all(a is b for a, b in zip((q, k, v), tensors, strict=True))
        return cls(problem, q, k, v, attn_mask, nhd, unbatched, is_view)

    def finish(self, result: Tensor | tuple[Tensor, Tensor]) -> Tensor | tuple[Tensor, Tensor]:
        """A result, out or (out, lse), in the caller's layout and dimensions."""
        out, lse = result if isinstance(result, tuple) else (result, None)
        if self.nhd:
            out = out.transpose(1, 2)
        for _ in range(self.unbatched):
            out = out.squeeze(0)
            lse = None if lse is None else lse.squeeze(0)
        return (out, lse) if lse is not None else out


def _missing_dimensions(tensors: tuple[Tensor, Tensor, Tensor], nhd: bool) -> int:
    """[N, D] and [H, N, D] inputs are one batch, as for SDPA; NHD inputs have all four dimensions."""
    if nhd or not all(isinstance(t, Tensor) for t in tensors):
        return 0
    sizes = {t.ndim for t in tensors}
    return 4 - sizes.pop() if sizes in ({2}, {3}) else 0
