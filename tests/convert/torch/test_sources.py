"""Sources: functions, and files of Python whose functions fail, with the user's line."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import sardonyx  # noqa: E402
from sardonyx.errors import ModelFileError, OptionError  # noqa: E402


def scaled(x: Any, factor: float = 2.0) -> Any:
    return x * factor


@pytest.mark.parametrize(
    "function",
    [scaled, functools.partial(scaled, factor=3.0), torch.sin, torch.nn.functional.gelu],
    ids=("function", "partial", "of C", "of torch"),
)
def test_functions_with_tensors_as_examples_are_programs_of_torch(function: Any) -> None:
    report = sardonyx.convert(function, (torch.rand(2, 3),), exporter="sardonyx").report
    assert report.verdict.status == "proved"
    assert sum(len(values) > 1 for values in report.sizes.values()) == 2


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        (scaled, {}, "framework of a function is unknown"),
        (torch.nn.Linear, {}, "got the class Linear"),
        (None, {}, "expected a program, got None"),
        (3, {"framework": "torch"}, "expected a module, a function or an exported program, got int"),
    ],
)
def test_other_sources_are_refused(source: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        sardonyx.convert(source, **options)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("import torch\n\ndef build():\n    x = torch.rand(3)\n    return x @ torch.rand(4)\n", "build.py:5"),
        ("import torch\n\ndef build(:\n    return 1\n", "build.py:3"),
        ("import torch\n\nweights = {}['w']\n\ndef build():\n    return weights\n", "build.py:3"),
        ("def inner():\n    return 1 / 0\n\ndef build():\n    return inner()\n", "build.py:2"),
    ],
    ids=("function", "syntax", "import", "inner function"),
)
def test_errors_of_a_file_name_the_line(text: str, line: str, tmp_path: Path) -> None:
    (tmp_path / "build.py").write_text(text)
    with pytest.raises(ModelFileError) as raised:
        sardonyx.convert(f"{tmp_path / 'build.py'}:build")
    assert line in raised.value.where
