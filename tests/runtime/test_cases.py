"""docs/cases.md names tests that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_every_test_that_the_page_of_cases_names_exists() -> None:
    page = (ROOT / "docs" / "cases.md").read_text(encoding="utf-8")
    named = re.findall(r"`([\w/]+)::(\w+)`", page)
    rows = [line for line in page.splitlines() if line.startswith("| ") and not line.endswith("| tests |")]
    assert rows and all("::" in row for row in rows)
    for module, name in named:
        tree = ast.parse((ROOT / "tests" / f"{module}.py").read_text(encoding="utf-8"))
        assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, f"{module}::{name}"
