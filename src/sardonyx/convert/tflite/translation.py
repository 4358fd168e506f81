"""Translate the subgraphs of a TensorFlow Lite file to ONNX graphs, operator by operator.

Quantized tensors stay quantized in the ONNX model: an operator reads dequantized values and writes quantized ones;
QuantizeLinear and DequantizeLinear of a tensor are stored once. Layouts stay as in the file (channels last): a
convolution is between two transpositions, and the optimizer cancels neighbouring ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from sardonyx.convert.graph_builder import GraphBuilder, Names
from sardonyx.convert.imported import Call as Result
from sardonyx.convert.imported import Outcome
from sardonyx.convert.tflite.constants import constant_array, data_type
from sardonyx.convert.tflite.file import OperatorRecord, SubgraphRecord, TensorRecord, TfliteFile
from sardonyx.convert.tflite.hybrid import rounded
from sardonyx.convert.tflite.node_definition import attributes
from sardonyx.errors import InvalidModelError, UnsupportedError

OPSET = 20
"""The first version with Gelu."""

WIDE_OPSET = 21
"""The first version whose QuantizeLinear has 16 and 4 bits; ONNX Runtime 1.32 refuses some 8-bit models."""

_WIDE = frozenset(("INT16", "UINT16", "INT4", "UINT4"))

_COMPLEX_OPERATORS = frozenset(
    ("RFFT2D", "COMPLEX_ABS", "REAL", "IMAG", "RESHAPE", "FlexComplex", "FlexRFFT", "FlexFFT", "FlexIFFT")
)
"""Operators that know that complex numbers are pairs along a last axis."""

QUANTIZED = frozenset(("INT8", "UINT8", "INT16", "UINT16", "INT4", "UINT4", "INT32", "INT64"))
"""Element types that scales apply to."""

_NO_DATA = frozenset(("INT32", "INT64"))
"""Quantized types of biases alone: a computed tensor of this type is an integer."""

DEEPEST = 16
"""Nesting of subgraphs."""

MOST_OPERATORS = 1 << 17
"""Operators of a model, with those of subgraphs once for each use: uses of uses would multiply without a limit."""

MOST_ELEMENTS = 1 << 28
"""Elements of all variables and sparse constants of a model, whose zeros a file does not hold."""

Translator = Callable[["Call"], ir.Value | Sequence[ir.Value] | None]

OPERATORS: dict[str, Translator] = {}
"""Translation of each builtin operator and known custom operator, by name."""

ALIASES: dict[str, str] = {}
"""The builtin operator whose translation holds for an operator of TensorFlow, by the latter's name."""


def tflite(*names: str) -> Callable[[Translator], Translator]:
    """Register a function as the translation of operators."""

    def register(function: Translator) -> Translator:
        for name in names:
            OPERATORS[name] = function
        return function

    return register


