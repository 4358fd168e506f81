"""The generated reference pages in ``docs`` are current."""

from __future__ import annotations

import onnxruntime
import pytest

from sardonyx.compat import onnxoptimizer, onnxslim
from sardonyx.compat.onnxruntime import __version__ as INTERFACE
from sardonyx.rewrite.pipeline import available_passes
from tests.compat.reference_pages import PAGES, REFERENCE
from tests.ops.agreement import release


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_up_to_date(name: str) -> None:
    if name == "onnxruntime.md" and release(onnxruntime.__version__) != release(INTERFACE):
        pytest.skip(f"the page lists the names of ONNX Runtime {INTERFACE}; {onnxruntime.__version__} is installed")
    written = (REFERENCE / name).read_text(encoding="utf-8")
    assert written == PAGES[name](), f"{name} is stale: python -m tests.compat.reference_pages"


def test_passes_named_on_the_pages_exist() -> None:
    known = set(available_passes())
    assert set(onnxoptimizer.DIFFERENCES) <= known
    assert {name for names in onnxslim.PATTERNS.values() for name in names} <= known
    assert {name for names in onnxslim.OPTIMIZATIONS.values() for name in names} <= known


def test_the_list_of_original_passes_is_complete() -> None:
    theirs = pytest.importorskip("onnxoptimizer")
    assert set(onnxoptimizer.ORIGINAL_PASSES) == set(theirs.get_available_passes())
