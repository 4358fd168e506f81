"""Kernels compiled and called on numpy arrays, for tests."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping

import numpy as np

from sardonyx.compiler.codegen.kernel_builder import Kernel
from sardonyx.compiler.llvm.object_code import LoadedCode, compiled, module_text
from sardonyx.core.dim import Size, evaluate

_SIGNATURE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)


class CompiledKernel:
    """A finished kernel as a function.

    Args:
        kernel: The kernel.
        items: The number of its work items.
    """

    def __init__(self, kernel: Kernel, items: Size) -> None:
        definition = kernel.definition("kernel")
        self.text = module_text(kernel.target, [definition], kernel.emitter.declarations)
        self.sizes = kernel.sizes
        self.items = items
        self._code = LoadedCode([compiled(self.text, kernel.target)], kernel.target)
        self._function = _SIGNATURE(self._code.address("kernel"))

    def arguments(self, buffers: list[np.ndarray], sizes: Mapping[str, int]) -> np.ndarray:
        """Return the argument slots of a call."""
        numbers = [evaluate(size, sizes) for size in self.sizes]
        return np.array([*(buffer.ctypes.data for buffer in buffers), *numbers], np.int64)

    def __call__(self, *buffers: np.ndarray, parts: int = 1, **sizes: int) -> None:
        """Execute all work items, in `parts` ranges, the last range first."""
        arguments = self.arguments(list(buffers), sizes)
        items = evaluate(self.items, sizes)
        edges = [items * part // parts for part in range(parts + 1)]
        for worker in reversed(range(parts)):
            self._function(arguments.ctypes.data, edges[worker], edges[worker + 1], worker)
