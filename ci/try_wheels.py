"""Install a folder of wheels into a new environment, show its packs and run attention from it.

    python ci/try_wheels.py dist --environment /tmp/try

The environment sees nothing of the tree. A torch of the calling Python is used when it has one; else the version of
ci/constraints.txt is installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
import venv
from pathlib import Path

CI = Path(__file__).resolve().parent


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("wheels", type=Path, help="folder of wheels")
    parser.add_argument("--environment", type=Path, required=True, help="where to make the environment; replaced")
    options = parser.parse_args()
    has_torch = importlib.util.find_spec("torch") is not None
    environment = options.environment.absolute()
    venv.create(environment, clear=True, with_pip=True, system_site_packages=has_torch)
    python = str(environment / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python"))
    wheels = options.wheels.resolve()
    # An extra also names packs that a restricted build has no wheel of; what is there is what gets installed.
    here = sorted(str(path) for path in wheels.glob("*.whl"))
    install = [python, "-m", "pip", "install", "--quiet", "--constraint", str(CI / "constraints.txt")]
    print(f"Installing {len(here)} wheels{'' if has_torch else ' and torch'} into {environment}", flush=True)
    subprocess.run([*install, "--find-links", str(wheels), *here], check=True)
    # Run from there, so that nothing of the tree is importable by accident.
    subprocess.run([python, "-m", "ffpa_attn", "packs"], check=True, cwd=environment)
    quiet = ["-W", "ignore:Failed to initialize NumPy"]  # torch warns of a library that nothing here uses
    return subprocess.run([python, *quiet, str(CI / "smoke.py")], check=False, cwd=environment).returncode


if __name__ == "__main__":
    sys.exit(main())
