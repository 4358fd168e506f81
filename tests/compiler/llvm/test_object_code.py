"""Object code stores the lanes of a mask and no other byte, where LLVM would store more."""

from __future__ import annotations

import ctypes
import re

import numpy as np
import pytest

from sardonyx.compiler.llvm.object_code import LoadedCode, assembly, compiled, module_text, store_single_lanes
from sardonyx.compiler.target.description import host as host_target

LANES = 8
WIDTHS = [("i32", "i8"), ("i32", "i16"), ("i64", "i32"), ("i16", "i8")]


def truncated_store(wide: str, narrow: str, first: int, count: int) -> str:
    """Return a module that truncates a vector and stores some of its lanes."""
    mask = ", ".join(f"i1 {str(first <= lane < first + count).lower()}" for lane in range(LANES))
    name = f"llvm.masked.store.v{LANES}{narrow}.p0"
    body = f"""define void @store(ptr %from, ptr %to) {{
  %wide = load <{LANES} x {wide}>, ptr %from, align 1
  %narrow = trunc <{LANES} x {wide}> %wide to <{LANES} x {narrow}>
  call void @{name}(<{LANES} x {narrow}> %narrow, ptr %to, i32 1, <{LANES} x i1> <{mask}>)
  ret void
}}"""
    return module_text(host_target(), [body], [f"declare void @{name}(<{LANES} x {narrow}>, ptr, i32, <{LANES} x i1>)"])


@pytest.mark.parametrize(("wide", "narrow"), WIDTHS)
@pytest.mark.parametrize(("first", "count"), [(0, 1), (3, 1), (7, 1), (0, 2), (0, 8)])
def test_a_truncated_store_writes_the_lanes_of_its_mask(wide: str, narrow: str, first: int, count: int) -> None:
    code = LoadedCode([compiled(truncated_store(wide, narrow, first, count), host_target())], host_target())
    store = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(code.address("store"))
    source = np.arange(-1, -LANES - 1, -1, wide.replace("i", "int"))
    target = np.zeros(LANES + 8, narrow.replace("i", "int"))
    store(source.ctypes.data, target.ctypes.data)
    expected = np.zeros_like(target)
    expected[first : first + count] = source[first : first + count]
    np.testing.assert_array_equal(target, expected)


def test_only_masks_of_one_constant_lane_are_rewritten() -> None:
    for first, count, rewritten in ((2, 1, True), (0, 2, False), (0, 0, False)):
        text = truncated_store("i32", "i8", first, count)
        assert (store_single_lanes(text) != text) == rewritten
    assert not re.search("vmovss.*,.*r[a-z]i", assembly(truncated_store("i32", "i8", 0, 1), host_target()))
