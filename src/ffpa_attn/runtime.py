"""The object that turns calls into results: it owns the packs, the gates and the plans of calls seen before."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from . import fallback, philox, reference
from .backends import Backend, CUDABackend, ReferenceBackend, SDPABackend, resolve_backend
from .call import Call
from .config import Config, default_config
from .debug import forced_backend
from .errors import FallbackError, KernelNotFoundError, PackError
from .explanation import Explanation
from .gates import Gates
from .layout import result_strides
from .notices import Notices
from .packs import PackSet, discover
from .problem import Problem
from .routing import (
    GRADIENTS,
    TRANSFORM,
    Choices,
    FallbackRoute,
    KernelRoute,
    Reason,
    ReferenceRoute,
    Route,
    route,
)

if TYPE_CHECKING:
    from .device import DeviceInfo

Result = Tensor | tuple[Tensor, Tensor]
# Give None, and do nothing, for tensors that do not fit; a runner's tensors are [B, H, N, D], a plan's the caller's.
Runner = Callable[[Tensor, Tensor, Tensor, "Tensor | None"], "Result | None"]
Plan = Runner

MAX_PLANS = 4096

_forward_ad = torch.autograd.forward_ad
_is_grad_enabled = torch.is_grad_enabled
_is_autocast_enabled = torch.is_autocast_enabled
_dispatch_modes: Callable[[], int] = torch._C._len_torch_dispatch_stack
_functorch_level: Callable[[], Any] = torch._C._functorch.peek_interpreter_stack


class Runtime:
    """Runs attention calls.

    A process has one default instance, `default_runtime()`. Own instances are for tests and for programs that need
    other packs, gates or settings beside it.

    Args:
        packs: the packs to use; found through entry points at the first need when None.
        gates: limits outside which SDPA is used; those of the specification when None.
        config: settings; those of the environment when None.
        launcher: provides `prepare` and `needs_copy` as `ffpa_attn.launch` does, which is used when None.
        devices: gives the DeviceInfo of a torch.device, or None for a device without kernels.
        max_plans: prepared calls kept; when there are more, all are dropped and made again.
    """

    def __init__(
        self,
        *,
        packs: PackSet | None = None,
        gates: Gates | None = None,
        config: Config | None = None,
        launcher: Any = None,
        devices: Callable[[torch.device], DeviceInfo | None] | None = None,
        max_plans: int = MAX_PLANS,
    ) -> None:
        self.config = default_config() if config is None else config
        self.gates = Gates.from_config(self.config) if gates is None else gates
        self.notices = Notices()
        self._packs = packs
        self._launcher = launcher
        self._devices = _cuda_device if devices is None else devices
        self._plans: dict[tuple[Any, ...], Plan] = {}  # by the whole signature
        self._recent: dict[tuple[Any, ...], Plan] = {}  # by its first part: the last plan that fitted
        self._choices: Choices = {}
        self._max_plans = max_plans

    @property
    def packs(self) -> PackSet:
        """The packs in use and those turned away."""
        if self._packs is None:
            self._packs = discover()
        return self._packs

    def clear(self) -> None:
        """Drop prepared calls and forget which fallback reasons have been given."""
        self._forget_plans()
        self.notices.reset()

    def attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
        *,
        backend: Backend | str | None = None,
        forward_backend: Backend | str | None = None,
        return_lse: bool = False,
        strict: bool | None = None,
    ) -> Result:
        """`ffpa_attn.ffpa_attn_func` on this instance; eager only, a compiled graph calls the default instance."""
        # A call seen before runs its plan without any check. The signature holds all that the checks and the route
        # depend on; what cannot be in it (gradients, wrapped tensors, autocast) leads past it. Reading and hashing an
        # attribute costs 0.1 us or more, so a first look-up is by less, and the plan itself turns other tensors away.
        signature: tuple[Any, ...] | None = None
        if (
            type(query) is Tensor
            and type(key) is Tensor
            and type(value) is Tensor
            and (attn_mask is None or type(attn_mask) is Tensor)
            and _forward_ad._current_level < 0
            and not (
                _is_grad_enabled()
                and (
                    query.requires_grad
                    or key.requires_grad
                    or value.requires_grad
                    or (attn_mask is not None and attn_mask.requires_grad)
                )
            )
            and not _is_autocast_enabled()
            and not _dispatch_modes()
            and _functorch_level() is None
        ):
            recent = (
                query.shape,
                key.shape,
                None if attn_mask is None else (attn_mask.shape, attn_mask.stride(), attn_mask.dtype),
                dropout_p,
                is_causal,
                scale,
                backend,
                forward_backend,
                return_lse,
                strict,
            )
            try:
                # Dropout draws random numbers before the plan can turn tensors away, so it is looked up by everything.
                plan = self._recent.get(recent) if dropout_p == 0.0 else None
                if plan is not None:
                    result = plan(query, key, value, attn_mask)
                    if result is not None:
                        return result
                # other strides, dtypes or devices than last time
                signature = (
                    recent,
                    value.shape,
                    *((t.stride(), t.dtype, t.device) for t in (query, key, value)),
                    None if attn_mask is None else attn_mask.device,
                )
                plan = self._plans.get(signature)
                if plan is not None:
                    result = plan(query, key, value, attn_mask)
                    if result is not None:
                        self._recent[recent] = plan
                        return result
            except TypeError:  # an unhashable argument: the checks have the right words
                signature = None
        return self._first_call(
            signature,
            query,
            key,
            value,
            attn_mask,
            dropout_p,
            is_causal,
            scale,
            resolve_backend(backend, forward_backend),
            return_lse,
            self._is_strict(strict),
        )

    def explain(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
        *,
        backend: Backend | str | None = None,
        forward_backend: Backend | str | None = None,
        return_lse: bool = False,
        strict: bool | None = None,
    ) -> Explanation:
        """The route of the same call to `attention`, which is not run."""
        chosen = resolve_backend(backend, forward_backend)
        call = Call.of(query, key, value, attn_mask, dropout_p, is_causal, scale, chosen, return_lse)
        taken = self._verified_route(call, chosen)
        error = self._refusal(taken, call, chosen, self._is_strict(strict))
        copies: list[str] = []
        if isinstance(taken, KernelRoute) and not call.problem.is_empty:
            for name, tensor in (("query", call.query), ("key", call.key), ("value", call.value)):
                why = self._launch_module().needs_copy(tensor)
                if why is not None:
                    copies.append(f"{name} is made contiguous: {why}")
            if taken.cast_mask:
                copies.append(
                    f"attn_mask is converted from float32 to {call.query.dtype}: no kernel reads float32 masks"
                )
        return Explanation(
            problem=call.problem,
            taken=taken,
            packs=self.packs.packs,
            packs_rejected=self.packs.rejected,
            copies=tuple(copies),
            error=None if error is None else f"{type(error).__name__}: {error}",
        )

    def differentiable(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None,
        dropout_p: float,
        is_causal: bool,
        scale: float | None,
        backend: Backend | None,
        want_lse: bool,
        strict: bool | None,
    ) -> Result:
        """A call whose inputs need gradients, in operations that a graph capture can look into.

        The gate for gradients decides it on every device, so that neither devices nor packs are looked at.
        """
        call = Call.of(query, key, value, attn_mask, dropout_p, is_causal, scale, backend, want_lse)
        taken: Route = ReferenceRoute()
        if not isinstance(backend, ReferenceBackend):
            asked = isinstance(backend, SDPABackend)
            taken = FallbackRoute(Reason("requested", "SDPABackend was asked for") if asked else GRADIENTS)
        error = self._refusal(taken, call, backend, self._is_strict(strict))
        if error is not None:
            raise error
        return _finished(call, self._runner(taken, call))

    def _first_call(
        self,
        signature: tuple[Any, ...] | None,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None,
        dropout_p: float,
        is_causal: bool,
        scale: float | None,
        backend: Backend | None,
        want_lse: bool,
        strict: bool,
    ) -> Result:
        call = Call.of(query, key, value, attn_mask, dropout_p, is_causal, scale, backend, want_lse)
        taken = self._verified_route(call, backend)
        error = self._refusal(taken, call, backend, strict)
        if error is not None:
            raise error
        if isinstance(taken, FallbackRoute) and _is_news(taken, backend):
            self.notices.fallback(taken.reason.code, taken.reason.text)
        run = self._runner(taken, call)
        result = _finished(call, run)
        on_device = self._devices(query.device) is not None
        if signature is not None and call.is_view and on_device and not call.problem.needs_grad:
            if len(self._plans) >= self._max_plans:
                self._forget_plans()
            self._plans[signature] = self._recent[signature[0]] = _plan(taken, call, run)
        return result

    def _verified_route(self, call: Call, backend: Backend | None) -> Route:
        """The route, with the cubin of its kernel checked; a pack with a bad cubin is turned away for good."""
        problem = call.problem
        device = self._devices(call.query.device)
        while True:
            packs = self.packs if device is not None else PackSet()
            taken = route(
                problem, device, forced_backend(backend, self.config, packs), packs, self.gates, self._choices
            )
            if not isinstance(taken, KernelRoute):
                return taken
            if _functorch_level() is not None:
                return FallbackRoute(TRANSFORM, taken.candidates)
            try:
                taken.pack.image(taken.kernel)
                if taken.merge is not None:
                    taken.pack.image(taken.merge)
                return taken
            except PackError as error:
                self._packs = self.packs.without(taken.pack, str(error))
                self._forget_plans()

    def _refusal(self, taken: Route, call: Call, backend: Backend | None, strict: bool) -> Exception | None:
        """The error that the call raises instead of falling back."""
        if not isinstance(taken, FallbackRoute) or taken.reason.code == "requested":
            return None
        reason = taken.reason
        if isinstance(backend, CUDABackend) and reason.code == "no_kernel":
            return KernelNotFoundError(reason.text)
        if call.nhd:
            return ValueError(
                f"tensor_layout='NHD' is served by kernels only and this call has none: {reason.text}. Pass "
                "[B, H, N, D] views (transpose(1, 2)) with tensor_layout='HND' instead"
            )
        if strict:
            return FallbackError(reason.code, f"strict mode: no kernel runs this call: {reason.text}")
        return None

    def _forget_plans(self) -> None:
        self._plans.clear()
        self._recent.clear()
        self._choices.clear()

    def _is_strict(self, strict: bool | None) -> bool:
        if strict is None:
            return self.config.strict
        if not isinstance(strict, bool):
            raise TypeError(f"strict={strict!r}; allowed are True, False and None")
        return strict

    def _runner(self, taken: Route, call: Call) -> Runner:
        """The function for calls like this one."""
        problem = call.problem
        if isinstance(taken, KernelRoute):
            return _empty_runner(problem) if problem.is_empty else self._kernel_runner(taken, call)
        if isinstance(taken, ReferenceRoute):
            return _reference_runner(problem)
        return _sdpa_runner(problem)

    def _kernel_runner(self, taken: KernelRoute, call: Call) -> Runner:
        p, dtype = call.problem, call.query.dtype  # not `call`: the function is kept, and must not keep the tensors
        scores = (p.batch, p.heads, p.q_len, p.kv_len)

        def prepared_mask(mask: Tensor | None) -> Tensor | None:
            if mask is None:
                return None
            if taken.cast_mask:
                mask = fallback.cast_mask(mask, dtype)
            return mask.expand(scores)

        # Only what differs from the usual launch is named, so that launchers of tests can leave it out.
        pack, follower = taken.pack, taken.merge
        extra = {} if follower is None else {"merge": (follower, lambda: pack.image(follower))}
        launch = self._launch_module().prepare(
            taken.kernel,
            lambda: taken.pack.image(taken.kernel),
            p,
            call.query,
            call.key,
            call.value,
            prepared_mask(call.attn_mask),
            p.want_lse,
            **extra,
        )
        if p.mask_kind == "none" and p.dropout_p == 0.0:
            return launch  # type: ignore[no-any-return]

        def run(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Result | None:
            if p.dropout_p == 0.0:
                return launch(query, key, value, prepared_mask(mask))  # type: ignore[no-any-return]
            seed, offset = philox.draw(query.device)
            return launch(query, key, value, prepared_mask(mask), (seed, offset, 0))  # type: ignore[no-any-return]

        return run

    def _launch_module(self) -> Any:
        if self._launcher is None:
            self._launcher = importlib.import_module("ffpa_attn.launch")
        return self._launcher


def default_runtime() -> Runtime:
    """The runtime of `ffpa_attn_func`. Packs are looked for at its first call on a CUDA device."""
    return _DEFAULT


def _cuda_device(device: torch.device) -> DeviceInfo | None:
    if device.type != "cuda" or torch.version.cuda is None:
        return None
    from .device import device_info

    return device_info(device.index or 0)


def _is_news(taken: FallbackRoute, backend: Backend | None) -> bool:
    """Whether a fallback is worth a warning: not when it was asked for, nor when no kernel was expected."""
    return taken.reason.code != "requested" and not (backend is None and taken.reason.code == "device")


def _finished(call: Call, run: Runner) -> Result:
    result = run(call.query, call.key, call.value, call.attn_mask)
    assert result is not None  # the runner was made for these tensors
    return call.finish(result)


def _plan(taken: Route, call: Call, run: Runner) -> Plan:
    """`run` with the steps around it for calls of one signature. Plans are kept, so they hold nothing of `call`."""
    nhd = call.nhd
    dtype, device = call.query.dtype, call.query.device
    value_shape = call.value.transpose(1, 2).shape if nhd else call.value.shape

    if isinstance(taken, KernelRoute) and not call.problem.is_empty:
        # the launcher compares every tensor with the plan, so nothing is checked here
        if not nhd:
            return run

        def transposed(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None) -> Result | None:
            result = run(query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), attn_mask)
            return None if result is None else _swapped(result)

        return transposed

    def checked(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None) -> Result | None:
        if any(tensor.dtype != dtype or tensor.device != device for tensor in (query, key, value)):
            return None
        if value.shape != value_shape or (attn_mask is not None and attn_mask.device != device):
            return None
        if nhd:
            query, key, value = query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)
        result = run(query, key, value, attn_mask)
        return _swapped(result) if nhd and result is not None else result

    return checked


def _swapped(result: Result) -> Result:
    """A result in [B, N, H, D]."""
    return (result[0].transpose(1, 2), result[1]) if isinstance(result, tuple) else result.transpose(1, 2)


def _result(out: Tensor, lse: Tensor | None) -> Result:
    return out if lse is None else (out, lse)


def _sdpa_runner(problem: Problem) -> Runner:
    def run(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Result:
        return _result(
            *fallback.sdpa(
                query,
                key,
                value,
                mask,
                dropout_p=problem.dropout_p,
                is_causal=problem.is_causal,
                scale=problem.scale,
                want_lse=problem.want_lse,
            )
        )

    return run


def _reference_runner(problem: Problem) -> Runner:
    p = problem

    def run(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Result:
        stream = philox.stream_of(philox.draw(query.device)) if p.dropout_p > 0.0 else None
        out, lse = reference.attention(
            query,
            key,
            value,
            mask,
            is_causal=p.is_causal,
            scale=p.scale,
            dropout_p=p.dropout_p,
            philox=stream,
        )
        return _result(fallback.in_order_of(query, out), lse.to(torch.float32) if p.want_lse else None)

    return run


def _empty_runner(problem: Problem) -> Runner:
    """No row or no key: zeros, and an LSE of -inf."""

    def run(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Result:
        strides = result_strides(query.shape, query.stride())
        out = torch.empty_strided(query.shape, strides, dtype=query.dtype, device=query.device).zero_()
        lse = query.new_full(query.shape[:3], -torch.inf, dtype=torch.float32) if problem.want_lse else None
        return _result(out, lse)

    return run


_DEFAULT = Runtime()
