"""The clock of the card while it works: a card that reaches its power limit lowers it, and times with it."""

from __future__ import annotations

import contextlib
import importlib
import statistics
import threading
from collections.abc import Iterator

import torch

PERIOD_S = 0.005


class SmClock:
    """Samples the clock of a CUDA device's multiprocessors through NVML (the package nvidia-ml-py). Without NVML, and
    on a CPU, there is no sample."""

    def __init__(self, device: torch.device) -> None:
        self._handle = None
        if device.type != "cuda":
            return
        try:
            self._nvml = importlib.import_module("pynvml")
            self._nvml.nvmlInit()
            # By UUID: NVML counts the cards of the machine, torch those that the process may see.
            uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
            self._handle = self._nvml.nvmlDeviceGetHandleByUUID(uuid)
        except Exception:  # no NVML, or one that does not know the card: times are measured without a clock beside them
            return

    @contextlib.contextmanager
    def sampled(self) -> Iterator[list[int]]:
        """A list that fills with MHz, a sample every few milliseconds, until the block ends."""
        samples: list[int] = []
        if self._handle is None:
            yield samples
            return
        done = threading.Event()

        def sample() -> None:
            while not done.wait(PERIOD_S):
                samples.append(self._nvml.nvmlDeviceGetClockInfo(self._handle, self._nvml.NVML_CLOCK_SM))

        thread = threading.Thread(target=sample, daemon=True)
        thread.start()
        try:
            yield samples
        finally:
            done.set()
            thread.join()


def median_mhz(samples: list[int]) -> float | None:
    """The median, or None where nothing was sampled."""
    return float(statistics.median(samples)) if samples else None
