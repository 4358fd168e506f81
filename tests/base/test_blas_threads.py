"""Products of the interpreter use one thread of numpy's library, and leave the number of threads as it was."""

from __future__ import annotations

import os
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


def test_a_number_that_is_set_meanwhile_stays(library: Library) -> None:
    before = library.get()
    try:
        library.set(2)
        with products(FEWEST):
            library.set(3)
        assert library.get() == 3
    finally:
        library.set(before)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system does not fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_child_process_has_the_number_of_before(library: Library) -> None:
    before = library.get()
    inside, done = threading.Event(), threading.Event()

    def stay() -> None:
        with products(FEWEST):
            inside.set()
            done.wait()

    thread = threading.Thread(target=stay)
    try:
        library.set(2)
        thread.start()
        inside.wait()
        child = os.fork()
        if not child:
            with products(FEWEST):
                one = library.get()
            os._exit(0 if (one, library.get()) == (1, 2) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        done.set()
        thread.join()
        library.set(before)
