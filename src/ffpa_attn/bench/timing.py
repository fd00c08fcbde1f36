"""Time of one call: CUDA events on a GPU, the wall clock on a CPU; warm-up first, then the median."""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
import time
from collections.abc import Callable, Iterator

import torch

from ffpa_attn.bench.clock import SmClock, median_mhz

# A batch stays below the depth of the driver's launch queue (1024 entries), at which the host would have to wait.
BATCH_CALLS = 64
HOST_CYCLES_A_CALL = 200_000  # of the device's clock: some 100 us, more than any measured call takes to enqueue


@dataclasses.dataclass(frozen=True)
class Budget:
    """Milliseconds spent on warming up and on measuring a case, and the bounds on the number of timed calls.

    With ``rest_s`` seconds of idleness a card cools down before each burst of work, and ``warmup_ms`` and
    ``measure_ms`` are those of a burst: calls too long for ``min_calls`` of them in one have several bursts, and those
    longer than ``warmup_ms`` no warm-up.
    """

    warmup_ms: float = 100.0
    measure_ms: float = 300.0
    min_calls: int = 5
    max_calls: int = 500
    rest_s: float = 0.0


FULL = Budget()
QUICK = Budget(warmup_ms=25.0, measure_ms=75.0, min_calls=3)


def rested(seconds: float) -> Budget:
    """So little work after a rest that a card keeps its highest clock: what one call among others' work can have.

    Calls of every length get as little: an H200 reaches its power limit after 60 to 100 ms of work.
    """
    return Budget(warmup_ms=5.0, measure_ms=25.0, min_calls=5, rest_s=seconds)


@dataclasses.dataclass(frozen=True)
class Timing:
    """Median milliseconds of a call, and the median clock of the multiprocessors meanwhile where it can be read."""

    ms: float
    sm_mhz: float | None


def measure(call: Callable[[], object], device: torch.device, budget: Budget = FULL) -> Timing:
    """``median_ms`` with the clock beside it."""
    while_timed: list[int] = []
    with SmClock(device).sampled() as samples:

        @contextlib.contextmanager
        def timed() -> Iterator[None]:
            samples_before = len(samples)
            yield
            while_timed.extend(samples[samples_before:])

        ms = median_ms(call, device, budget, timed)
    return Timing(ms, median_mhz(while_timed))


def median_ms(
    call: Callable[[], object],
    device: torch.device,
    budget: Budget = FULL,
    timed: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
) -> float:
    """Median time of ``call`` in milliseconds: device time on CUDA, host time on the CPU. Timed calls run within
    ``timed``."""
    one = _first_ms(call, device)
    calls = _calls(budget.measure_ms, one, budget.min_calls, budget.max_calls)
    rests = budget.rest_s > 0
    burst = _calls(budget.measure_ms, one, 1, budget.max_calls) if rests else calls
    warmups = _calls(budget.warmup_ms, one, 0 if rests else 1, budget.max_calls)
    times: list[float] = []
    while len(times) < calls:
        if rests:
            time.sleep(budget.rest_s)
        for _ in range(warmups):
            call()
        count = min(burst, calls - len(times))
        with timed():
            times += (
                _device_times(call, count, device) if device.type == "cuda" else [_host_ms(call) for _ in range(count)]
            )
    return statistics.median(times)


def _device_times(call: Callable[[], object], calls: int, device: torch.device) -> list[float]:
    """Times of ``calls`` calls by events.

    The device is kept busy while the host enqueues a batch, so that an event never waits for the host: without that,
    a call shorter than its own launch would be timed as the launch.
    """
    times: list[float] = []
    while len(times) < calls:
        batch = min(BATCH_CALLS, calls - len(times))
        starts = [torch.cuda.Event(enable_timing=True) for _ in range(batch)]
        ends = [torch.cuda.Event(enable_timing=True) for _ in range(batch)]
        torch.cuda._sleep(batch * HOST_CYCLES_A_CALL)
        for start, end in zip(starts, ends, strict=True):
            start.record()
            call()
            end.record()
        torch.cuda.synchronize(device)
        times += [start.elapsed_time(end) for start, end in zip(starts, ends, strict=True)]
    return times


def _first_ms(call: Callable[[], object], device: torch.device) -> float:
    """Time of the second call, by the wall clock: the first one loads code."""
    call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    start = time.perf_counter()
    call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return max((time.perf_counter() - start) * 1e3, 1e-3)


def _calls(target_ms: float, one_ms: float, least: int, most: int) -> int:
    return max(least, min(most, int(target_ms / one_ms)))


def _host_ms(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1e3
