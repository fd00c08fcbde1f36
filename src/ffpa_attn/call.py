"""The arguments of a call, brought to the form that problems and launches have: [B, H, N, D] in one dtype."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from .autocast import autocast
from .backends import Backend, CUDABackend, resolve_backend
from .options import Options
from .problem import Problem


@dataclass(frozen=True)
class Call:
    """One call. The tensors are [B, H, N, D] views, cast as autocast asks; `problem` describes them.

    Attributes:
        backend: what the caller asked for.
        strict: what the caller said of it; None takes the setting of the process.
        unbatched: leading dimensions that the caller's tensors lack.
        is_view: the tensors are the caller's own or transposed, without a cast or an added dimension.
    """

    problem: Problem
    query: Tensor
    key: Tensor
    value: Tensor
    attn_mask: Tensor | None
    backend: Backend | None
    strict: bool | None
    unbatched: int
    is_view: bool

    @classmethod
    def of(cls, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, options: Options) -> Call:
        """Validate and normalise; raises as `resolve_backend` and `Problem.from_call`."""
        backend = resolve_backend(options.backend, None)
        if options.strict is not None and not isinstance(options.strict, bool):
            raise TypeError(f"strict={options.strict!r}; allowed are True, False and None")
        given = (query, key, value)
        nhd = is_nhd(backend)
        unbatched = _missing_dimensions(given, nhd)
        tensors = [t[(None,) * unbatched] for t in given] if unbatched else list(given)
        if nhd:
            tensors = [t.transpose(1, 2) if isinstance(t, Tensor) and t.ndim == 4 else t for t in tensors]
        q, k, v, attn_mask = autocast(tensors[0], tensors[1], tensors[2], attn_mask)
        problem = Problem.from_call(
            q,
            k,
            v,
            attn_mask,
            dropout_p=options.dropout_p,
            is_causal=options.is_causal,
            scale=options.scale,
            want_lse=options.return_lse,
        )
        is_view = not unbatched and all(a is b for a, b in zip((q, k, v), tensors, strict=True))
        return cls(problem, q, k, v, attn_mask, backend, options.strict, unbatched, is_view)

    @property
    def nhd(self) -> bool:
        """The caller's tensors, and the result, are [B, N, H, D]."""
        return is_nhd(self.backend)

    def finish(self, result: Tensor | tuple[Tensor, Tensor]) -> Tensor | tuple[Tensor, Tensor]:
        """A result, out or (out, lse), in the caller's layout and dimensions."""
        out, lse = result if isinstance(result, tuple) else (result, None)
        if self.nhd:
            out = out.transpose(1, 2)
        for _ in range(self.unbatched):
            out = out.squeeze(0)
            lse = None if lse is None else lse.squeeze(0)
        return (out, lse) if lse is not None else out


def is_nhd(backend: Backend | None) -> bool:
    """Whether the backend takes and gives [B, N, H, D]."""
    return isinstance(backend, CUDABackend) and backend.tensor_layout == "NHD"


def _missing_dimensions(tensors: tuple[Tensor, Tensor, Tensor], nhd: bool) -> int:
    """[N, D] and [H, N, D] inputs are one batch, as for SDPA; NHD inputs have all four dimensions."""
    if nhd or not all(isinstance(t, Tensor) for t in tensors):
        return 0
    sizes = {t.ndim for t in tensors}
    return 4 - sizes.pop() if sizes in ({2}, {3}) else 0
