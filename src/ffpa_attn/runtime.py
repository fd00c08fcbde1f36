"""The object that turns calls into results: it owns the packs, the gates and the plans of calls seen before."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .backends import Backend, CUDABackend, ReferenceBackend, SDPABackend
from .call import Call
from .config import Config, default_config
from .debug import forced_backend
from .errors import FallbackError, KernelNotFoundError, PackError
from .explanation import Explanation
from .gates import Gates
from .notices import Notices
from .options import Options
from .packs import Pack, PackSet, discover
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
from .runners import Plan, Result, Runner, finished, plan_of, runner_of

if TYPE_CHECKING:
    from .device import DeviceInfo

DEFAULTS = Options()
MAX_PLANS = 4096

_forward_ad = torch.autograd.forward_ad
_is_grad_enabled = torch.is_grad_enabled
_is_autocast_enabled = torch.is_autocast_enabled
_functorch_level: Callable[[], Any] = torch._C._functorch.peek_interpreter_stack


@dataclass(frozen=True)
class _Installed:
    """Packs, and the kernels chosen among them so far: the two are replaced as one, so that no choice outlives its
    pack."""

    packs: PackSet
    choices: Choices = field(default_factory=dict)


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
        self._lock = threading.Lock()  # for the changes of _found
        self._found = None if packs is None else _Installed(packs)
        self._launcher = launcher
        self._devices = _cuda_device if devices is None else devices
        self._plans: dict[tuple[Any, ...], Plan] = {}  # by the whole signature
        self._recent: dict[tuple[Any, ...], Plan] = {}  # by its first part: the last plan that fitted
        self._latest: Plan | None = None  # that a look-up found
        self._repeated: tuple[Any, ...] | None = None  # the options of a call that came twice in a row, and its plan
        self._max_plans = max_plans

    @property
    def packs(self) -> PackSet:
        """The packs in use and those turned away."""
        return self._installed.packs

    @property
    def _installed(self) -> _Installed:
        if self._found is None:
            with self._lock:
                if self._found is None:
                    self._found = _Installed(discover())
        return self._found

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
        options: Options | tuple[Any, ...] = DEFAULTS,
    ) -> Result:
        """`ffpa_attn.ffpa_attn_func` on this instance; eager only, a compiled graph calls the default instance.

        Args:
            options: an `Options`, or its fields as a plain tuple.
        """
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
            and _functorch_level() is None
        ):
            # A plan that fitted twice in a row is tried without any look-up, if the options are the same objects.
            repeated = self._repeated
            if repeated is not None and attn_mask is None:
                dropout_p, is_causal, scale, backend, return_lse, strict = options
                if (
                    repeated[0] is dropout_p
                    and repeated[1] is is_causal
                    and repeated[2] is scale
                    and repeated[3] is backend
                    and repeated[4] is return_lse
                    and repeated[5] is strict
                ):
                    result = repeated[6](query, key, value, None)
                    if result is not None:
                        return result
                    self._repeated = None
            recent = (
                query.shape,
                key.shape,
                None if attn_mask is None else (attn_mask.shape, attn_mask.stride(), attn_mask.dtype),
                options,
                tuple(map(type, options)),  # 1 equals True and is not allowed where True is
            )
            try:
                # Dropout (options[0]) draws random numbers before the plan can turn tensors away, so a call with it is
                # looked up by everything.
                plan = self._recent.get(recent) if options[0] == 0.0 else None
                if plan is not None:
                    result = plan(query, key, value, attn_mask)
                    if result is not None:
                        if plan is self._latest:
                            self._repeated = None if attn_mask is not None else (*options, plan)
                        self._latest = plan
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
        return self._first_call(signature, query, key, value, attn_mask, Options(*options))

    def explain(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        options: Options = DEFAULTS,
    ) -> Explanation:
        """The route of the same call to `attention`, which is not run."""
        call = Call.of(query, key, value, attn_mask, options)
        taken = self._verified_route(call)
        error = self._refusal(taken, call)
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
        packs = self.packs
        return Explanation(
            problem=call.problem,
            taken=taken,
            packs=packs.packs,
            packs_rejected=packs.rejected,
            copies=tuple(copies),
            error=None if error is None else f"{type(error).__name__}: {error}",
        )

    def differentiable(
        self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, options: Options
    ) -> Result:
        """A call whose inputs need gradients, in operations that a graph capture can look into.

        The gate for gradients decides it on every device, so that neither devices nor packs are looked at.
        """
        call = Call.of(query, key, value, attn_mask, options)
        taken: Route = ReferenceRoute()
        if not isinstance(call.backend, ReferenceBackend):
            asked = isinstance(call.backend, SDPABackend)
            taken = FallbackRoute(Reason("requested", "SDPABackend was asked for") if asked else GRADIENTS)
        error = self._refusal(taken, call)
        if error is not None:
            raise error
        return finished(call, self._runner(taken, call))

    def _first_call(
        self,
        signature: tuple[Any, ...] | None,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None,
        options: Options,
    ) -> Result:
        call = Call.of(query, key, value, attn_mask, options)
        taken = self._verified_route(call)
        error = self._refusal(taken, call)
        if error is not None:
            raise error
        if isinstance(taken, FallbackRoute) and _is_news(taken, call.backend):
            self.notices.fallback(taken.reason.code, taken.reason.text)
        run = self._runner(taken, call)
        result = finished(call, run)
        on_device = self._devices(query.device) is not None
        if signature is not None and call.is_view and on_device and not call.problem.needs_grad:
            if len(self._plans) >= self._max_plans:
                self._forget_plans()
            self._plans[signature] = self._recent[signature[0]] = plan_of(taken, call, run)
        return result

    def _verified_route(self, call: Call) -> Route:
        """The route, with the cubin of its kernel checked; a pack with a bad cubin is turned away for good."""
        device = self._devices(call.query.device)
        while True:
            installed = self._installed if device is not None else _Installed(PackSet())
            backend = forced_backend(call.backend, self.config, installed.packs)
            taken = route(call.problem, device, backend, installed.packs, self.gates, installed.choices)
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
                self._turn_away(taken.pack, str(error), installed)

    def _turn_away(self, pack: Pack, reason: str, seen: _Installed) -> None:
        with self._lock:
            # Another thread may have turned a pack away meanwhile; then the caller looks again.
            if self._found is seen:
                self._found = _Installed(seen.packs.without(pack, reason))
            self._forget_plans()

    def _refusal(self, taken: Route, call: Call) -> Exception | None:
        """The error that the call raises instead of falling back."""
        if not isinstance(taken, FallbackRoute) or taken.reason.code == "requested":
            return None
        reason = taken.reason
        if reason.code == "acc":
            return ValueError(f"CUDABackend: {reason.text}")
        if isinstance(call.backend, CUDABackend) and reason.code == "no_kernel":
            return KernelNotFoundError(reason.text)
        if call.nhd:
            return ValueError(
                f"tensor_layout='NHD' is served by kernels only and this call has none: {reason.text}. Pass "
                "[B, H, N, D] views (transpose(1, 2)) with tensor_layout='HND' instead"
            )
        if self.config.strict if call.strict is None else call.strict:
            return FallbackError(reason.code, f"strict mode: no kernel runs this call: {reason.text}")
        return None

    def _forget_plans(self) -> None:
        self._plans.clear()
        self._recent.clear()
        self._latest = self._repeated = None
        if self._found is not None:
            self._found.choices.clear()

    def _runner(self, taken: Route, call: Call) -> Runner:
        return runner_of(taken, call, self._launch_module() if isinstance(taken, KernelRoute) else None)

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


_DEFAULT = Runtime()
