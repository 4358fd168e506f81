"""Linked pieces compute what the objects do that LLVM loads, wherever they are put."""

from __future__ import annotations

import ctypes
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from sardonyx.compiler.llvm.elf_loader import Code, MappedCode, is_linked, linked, loaded
from sardonyx.compiler.llvm.object_code import CodeGenerationError, LoadedCode, compiled
from sardonyx.compiler.target.description import NAMED, host

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="pieces are linked for x86-64")

CONSTANTS = """
@table = private constant [4 x double] [double 1.5, double 2.5, double 3.5, double 4.5]
define double @pick(i64 %i) {{
  %at = getelementptr double, ptr @table, i64 %i
  %found = load double, ptr %at
  %more = fadd double %found, 1.25e-3
  ret double %more
}}
define internal double @twice(double %x) noinline {{
  %y = fmul double %x, 2.125
  ret double %y
}}
define double @{name}(double %x) {{
  %y = call double @twice(double %x)
  ret double %y
}}
"""
CALLS = """
declare double @fmod(double, double)
declare double @cbrt(double)
define double @far(double %x, double %y) {
  %a = call double @fmod(double %x, double %y)
  %b = call double @cbrt(double %x)
  %c = fadd double %a, %b
  ret double %c
}
"""


def objects(*texts: str) -> list[bytes]:
    return [compiled(f'target triple = "{host().triple}"\n{text}', host()) for text in texts]


def function(code: MappedCode | LoadedCode, name: str, *arguments: type) -> object:
    return ctypes.CFUNCTYPE(ctypes.c_double, *arguments)(code.address(name))


def test_constants_and_functions_of_several_objects_are_found() -> None:
    other = CONSTANTS.format(name="two").replace("2.125", "8.0").replace("pick", "choose")
    arguments = objects(CONSTANTS.format(name="one"), other)
    code = linked(arguments)
    assert is_linked(code)
    mapped, loaded = MappedCode(code), LoadedCode(arguments, host())
    for name, kind, values in (("pick", ctypes.c_int64, range(4)), ("one", ctypes.c_double, (1.0, -3.5))):
        for value in values:
            assert function(mapped, name, kind)(value) == function(loaded, name, kind)(value)  # type: ignore[operator]
    assert function(mapped, "two", ctypes.c_double)(3.0) == 24.0  # type: ignore[operator]
    assert function(mapped, "choose", ctypes.c_int64)(0) == 1.5 + 1.25e-3  # type: ignore[operator]


def test_functions_of_the_c_library_are_called() -> None:
    code = linked(objects(CALLS))
    assert set(code.imports) == {"fmod", "cbrt"}
    mapped = MappedCode(code)
    far = function(mapped, "far", ctypes.c_double, ctypes.c_double)
    assert far(27.0, 5.0) == 2.0 + 3.0  # type: ignore[operator]


def test_a_piece_may_be_loaded_twice() -> None:
    code = linked(objects(CALLS))
    one, two = MappedCode(code), MappedCode(code)
    assert one.address("far") != two.address("far")
    del one
    assert function(two, "far", ctypes.c_double, ctypes.c_double)(8.0, 3.0) == 4.0  # type: ignore[operator]


def test_other_object_code_is_left_to_llvm() -> None:
    text = 'target triple = "aarch64-unknown-linux-gnu"\ndefine i64 @one() {\n  ret i64 1\n}\n'
    arm = [compiled(text, NAMED["neon"])]
    assert linked(arm) == Code(arm)
    writable = objects("@counter = global i64 0\ndefine ptr @one() {\n  ret ptr @counter\n}\n")
    assert linked(writable) == Code(writable)
    assert linked([]) == Code([])
    assert not is_linked(linked(arm))


def test_a_program_without_code_needs_no_llvm() -> None:
    script = (
        "import sys; from sardonyx.compiler.llvm.elf_loader import Code, loaded; loaded(Code([]), None);"
        " assert not {'llvmlite.binding', 'onnx'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
    with pytest.raises(CodeGenerationError, match="one"):
        loaded(Code([]), host()).address("one")


APART = """
import ctypes, mmap
import numpy as np
from onnx import parser
from sardonyx.runtime import Session

library = ctypes.CDLL(None)
library.mmap.restype = ctypes.c_void_p
library.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
library.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]

def take(size):
    return library.mmap(None, size, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000, -1, 0)

pages = 4096
top = take(pages * mmap.PAGESIZE)
below = take(3 << 30)
assert below < top
while take(2 * mmap.PAGESIZE) > top:
    pass
for page in range(0, pages, 2):
    library.munmap(top + page * mmap.PAGESIZE, mmap.PAGESIZE)
model = '<ir_version: 8, opset_import: ["": 17]> g (float[a, b] x) => (float[a, b] y) {s = Sin(x) y = Softmax(s)}'
session = Session(parser.parse_model(model), providers=["native"], compile="wait")
(found,) = session.run(None, {"x": np.zeros((5, 37), np.float32)})
print(session.placement[0].provider, np.round(found.sum()))
"""
"""Above three gigabytes that are taken there is room for single pages only, below them for all."""


@pytest.mark.skipif(sys.platform != "linux", reason="addresses are taken as Linux gives them")
def test_code_is_loaded_where_free_addresses_are_far_apart(tmp_path: Path) -> None:
    environment = os.environ | {"SARDONYX_CACHE": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", APART], capture_output=True, text=True, env=environment, check=False, timeout=300
    )
    assert (done.returncode, done.stdout.split()) == (0, ["native", "5.0"]), done.stderr[-2000:]
