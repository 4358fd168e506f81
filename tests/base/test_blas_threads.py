"""Products of the interpreter use one thread of numpy's library, and leave the number of threads as it was."""

from __future__ import annotations

import threading

import pytest

from sardonyx.base.blas_threads import FEWEST, MOST, Library, openblas, products


@pytest.fixture
def library() -> Library:
    linked = openblas()
    if linked is None:
        pytest.skip("numpy is linked to another library than OpenBLAS")
    return linked


def test_medium_products_use_one_thread(library: Library) -> None:
    before = library.get()
    try:
        library.set(2)
        with products(MOST - 1):
            assert library.get() == 1
            with products(FEWEST):
                assert library.get() == 1
            assert library.get() == 1
        assert library.get() == 2
    finally:
        library.set(before)


def test_small_and_large_products_change_nothing(library: Library) -> None:
    before = library.get()
    try:
        library.set(2)
        for multiplications in (0, FEWEST - 1, MOST):
            with products(multiplications):
                assert library.get() == 2
    finally:
        library.set(before)


def test_overlapping_threads_and_errors_restore_the_number(library: Library) -> None:
    before = library.get()

    def enter_often() -> None:
        for _ in range(500):
            try:
                with products(FEWEST):
                    raise ArithmeticError
            except ArithmeticError:
                pass

    try:
        library.set(2)
        threads = [threading.Thread(target=enter_often) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert library.get() == 2
    finally:
        library.set(before)
