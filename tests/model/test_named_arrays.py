"""Files of named arrays: what they hold is read, and other files are refused by what they are."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from sardonyx.errors import ModelFileError
from sardonyx.model.named_arrays import read_named_arrays


def test_arrays_are_read_by_name(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.arange(3), y=np.ones((0, 2), np.float32))
    arrays = read_named_arrays(tmp_path / "a.npz")
    assert {name: (array.dtype, array.shape) for name, array in arrays.items()} == {
        "x": (np.dtype(np.int64), (3,)),
        "y": (np.dtype(np.float32), (0, 2)),
    }


def test_bfloat16_is_read_though_numpy_stores_bytes_without_a_type(tmp_path: Path) -> None:
    x = np.array([1, -2.5], ml_dtypes.bfloat16)
    np.savez(tmp_path / "a.npz", x=x)
    np.testing.assert_array_equal(read_named_arrays(tmp_path / "a.npz")["x"], x, strict=True)


@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        ("absent", "cannot be read: No such file"),
        ("text", "a file of another kind"),
        ("single", "got a single array"),
        ("objects", "holds Python objects"),
        ("cut", "damaged|another kind"),
        ("flipped", "damaged"),
    ],
)
def test_another_file_is_refused(tmp_path: Path, kind: str, problem: str) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, x=np.arange(1000))
    whole = path.read_bytes()
    match kind:
        case "absent":
            path.unlink()
        case "text":
            path.write_text("no arrays")
        case "single":
            with path.open("wb") as file:
                np.save(file, np.arange(3))
        case "objects":
            np.savez(path, x=np.array([{}], object))
        case "cut":
            path.write_bytes(whole[: len(whole) // 2])
        case _:
            path.write_bytes(whole[:1000] + b"\xff" * 9 + whole[1009:])
    with pytest.raises(ModelFileError, match=problem) as refusal:
        read_named_arrays(path)
    assert "pickle" not in str(refusal.value)
