from __future__ import annotations

import subprocess
import sys

import pytest

import sardonyx


@pytest.mark.parametrize("name", sardonyx.__all__)
def test_every_name_is_there_and_documented(name: str) -> None:
    assert getattr(sardonyx, name).__doc__
    assert name in dir(sardonyx)


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        sardonyx.nothing  # noqa: B018


def test_importing_the_package_loads_nothing_else() -> None:
    script = "import sys, sardonyx; assert not {'onnx', 'onnx_ir', 'numpy', 'onnxruntime'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True)
