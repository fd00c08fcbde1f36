"""Where and how a measurement was made: card, driver, versions, commit, date, command line."""

from __future__ import annotations

import datetime
import importlib.metadata
import pathlib
import platform
import shlex
import subprocess
from collections.abc import Sequence

import torch

COMMAND = "python -m ffpa_attn.bench"


def describe_environment(argv: Sequence[str]) -> dict[str, str]:
    """Facts in the order in which they are printed; a fact that cannot be had is left out."""
    facts = {"device": "CPU: " + (platform.processor() or platform.machine())}
    if torch.cuda.is_available():
        facts["device"] = torch.cuda.get_device_name()
        major, minor = torch.cuda.get_device_capability()
        facts["capability"] = f"{major}.{minor}"
        facts["driver"] = _first_line(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"])
        facts["cuda"] = str(torch.version.cuda)
    facts["torch"] = torch.__version__
    facts["python"] = platform.python_version()
    facts["ffpa"] = _version("ffpa-core") or _version("ffpa")
    facts["commit"] = _commit()
    facts["date"] = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    facts["command"] = shlex.join([*COMMAND.split(), *argv])
    return {key: value for key, value in facts.items() if value}


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _commit() -> str:
    """The commit of the source tree this module stands in, empty when it is installed from a wheel."""
    here = pathlib.Path(__file__).resolve().parent
    if "site-packages" in here.parts:
        return ""
    return _first_line(["git", "-C", str(here), "rev-parse", "--short=12", "HEAD"])


def _first_line(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip().splitlines()[0] if done.returncode == 0 and done.stdout.strip() else ""
