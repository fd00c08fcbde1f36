"""Files that are made from the tables and kept in the tree: `check` compares them, `write` makes them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from ffpa_build.model import Spec
from ffpa_build.spec import find_root, load_spec

Render = Callable[[Spec], Mapping[Path, str]]
"""From the tables to the text of each generated file, by its path in the tree."""


def differences(spec: Spec, render: Render) -> list[str]:
    """One line for each file that is missing or differs; empty when all is well."""
    found = []
    for path, text in render(spec).items():
        file = spec.root / path
        if not file.is_file():
            found.append(f"{path}: missing")
        elif file.read_text(encoding="utf-8") != text:
            found.append(f"{path}: differs from the tables")
    return found


def write(spec: Spec, render: Render) -> None:
    """Writes every file."""
    for path, text in render(spec).items():
        file = spec.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")


def main(module: str, description: str, render: Render, arguments: list[str] | None = None) -> int:
    """The command line of a module with generated files; its exit status."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=description)
    parser.add_argument("action", choices=["check", "write"])
    parser.add_argument("--tree", type=Path, default=find_root(), help="root of the sources")
    options = parser.parse_args(arguments)
    spec = load_spec(options.tree)
    if options.action == "write":
        write(spec, render)
    found = differences(spec, render)
    for line in found:
        print(f"{line}; run: python -m {module} write", file=sys.stderr)
    return 1 if found else 0
