"""Checks that a compiled program, and its copy from a program image, equal the interpreter."""

from __future__ import annotations

import numpy as np
from tests.core.programs import computed

from sardonyx.compiler.program import Program
from sardonyx.compiler.program_image.image import Image
from sardonyx.compiler.target.alignment import aligned
from sardonyx.core.eval.host_function import HostFunction, known_function
from sardonyx.core.ir.graph import Function
from sardonyx.core.transform.simplify import simplify


def assert_close(actual: list[np.ndarray], expected: list[np.ndarray], nearby: list[np.ndarray] | None = None) -> None:
    """Assert that results are equal up to rounding.

    Args:
        actual: Results of the compiled program.
        expected: Results of the interpreter.
        nearby: Results of the interpreter on inputs whose last digits are changed: a deviation of ten times this change
            is allowed.
    """
    assert len(actual) == len(expected)
    for i, (a, b) in enumerate(zip(actual, expected, strict=True)):
        assert a.shape == b.shape
        assert a.dtype == b.dtype
        if a.dtype.kind in "fV" and a.dtype.itemsize <= 8:
            a, b = a.astype(np.float64), b.astype(np.float64)
            coarse = 2e-2 if expected[i].dtype.itemsize <= 2 else 1e-5
            bound = coarse * max(np.abs(b[np.isfinite(b)]).max(initial=0), 1)
            if nearby is not None:
                with np.errstate(invalid="ignore"):
                    change = np.abs(nearby[i].astype(np.float64) - b)
                bound += 10 * change[np.isfinite(change)].max(initial=0)
            np.testing.assert_allclose(a, b, rtol=coarse, atol=bound)
        else:
            np.testing.assert_array_equal(a, b)


def check(function: Function, *calls: list[np.ndarray], native: bool = True) -> Program:
    """Assert that the compiled function equals the interpreter on the arguments of every call.

    Args:
        function: The function to simplify and compile.
        calls: The arguments of each call, which runs twice.
        native: Require that no step is left to the interpreter, and that a restored copy computes the same bits.
    """
    function = simplify(function)
    program = Program.compile(function)
    if native:
        assert not program.grouping.host
    for arrays in calls:
        for _ in range(2):
            assert_close(program.run(arrays), computed(function, arrays))
    if native:
        restored = restored_copy(program)
        for arrays in calls:
            for actual, expected in zip(restored.run(arrays), program.run(arrays), strict=True):
                np.testing.assert_array_equal(actual, expected)
    return program


def restored_copy(program: Program) -> Program:
    """Return the program restored from the image of a program that is itself restored from an image."""
    restored = Program.from_image(read_again(program.image()), hosts=known_host_function)
    return Program.from_image(read_again(restored.image()), hosts=known_host_function)


def known_host_function(
    domain: str, name: str, since: int, present: tuple[bool, ...] | None, module: str
) -> HostFunction:
    """Return the host function that this process has under a name."""
    function = known_function(domain, name, since, present)
    assert function is not None
    return function


def read_again(image: Image) -> Image:
    """Return an image read from the bytes of an image."""
    return Image.read(image.texts(), aligned(np.frombuffer(b"".join(image.weights()), np.uint8)))