class Translation:
    """Translates one file.

    Args:
        file: The file.

    Attributes:
        file: The file.
        names: Names in use.
        results: The result of each operator.
        domains: Versions of the domains in use besides that of ONNX.
        notes: Remarks for the report.
        handles: Keys of variables and tables by the value that stands for their handle; no node reads such a value.
        variables: Current values of variables by key.
        tables: Keys and values of tables by key.
        count: Operators that were translated, those of subgraphs once for each use.
        is_initialization: True while the first values of variables are assigned.
    """

    def __init__(self, file: TfliteFile) -> None:
        self.file = file
        self.names = Names()
        self.results: list[Result] = []
        self.domains: dict[str, int] = {}
        self.notes: dict[str, None] = {}
        self.handles: dict[ir.Value, str] = {}
        self.variables: dict[str, ir.Value] = {}
        self.tables: dict[str, tuple[npt.NDArray[Any], npt.NDArray[Any]]] = {}
        self.depth = 0
        self.count = 0
        self.is_initialization = False
        self._elements = 0

    def count_elements(self, tensor: TensorRecord) -> None:
        """Count the elements of a constant that the file does not hold one by one.

        Raises:
            InvalidModelError: All such constants together are too large.
        """
        self._elements += math.prod(tensor.shape)
        if self._elements > MOST_ELEMENTS:
            raise InvalidModelError(
                f"tensor '{tensor.name}' of {list(tensor.shape)}: expected at most {MOST_ELEMENTS} elements of"
                " variables and sparse constants",
                where=self.file.where,
            )

    def model(self) -> ir.Model:
        """Return the ONNX model.

        Raises:
            UnsupportedError: An operator or an element type has no translation; names operator and tensor.
            ModelFileError: A constant is malformed.
            InvalidModelError: A tensor is read before it is computed.
        """
        record = self.file.subgraphs[0]
        scope = Scope(self, record, self._named(record))
        for index in record.inputs:
            scope.add_input(index, open_sizes=True)
        scope.translate()
        outputs = scope.outputs(named=True)
        graph = ir.Graph(
            scope.graph_inputs,
            outputs,
            nodes=scope.nodes,
            initializers=list(scope.initializers.values()),
            opset_imports={"": self._opset(), **dict(sorted(self.domains.items()))},
            name=record.name,
        )
        return ir.Model(graph, ir_version=10, producer_name="sardonyx", doc_string=self.file.description or None)

    def operators_of_tensorflow(self) -> list[str]:
        """Return names of operators of TensorFlow in the file (`Flex…`), which the format lacks."""
        operators = (operator for subgraph in self.file.subgraphs for operator in subgraph.operators)
        return sorted({item.name for item in operators if item.is_custom and item.name.startswith("Flex")})

    def _opset(self) -> int:
        tensors = (tensor for subgraph in self.file.subgraphs for tensor in subgraph.tensors)
        return WIDE_OPSET if any(t.type in _WIDE and t.quantization for t in tensors) else OPSET

    def _named(self, record: SubgraphRecord) -> dict[int, str]:
        """Return names of the model's inputs and outputs: those of the signature, else of tensors."""
        names: dict[int, str] = {}
        for index in (*record.inputs, *record.outputs):
            if index not in names:
                name = self.file.signature.get(index) or record.tensors[index].name or f"tensor_{index}"
                names[index] = self.names.fresh(name)
        return names

    def body(self, number: int, subject: str) -> ir.Graph:
        """Return subgraph `number` as the body of a control operator, with the subgraph's inputs."""
        scope = self._inner(number, subject)
        for index in scope.record.inputs:
            scope.add_input(index)
        scope.translate()
        self.depth -= 1
        return scope.graph(scope.graph_inputs, scope.outputs(), scope.record.name)

    def inline(
        self,
        number: int,
        operands: Sequence[ir.Value | None],
        outer: Scope,
        subject: str,
        *,
        is_initialization: bool = False,
    ) -> list[ir.Value]:
        """Translate subgraph `number` into `outer`, with `operands` as the subgraph's inputs."""
        scope = self._inner(number, subject)
        self.is_initialization, outer_initialization = is_initialization, self.is_initialization
        if len(operands) != len(scope.record.inputs):
            raise InvalidModelError(
                f"{len(operands)} operands, expected {len(scope.record.inputs)}", where=f"{self.file.where}: {subject}"
            )
        scope.nodes, scope.initializers = outer.nodes, outer.initializers
        for index, operand in zip(scope.record.inputs, operands, strict=True):
            if operand is not None:
                scope.values[index] = operand
        scope.translate()
        self.depth -= 1
        self.is_initialization = outer_initialization
        return [scope.value(index) for index in scope.record.outputs]

    def _inner(self, number: int, subject: str) -> Scope:
        self.depth += 1
        if not 0 < number < len(self.file.subgraphs) or self.depth > DEEPEST:
            raise InvalidModelError(
                f"subgraph {number}, expected 1 to {len(self.file.subgraphs) - 1}, nested at most {DEEPEST} times",
                where=f"{self.file.where}: {subject}",
            )
        return Scope(self, self.file.subgraphs[number], {})


