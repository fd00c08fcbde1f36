"""Runs compile jobs in parallel with ninja, with a progress bar that names the variants."""

from __future__ import annotations

import importlib
import io
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ffpa_build.errors import BuildError, SelectionError

_PROGRESS = re.compile(r"^\[\d+/\d+\] (.+)$")


def job_count(requested: int | None, memory_mib: int) -> int:
    """Compiles to run at once: what was asked for, else what cores and free memory allow at `memory_mib` a compile."""
    if requested is not None:
        if requested < 1:
            raise SelectionError(f"jobs = {requested}: allowed: 1 or more")
        return requested
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(cores, available_mib() // memory_mib))


def available_mib() -> int:
    """Free memory, of the container where one sets a limit."""
    import psutil

    available = int(psutil.virtual_memory().available)
    try:
        control = Path("/sys/fs/cgroup")
        limit = int((control / "memory.max").read_text())
        available = min(available, limit - int((control / "memory.current").read_text()))
    except (OSError, ValueError):  # no control group, or no limit in it
        pass
    return max(available, 0) >> 20


def compile_command(job_path: Path) -> list[str]:
    return [sys.executable, "-m", "ffpa_build.compile_one", str(job_path)]


def _python_path() -> str:
    return str(Path(__file__).resolve().parents[1])


def repeat_command(job_path: Path) -> str:
    """What to type to run one failed compile again."""
    command = compile_command(job_path)
    if os.name == "nt":
        return f"set PYTHONPATH={_python_path()}&& {subprocess.list2cmdline(command)}"
    return shlex.join([f"PYTHONPATH={_python_path()}", *command])


def _ninja_text(jobs: Mapping[str, Path]) -> str:
    ninja_syntax = importlib.import_module("ninja.ninja_syntax")
    stream = io.StringIO()
    writer = ninja_syntax.Writer(stream, width=10**6)
    join = subprocess.list2cmdline if os.name == "nt" else shlex.join
    for index, (name, job_path) in enumerate(jobs.items()):
        rule = f"compile{index}"
        writer.rule(rule, command=ninja_syntax.escape(join(compile_command(job_path))), description=name)
        # Compiles write to the cache. This output never exists, so that ninja runs each job whatever is there.
        writer.build([f"{index}.done"], rule, [ninja_syntax.escape_path(str(job_path))])
    return stream.getvalue()


def run_ninja(jobs: Mapping[str, Path], parallel: int, work_dir: Path, report: Callable[[int, int, str], None]) -> str:
    """Runs every job, `name -> job file`, and goes on after failures. Returns ninja's text.

    `report(done, total, name)` is called after each. Which of the jobs succeeded shows in the cache.
    """
    import ninja

    work_dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="run-", dir=work_dir) as folder:
        (Path(folder) / "build.ninja").write_text(_ninja_text(jobs), encoding="utf-8")
        search = [_python_path(), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(search), "NINJA_STATUS": "[%f/%t] "}
        program = Path(ninja.BIN_DIR) / ("ninja.exe" if os.name == "nt" else "ninja")
        process = subprocess.Popen(
            [str(program), "-C", folder, "-j", str(parallel), "-k", "0"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=environment,
        )
        lines, done = [], 0
        try:
            assert process.stdout is not None
            for line in process.stdout:
                lines.append(line)
                match = _PROGRESS.match(line.rstrip("\n"))
                if match and match[1] in jobs:
                    done += 1
                    report(done, len(jobs), match[1])
        except BaseException:
            process.terminate()
            raise
        finally:
            process.wait()
        # A status that is not 0 is mostly that of a failed compile, which shows in the cache.
        if process.returncode != 0 and done < len(jobs):
            raise BuildError(f"ninja ended with status {process.returncode}:\n{''.join(lines[-20:])}")
        return "".join(lines)


class Progress:
    """A bar on a terminal, a line a variant elsewhere, nothing if `quiet`."""

    def __init__(self, names: Sequence[str], quiet: bool) -> None:
        self._bar = None
        self._quiet = quiet
        if not quiet and sys.stderr.isatty():
            from tqdm import tqdm

            self._bar = tqdm(total=len(names), unit="kernel", dynamic_ncols=True)

    def __call__(self, done: int, total: int, name: str) -> None:
        if self._bar is not None:
            self._bar.set_postfix_str(name, refresh=False)
            self._bar.update(done - self._bar.n)
        elif not self._quiet:
            print(f"[{done}/{total}] {name}", file=sys.stderr, flush=True)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
