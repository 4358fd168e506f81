"""Pages of mapped files are released once many bytes were read, and read again on demand."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.base.resident_memory import resident

from sardonyx.base.mapped_files import count_read, release_pages
from sardonyx.model.external import MappedFile

SIZE = 8 << 20


@pytest.mark.skipif(sys.platform != "linux", reason="counts resident pages by /proc")
def test_pages_that_were_read_are_released(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    contents = os.urandom(SIZE)
    path.write_bytes(contents)
    view = MappedFile(path).view()
    assert bytes(view) == contents
    assert resident(path) == SIZE
    count_read(1 << 30)
    assert resident(path) == 0
    assert bytes(view) == contents
    release_pages()
    assert resident(path) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="locks a page by the C library of Linux")
def test_pages_that_are_locked_stay(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    contents = os.urandom(1 << 16)
    path.write_bytes(contents)
    view = MappedFile(path).view()
    address = np.frombuffer(view, np.uint8).ctypes.data
    lock = ctypes.CDLL(None).mlock
    lock.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    if lock(address, 4096):
        pytest.skip("the process may not lock memory")
    count_read(1 << 30)
    assert bytes(view) == contents