class Scope(GraphBuilder):
    """One subgraph during its translation to one graph.

    Attributes:
        translation: The file's translation.
        record: The subgraph.
        graph_inputs: Inputs of the graph.
        values: Values by tensor index.
    """

    def __init__(self, translation: Translation, record: SubgraphRecord, named: dict[int, str]) -> None:
        super().__init__(translation.names)
        self.translation = translation
        self.record = record
        self.graph_inputs: list[ir.Value] = []
        self.values: dict[int, ir.Value] = {}
        self._named = named
        self._real: dict[int, ir.Value] = {}

    def translate(self) -> None:
        """Translate all operators in order."""
        for number, operator in enumerate(self.record.operators):
            self.translation.count += 1
            if self.translation.count > MOST_OPERATORS:
                raise InvalidModelError(
                    f"more than {MOST_OPERATORS} operators, with those of subgraphs once for each use",
                    where=f"{self.translation.file.where}: {self.record.name}",
                )
            Call(self, operator, number).translate()

    def add_input(self, index: int, *, open_sizes: bool = False) -> None:
        """Make tensor `index` an input of the graph; open sizes are named if requested."""
        tensor = self.record.tensors[index]
        name = self._named.get(index) or self.names.fresh(tensor.name or f"tensor_{index}")
        sizes: list[int | str | None] = list(tensor.signature)
        for axis, size in enumerate(tensor.signature):
            if size < 0:
                sizes[axis] = ("batch" if axis == 0 else f"{name}_{axis}") if open_sizes else None
        if tensor.type.startswith("COMPLEX"):
            sizes.append(2)
        value = ir.Value(name=name, shape=ir.Shape(sizes), type=ir.TensorType(self.type(tensor)))
        self.graph_inputs.append(value)
        self.values[index] = value

    def handle(self, key: str) -> ir.Value:
        """Return a value that stands for the handle of a variable or table."""
        value = ir.Value(name=key)
        self.translation.handles[value] = key
        return value

    def type(self, tensor: TensorRecord) -> ir.DataType:
        """Return the ONNX element type of a tensor."""
        return data_type(tensor, self.translation.file.where)

    def outputs(self, *, named: bool = False) -> list[ir.Value]:
        """Return the graph's outputs; an input or constant that is an output passes an Identity."""
        outputs: list[ir.Value] = []
        for index in self.record.outputs:
            tensor = self.record.tensors[index]
            value = self.value(index)
            if value.producer() is None or value in outputs:
                value = self.node("Identity", value)
            if named and value.name != self._named[index]:
                repeats = index in self.record.inputs or any(value.name == self._named[index] for value in outputs)
                value.name = self.names.fresh("output") if repeats else self._named[index]
            sizes: list[int | None] = [size if size >= 0 else None for size in tensor.signature]
            if tensor.type.startswith("COMPLEX"):
                sizes.append(2)
            value.type = ir.TensorType(self.type(tensor))
            if named:
                value.shape = ir.Shape(sizes)
            outputs.append(value)
        return outputs

    def array(self, index: int) -> npt.NDArray[Any] | None:
        """Return the stored elements of a constant tensor, None for a computed one."""
        tensor = self.record.tensors[index]
        if tensor.data is None or (index in self.values and self.values[index].const_value is None):
            return None
        return self._stored(tensor)

    def _stored(self, tensor: TensorRecord) -> npt.NDArray[Any]:
        """Return the elements that the file stores."""
        if tensor.sparsity is not None:
            self.translation.count_elements(tensor)
        return constant_array(tensor, self.translation.file.where)

    def value(self, index: int) -> ir.Value:
        """Return the value of a tensor, as stored."""
        if index not in self.values:
            tensor = self.record.tensors[index]
            if tensor.data is None and tensor.is_variable:
                self.translation.count_elements(tensor)
                array: Any = np.zeros(tensor.shape, self.type(tensor).numpy())
            elif tensor.data is None and 0 in tensor.shape:
                array = np.zeros(tensor.shape, self.type(tensor).numpy())
            elif tensor.data is None:
                raise InvalidModelError(
                    f"tensor '{tensor.name}' is read before it is computed", where=self.translation.file.where
                )
            else:
                array = self._stored(tensor)
            self.values[index] = self.constant(array, name=tensor.name or f"tensor_{index}")
        return self.values[index]

    def is_quantized(self, index: int) -> bool:
        """Return True if a tensor stores integers that stand for real numbers."""
        tensor = self.record.tensors[index]
        if tensor.quantization is None or tensor.type not in QUANTIZED:
            return False
        return tensor.type not in _NO_DATA or (tensor.data is not None and len(tensor.shape) <= 1)

    def real(self, index: int) -> ir.Value:
        """Return the value of a tensor, dequantized."""
        if not self.is_quantized(index):
            return self.value(index)
        if index not in self._real:
            self._real[index] = self._dequantized(index)
        return self._real[index]

    def _dequantized(self, index: int) -> ir.Value:
        tensor = self.record.tensors[index]
        scales = tensor.quantization
        assert scales is not None
        if tensor.type == "INT64":
            array = self.array(index)
            assert array is not None
            return self.constant((array * scales.scale.astype(np.float64)).astype(np.float32))
        scale, zero, axis = self._scales(index)
        return self.node("DequantizeLinear", self.value(index), scale, zero, axis=axis)

    def dequantized(self, stored: ir.Value, index: int, order: Sequence[int]) -> ir.Value:
        """Return `stored`, which is tensor `index` with its axes in `order`, dequantized."""
        scale, zero, axis = self._scales(index)
        return self.node(
            "DequantizeLinear", stored, scale, zero, axis=None if axis is None else list(order).index(axis)
        )

    def _scales(self, index: int) -> tuple[ir.Value, ir.Value | None, int | None]:
        tensor = self.record.tensors[index]
        scales = tensor.quantization
        assert scales is not None
        if len(scales.scale) == 1:
            scale, zero, axis = scales.scale.reshape(()), scales.zero_point.reshape(()), None
        else:
            scale, zero, axis = scales.scale, scales.zero_point, scales.axis
        stored = self.type(tensor).numpy()
        if tensor.type in _NO_DATA and not zero.any():
            return self.constant(scale), None, axis
        if not np.array_equal(zero.astype(stored).astype(np.int64), zero):
            problem = f"tensor '{tensor.name}': zero point {zero.tolist()} is out of the range of {tensor.type}"
            raise InvalidModelError(problem, where=self.translation.file.where)
        return self.constant(scale), self.constant(zero.astype(stored)), axis

    def define(self, index: int, value: ir.Value) -> None:
        """Make a real value the value of tensor `index`: quantized tensors are quantized."""
        if self.is_quantized(index):
            scale, zero, axis = self._scales(index)
            value = self.node("QuantizeLinear", value, scale, zero, axis=axis)
        self.define_stored(index, value)

    def define_stored(self, index: int, value: ir.Value) -> None:
        """Make a value the stored value of tensor `index`, and name it by the tensor."""
        tensor = self.record.tensors[index]
        self.values[index] = value
        self._real.pop(index, None)
        if value.producer() is None or value.name in self._named.values():
            return
        if index in self._named and index not in self.record.inputs:
            value.name = self._named[index]
        elif tensor.name:
            value.name = self.names.fresh(tensor.name)


