"""`python -m ffpa_build.compile_one <job.json>`: compiles one variant into the cache, in a process of its own.

A job names its inputs and the key that they had when it was made. The inputs are read again here, and the job is
refused if they have changed meanwhile: so an entry of the cache always is what its key says.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ffpa_build.cache import Cache, Entry, cache_key, write_atomically
from ffpa_build.compiler import compile_cubin, flags_for
from ffpa_build.errors import BuildError, CompileError
from ffpa_build.facts import read_facts
from ffpa_build.includes import Sources
from ffpa_build.toolchain import Toolchain


@dataclass(frozen=True)
class Job:
    """One compile. Paths are absolute; `name` is the kernel id."""

    key: str
    name: str
    entry: str
    source: str
    target: str
    csrc: str
    cache: str
    toolchain: Toolchain

    def write(self, path: Path) -> None:
        write_atomically(path, json.dumps(asdict(self), indent=1, sort_keys=True).encode())

    @classmethod
    def read(cls, path: Path) -> Job:
        data: dict[str, Any] = json.loads(path.read_bytes())
        return cls(**{**data, "toolchain": Toolchain(**data["toolchain"])})


def error_path(job_path: Path) -> Path:
    """Where a failed job leaves its message and log."""
    return job_path.with_suffix(".error.json")


def run(job: Job) -> None:
    """Compiles, reads the facts and stores the entry. Raises BuildError."""
    started = time.monotonic()
    headers = Sources(Path(job.csrc)).closure(job.source, job.name)
    flags = flags_for(job.toolchain.kind)
    if cache_key(job.toolchain.identity, job.target, flags, job.name, job.source, headers) != job.key:
        raise BuildError(f"{job.name}: the sources changed after the build had started; build again")
    result = compile_cubin(job.source, headers, job.target, job.toolchain, job.name)
    try:
        facts = read_facts(result.cubin, job.entry, result.log)
    except BuildError as error:
        raise CompileError(str(error), result.log) from error
    seconds = round(time.monotonic() - started, 3)
    entry = Entry(job.key, facts, result.log, seconds, _peak_rss_mib(), result.cubin, _cpu_seconds())
    Cache(Path(job.cache)).store(entry)


def _cpu_seconds() -> float:
    """Of this process from its start, and of the compiler where that is a process of its own."""
    times = os.times()
    return round(times.user + times.system + times.children_user + times.children_system, 3)


def _peak_rss_mib() -> int:
    """Peak memory of this process or of its largest child."""
    if sys.platform == "win32":
        import psutil

        return int(psutil.Process().memory_info().peak_wset) >> 20
    import resource

    largest = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return largest >> (20 if sys.platform == "darwin" else 10)


def main() -> int:
    path = Path(sys.argv[1])
    try:
        job = Job.read(path)
        try:
            run(job)
        except OSError as error:
            raise BuildError(f"{job.name}: {error}") from error
    except BuildError as error:
        log = error.log if isinstance(error, CompileError) else ""
        print(f"{error}\n{log}", file=sys.stderr)
        with contextlib.suppress(OSError):  # without room for the file, what is printed has to do
            write_atomically(error_path(path), json.dumps({"message": str(error), "log": log}).encode())
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
