"""The closure of includes is complete; what the build cannot see is an error that names the includer."""

from __future__ import annotations

from pathlib import Path

import pytest

from ffpa_build.errors import IncludeError
from ffpa_build.includes import Sources


def write(root: Path, **files: str) -> Sources:
    for name, text in files.items():
        (root / f"{name}.h").write_text(text)
    return Sources(root)


def test_closure_follows_includes_once_and_in_order(tmp_path: Path) -> None:
    sources = write(tmp_path, b='#include "a.h"\n', a='#pragma once\n#  include "c.h"  // why\n', c='#include "a.h"\n')
    assert list(sources.closure('#include "b.h"\n', "unit")) == ["a.h", "b.h", "c.h"]


def test_comments_and_strings_are_not_includes(tmp_path: Path) -> None:
    sources = write(tmp_path)
    assert sources.closure('// #include "x.h"\n/*\n#include "y.h"\n*/\nauto s = "#include";\n', "unit") == {}


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ('#include "gone.h"', ["a.h", '"gone.h"', "no such file"]),
        ("#include <cuda_fp16.h>", ["a.h", "<cuda_fp16.h>", "nothing but csrc/"]),
        ("#include NAME", ["a.h", "NAME"]),
        ('#include "../secret.h"', ["a.h", "../secret.h", "plain path"]),
        ('#include "/etc/passwd"', ["a.h", "plain path"]),
        ('#include "./b.h"', ["a.h", "plain path"]),
    ],
)
def test_bad_include_names_the_includer(tmp_path: Path, text: str, parts: list[str]) -> None:
    sources = write(tmp_path, a=text)
    with pytest.raises(IncludeError) as caught:
        sources.closure('#include "a.h"', "unit")
    for part in parts:
        assert part in str(caught.value)