class Call:
    """One operator during its translation.

    Attributes:
        scope: The subgraph.
        record: The operator.
        name: Name of the builtin or custom operator; of an operator of TensorFlow the builtin one that is equal.
        options: Record of options.
        where: Name of the operator for errors.
    """

    def __init__(self, scope: Scope, record: OperatorRecord, number: int) -> None:
        self.scope = scope
        self.record = record
        self.name = ALIASES.get(record.name, record.name) if record.is_custom else record.name
        self.number = number
        output = scope.record.tensors[record.outputs[0]].name if record.outputs else ""
        self.where = f"{scope.translation.file.where}: {record.name} '{output or number}'"
        self.options = record.options
        if record.is_custom and record.name.startswith("Flex") and self.name in OPERATORS:
            self.options = attributes(record.custom_options, self.where)

    def translate(self) -> None:
        """Add the nodes of the operator, and define its outputs."""
        translator = OPERATORS.get(self.name)
        outcome: Outcome = "converted"
        results: ir.Value | Sequence[ir.Value] | None
        indices = [index for index in (*self.record.inputs, *self.record.outputs) if index >= 0]
        if self.name not in _COMPLEX_OPERATORS and any(
            self.scope.record.tensors[index].type.startswith("COMPLEX") for index in indices
        ):
            raise self.unsupported("the operator has no translation for complex numbers")
        if translator is not None:
            try:
                results = translator(self)
            except (IndexError, ValueError, TypeError, ArithmeticError) as error:
                raise self.invalid(f"ranks, sizes or options contradict the operator's rules: {error}") from error
        elif self.record.is_custom:
            results, outcome = self._opaque(), "opaque"
        else:
            raise self.unsupported("the operator has no translation")
        if results is not None:
            values = [results] if isinstance(results, ir.Value) else results
            for index, value in zip(self.record.outputs, values, strict=False):
                self.scope.define(index, value)
        self.scope.translation.results.append(Result(self.record.name, outcome, self.where))

    def _opaque(self) -> list[ir.Value]:
        """Return the outputs of a node of domain ``tflite``; sessions run it once the operator is registered."""
        translation = self.scope.translation
        translation.domains["tflite"] = 1
        translation.notes[
            f"{self.where}: custom operator left as a node of domain 'tflite'; register it with @sardonyx.operator"
        ] = None
        options: dict[str, Any] = {"custom_options": self.record.custom_options} if self.record.custom_options else {}
        count = len(self.record.outputs)
        return self.nodes(self.record.name, count, *self.reals(), domain="tflite", **options)

    def within(self, size: int, most: int, subject: str) -> int:
        """Return a size of the file that is the size of a constant of the model.

        Raises:
            UnsupportedError: The size is open or above `most`.
        """
        if not 0 <= size <= most:
            raise self.unsupported(f"{subject} is {'open' if size < 0 else size}, expected at most {most}")
        return size

    def unsupported(self, problem: str) -> UnsupportedError:
        """Return the error of an operator that has no translation."""
        return UnsupportedError(problem, where=self.where)

    def invalid(self, problem: str) -> InvalidModelError:
        """Return the error of an operator that breaks the schema's rules."""
        return InvalidModelError(problem, where=self.where)

    def option(self, name: str, default: Any = 0) -> Any:
        """Return a field of the options, `default` if the file has no options."""
        return default if self.options is None else getattr(self.options, name, default)

    def index(self, number: int) -> int:
        """Return the tensor index of input `number`, -1 if absent."""
        return self.record.inputs[number] if number < len(self.record.inputs) else -1

    def has(self, number: int) -> bool:
        """Return True if input `number` is present."""
        return self.index(number) >= 0

    def input(self, number: int) -> ir.Value:
        """Return input `number`, dequantized.

        Raises:
            InvalidModelError: The input is absent.
        """
        return self.scope.real(self._present(number))

    def stored(self, number: int) -> ir.Value:
        """Return input `number` as stored."""
        return self.scope.value(self._present(number))

    def optional(self, number: int) -> ir.Value | None:
        """Return input `number` dequantized, None if absent."""
        return self.input(number) if self.has(number) else None

    def reals(self) -> list[ir.Value | None]:
        """Return all inputs dequantized."""
        return [self.optional(number) for number in range(len(self.record.inputs))]

    def _present(self, number: int) -> int:
        index = self.index(number)
        if index < 0:
            raise self.invalid(f"input {number} is absent, got {len(self.record.inputs)} inputs")
        return index

    def tensor(self, number: int) -> TensorRecord:
        """Return the record of input `number`."""
        return self.scope.record.tensors[self._present(number)]

    def output(self, number: int = 0) -> TensorRecord:
        """Return the record of output `number`."""
        if number >= len(self.record.outputs):
            raise self.invalid(f"output {number} is absent, got {len(self.record.outputs)} outputs")
        return self.scope.record.tensors[self.record.outputs[number]]

    def output_type(self, number: int = 0) -> ir.DataType:
        """Return the ONNX element type of output `number`."""
        return self.scope.type(self.output(number))

    def rank(self, number: int) -> int:
        """Return the rank of input `number`."""
        return len(self.tensor(number).shape)

    def sizes(self, number: int) -> tuple[int, ...]:
        """Return the sizes of input `number`, -1 where open; the file's open sizes reach computed tensors."""
        return self.tensor(number).signature

    def array(self, number: int) -> npt.NDArray[Any] | None:
        """Return the elements of input `number` if it is a constant."""
        return self.scope.array(self._present(number))

    def integers(self, number: int, subject: str) -> list[int]:
        """Return a constant input as integers.

        Raises:
            UnsupportedError: The input is computed.
        """
        array = self.array(number)
        if array is None:
            raise self.unsupported(f"{subject} is computed, expected a constant")
        return [int(n) for n in array.reshape(-1)]

    def int64(self, number: int) -> ir.Value:
        """Return an integer input as int64."""
        array = self.array(number)
        if array is not None:
            return self.scope.constant(array.astype(np.int64))
        if self.tensor(number).type == "INT64":
            return self.stored(number)
        return self.node("Cast", self.stored(number), to=ir.DataType.INT64)

    def node(self, operator: str, *inputs: ir.Value | None, **attributes: Any) -> ir.Value:
        """Add a node with one output; see :meth:`Scope.node`."""
        return self.scope.node(operator, *inputs, **attributes)

    def nodes(self, operator: str, count: int, *inputs: ir.Value | None, **attributes: Any) -> list[ir.Value]:
        """Add a node with `count` outputs; see :meth:`Scope.nodes_of`."""
        return self.scope.nodes_of(operator, count, *inputs, **attributes)

    def constant(self, array: Any, dtype: Any = None) -> ir.Value:
        """Return an initializer."""
        return self.scope.constant(array, dtype)

    def like(self, number: float, value: int) -> ir.Value:
        """Return a scalar constant of the real type of input `value`."""
        index = self._present(value)
        tensor = self.scope.record.tensors[index]
        return self.constant(number, np.float32 if self.scope.is_quantized(index) else self.scope.type(tensor).numpy())

    def constant_named(self, array: Any, name: str) -> ir.Value:
        """Return an initializer with a name of its own."""
        return self.scope.constant(array, name=name or "weights")

    def is_hybrid(self, x: int, w: int) -> bool:
        """Return True if float input `x` meets 8- or 4-bit weights `w`: the source rounds `x` to 8 bits."""
        return (
            self.tensor(x).type == "FLOAT32"
            and self.tensor(w).type in ("INT8", "UINT8", "INT4")
            and self.scope.is_quantized(self._present(w))
        )

    def hybrid_input(self, x: int, w: int) -> ir.Value:
        """Return image `x`, rounded to 8 bits per image if the weights have 8 bits."""
        value = self.input(x)
        if not self.is_hybrid(x, w):
            return value
        scales = self.tensor(w).quantization
        assert scales is not None
        asymmetric = len(scales.scale) > 1 or self.tensor(w).shape[0 if self.name == "CONV_2D" else 3] == 1
        return rounded(self.scope, value, range(1, self.rank(x)), asymmetric=asymmetric)

    def hybrid_rows(self, value: ir.Value, x: int, w: int) -> ir.Value:
        """Return `value`, derived from input `x`, rounded to 8 bits per row if the weights have 8 bits."""
        if not self.is_hybrid(x, w):
            return value
        return rounded(self.scope, value, [-1], asymmetric=bool(self.option("asymmetric_quantize_inputs")))

    def cast(self, value: ir.Value, to: ir.DataType) -> ir.Value:
        """Return a value converted to another element type."""
        return self.node("Cast", value, to=to)

    def activated(self, value: ir.Value) -> ir.Value:
        """Return a value with the fused activation of the options applied."""
        return activation(self, value, int(self.option("fused_activation_function")))


def activation(call: Call, value: ir.Value, number: int) -> ir.Value:
    """Apply activation `number` of the schema."""
    match number:
        case 0:
            return value
        case 1:
            result = call.node("Relu", value)
        case 2:
            result = call.node("Clip", value, call.constant(-1, np.float32), call.constant(1, np.float32))
        case 3:
            result = call.node("Clip", value, call.constant(0, np.float32), call.constant(6, np.float32))
        case 4:
            result = call.node("Tanh", value)
        case _:
            raise call.unsupported(f"fused activation {number}, expected 0 to 4")
    assert isinstance(result, ir.Value)
    return result
