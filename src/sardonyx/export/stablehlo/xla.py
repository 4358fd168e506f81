"""Execution of StableHLO text by XLA on the CPU, through jax: parsed, verified, refined to actual sizes, compiled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sardonyx.core.ir.types import TensorType, numpy_dtype
from sardonyx.errors import EvaluationError
from sardonyx.export.core_function import Traced
from sardonyx.export.stablehlo.text_writer import type_text


class Runner:
    """A text, compiled for each combination of sizes when first called.

    Args:
        text: The module.
        name: Name of the module.
        types: Types of the inputs.
        program: Names of inputs and outputs.
    """

    def __init__(self, text: str, name: str, types: Sequence[TensorType], program: Traced) -> None:
        self._text = text
        self._types = types[: len(program.inputs)]
        self._inputs, self._outputs = program.inputs, program.outputs
        self._results = [
            (value.type.dtype, type_text(value.type.dtype, value.type.shape or ()))
            for value in program.function.results
            if isinstance(value.type, TensorType)
        ]
        self._compiled: dict[tuple[tuple[int, ...], ...], Any] = {}

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """Answer feeds.

        Raises:
            EvaluationError: The text is not valid, or XLA refuses the sizes.
        """
        import jax
        import jax.extend

        arrays = [np.asarray(feeds[name]) for name in self._inputs]
        shapes = tuple(array.shape for array in arrays)
        try:
            with jax.enable_x64(True):
                if shapes not in self._compiled:
                    self._compiled[shapes] = self._compile(shapes)
                placed = [jax.device_put(array, jax.devices("cpu")[0]) for array in arrays]
                results = self._compiled[shapes].execute_sharded(placed).disassemble_into_single_device_arrays()
                answers = [np.asarray(result[0]) for result in results]
        except Exception as error:  # jax and XLA raise many unrelated classes
            text = " ".join(str(error).split())[:500]
            raise EvaluationError(f"XLA could not run the text: {type(error).__name__}: {text}") from error
        typed = zip(self._outputs, answers, self._results, strict=True)
        return {name: answer.astype(numpy_dtype(dtype), copy=False) for name, answer, (dtype, _) in typed}

    def _compile(self, shapes: tuple[tuple[int, ...], ...]) -> Any:
        """Return the executable for sizes: `main` calls the text's function with static types, which are refined."""
        import jax
        import jax.extend
        from jax._src.interpreters import mlir as interpreter
        from jax._src.lib import xla_client
        from jaxlib import _jax  # type: ignore[import-not-found,unused-ignore]
        from jaxlib.mlir import ir as mlir  # type: ignore[import-not-found,unused-ignore]

        text = self._text if self._is_static() else self._called(shapes)
        backend = jax.extend.backend.get_backend("cpu")
        with interpreter.make_ir_context():
            module = mlir.Module.parse(text)
            module.operation.verify()
            if not self._is_static():
                refined = _jax.mlir.refine_polymorphic_shapes(
                    interpreter.module_to_bytecode(module), enable_shape_assertions=True, validate_static_shapes=True
                )
                module = mlir.Module.parse(refined)
            devices = xla_client.DeviceList(tuple(backend.devices()[:1]))
            return backend.compile_and_load(module, devices, xla_client.CompileOptions())

    def _is_static(self) -> bool:
        inputs = [type_text(type_.dtype, type_.shape or ()) for type_ in self._types]
        return "?" not in "".join([*inputs, *(text for _, text in self._results)])

    def _called(self, shapes: tuple[tuple[int, ...], ...]) -> str:
        """Return the text with a function `main` of static types that calls the former one."""
        inner = self._text.replace("func.func public @main(", "func.func private @open(", 1).rstrip().removesuffix("}")
        names = [f"%x{i}" for i in range(len(shapes))]
        static = [type_text(type_.dtype, shape) for type_, shape in zip(self._types, shapes, strict=True)]
        opened = [type_text(type_.dtype, type_.shape or ()) for type_ in self._types]
        heads = ", ".join(f"{name}: {text}" for name, text in zip(names, static, strict=True))
        results = [text for _, text in self._results]
        lines = [f"  func.func public @main({heads}) -> ({', '.join(results)}) {{"]
        arguments = []
        for name, before, after in zip(names, static, opened, strict=True):
            argument = name
            if before != after:
                argument = f"{name}_open"
                lines.append(f"    {argument} = stablehlo.convert {name} : ({before}) -> {after}")
            arguments.append(argument)
        outputs = [f"%r#{i}" if len(results) > 1 else "%r" for i in range(len(results))]
        head = "%r" if len(results) == 1 else f"%r:{len(results)}"
        call = f"call @open({', '.join(arguments)}) : ({', '.join(opened)}) -> ({', '.join(results)})"
        lines += [f"    {head} = {call}", f"    return {', '.join(outputs)} : {', '.join(results)}", "  }", "}", ""]
        return inner + "\n".join(lines)
