"""One kernel over whole arrays, element by element: what the tests of emitted code run it in."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence

import numpy as np

from sardonyx.compiler.codegen import load_store
from sardonyx.compiler.codegen.kernel_builder import Index, Kernel
from sardonyx.compiler.llvm.ir_builder import Emitter
from sardonyx.compiler.llvm.object_code import LoadedCode, compiled, module_text
from sardonyx.compiler.target.description import NAMED, Target, host
from sardonyx.core.ir.types import DType, numpy_dtype

Body = Callable[[Emitter, list[str], int, "str | None", str], str]
"""Of the emitter, the operands, the lanes, the mask and the pointer of the status: the result."""

HERE = {
    "sse": ["sse"],
    "avx2": ["avx2", "sse"],
    "avx512": ["avx512", "avx2", "sse"],
    "avx512vnni": ["avx512vnni", "avx512", "avx2", "sse"],
    "avx512bf16": ["avx512bf16", "avx512vnni", "avx512", "avx2", "sse"],
    "avx512amx": ["avx512amx", "avx512bf16", "avx512vnni", "avx512", "avx2", "sse"],
    "neon": ["neon"],
}
TARGETS = HERE[host().name]
"""The targets whose code this machine runs, the widest first."""


class Elementwise:
    """A compiled loop over elements: whole vectors, then a masked one.

    Args:
        body: Emits the result of a vector of operands.
        operands: Their element types.
        result: That of the result.
        target: A name of :data:`NAMED`.
        lanes: How many elements at a time; what a vector of the first operand holds if not given.
    """

    def __init__(
        self, body: Body, operands: Sequence[DType], result: DType, target: str = TARGETS[0], lanes: int | None = None
    ) -> None:
        self.result, self.operands = result, tuple(operands)
        chosen = NAMED[target] if target != host().name else host()
        kernel = self._written(body, chosen, lanes or chosen.lanes(numpy_dtype(self.operands[0]).itemsize * 8))
        self.text = module_text(chosen, [kernel.definition("f")], kernel.emitter.declarations)
        self._code = LoadedCode([compiled(self.text, chosen)], chosen)
        self._call = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p, *[ctypes.c_int64] * 3])(self._code.address("f"))

    def _written(self, body: Body, target: Target, lanes: int) -> Kernel:
        kernel = Kernel(target)
        e = kernel.emitter
        buffers = [kernel.buffer() for _ in self.operands]
        result, status = kernel.buffer(), kernel.buffer()

        def at(index: str, lanes: int, mask: str | None) -> None:
            position = Index(index, 1)
            arguments = [
                load_store.load(e, d, b, position, lanes, mask) for d, b in zip(self.operands, buffers, strict=True)
            ]
            load_store.store(e, self.result, body(e, arguments, lanes, mask, status), result, position, lanes, mask)

        whole = e.sub("%last", e.rem(e.sub("%last", "%first"), lanes))
        with e.loop("%first", whole, lanes) as i:
            at(i, lanes, None)
        if lanes > 1:
            left = e.sub("%last", whole)
            with e.when(e.let(f"icmp sgt i64 {left}, 0")):
                at(str(whole), lanes, e.lanes_below(left, lanes))
        return kernel

    def __call__(self, *arrays: np.ndarray) -> np.ndarray:
        """The results; ``self.status`` is what the code wrote there."""
        inputs = [np.ascontiguousarray(a, numpy_dtype(d)) for a, d in zip(arrays, self.operands, strict=True)]
        result, status = np.empty(inputs[0].shape, numpy_dtype(self.result)), np.zeros(1, np.int32)
        buffers = [*inputs, result, status]
        arguments = (ctypes.c_int64 * len(buffers))(*(a.ctypes.data for a in buffers))
        self._call(ctypes.addressof(arguments), 0, inputs[0].size, 0)
        self.status = int(status[0])
        return result
