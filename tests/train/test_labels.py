"""Labels of stored data, and weights of classes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sardonyx import train
from sardonyx.errors import OptionError
from sardonyx.train.data.labels import labels_of


def test_balanced_weights_are_those_of_scikit_learn() -> None:
    labels = np.array([0, 0, 0, 1, 2, 2, -100])
    np.testing.assert_allclose(train.balanced_weights(labels), [6 / 9, 2, 1])
    np.testing.assert_allclose(train.balanced_weights(labels, 4, ignore=0), [1, 1.5, 0.75, 1])


@pytest.mark.parametrize("labels", [[0.5, 1.0], [-100], [], [7]])
def test_labels_without_frequencies_are_refused(labels: list[float]) -> None:
    with pytest.raises(OptionError):
        train.balanced_weights(np.asarray(labels), 3)


def test_labels_of_files_and_folders(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros((2, 3)), target=np.array([1, 0]))
    np.testing.assert_array_equal(labels_of(tmp_path / "a.npz"), [1, 0])
    for name in ("dogs", "cats"):
        (tmp_path / "c" / name).mkdir(parents=True)
        np.save(tmp_path / "c" / name / "1.npy", np.zeros(3, np.float32))
    np.testing.assert_array_equal(labels_of(tmp_path / "c"), [0, 1])
    np.savez(tmp_path / "b.npz", x=np.zeros((2, 3)))
    with pytest.raises(OptionError, match="no labels"):
        labels_of(tmp_path / "b.npz")


def test_labels_have_the_name_that_was_asked_for(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", labels=np.arange(3))
    np.testing.assert_array_equal(labels_of(tmp_path / "data.npz"), np.arange(3))
    with pytest.raises(OptionError, match="the data have no labels"):
        labels_of(tmp_path / "data.npz", "grades")


def test_a_number_of_a_row_is_no_label() -> None:
    with pytest.raises(OptionError, match="expected labels below"):
        train.balanced_weights(np.array([1, 1 << 40]))
