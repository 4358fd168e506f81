"""Arrays in temporary files are equal copies, and memory where no file can be written."""

from __future__ import annotations

import numpy as np
import pytest

from sardonyx.base import mapped_files
from sardonyx.base.mapped_files import Spill, release_pages


def test_spilled_arrays_are_equal_after_their_pages_are_released(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapped_files, "SEGMENT_BYTES", 1000)
    rng, spill = np.random.default_rng(0), Spill()
    arrays = [rng.standard_normal(shape).astype(kind) for shape in ((3, 5), (40, 9), (), (0, 2)) for kind in "fd"]
    copies = [spill.array(array) for array in arrays]
    release_pages()
    for array, copy in zip(arrays, copies, strict=True):
        assert copy.dtype == array.dtype
        np.testing.assert_array_equal(copy, array)
    assert not copies[0].flags.writeable


def test_arrays_stay_in_memory_without_space_for_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object, **options: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(mapped_files.tempfile, "TemporaryFile", full)
    array = np.arange(5.0)
    assert Spill().array(array) is array
