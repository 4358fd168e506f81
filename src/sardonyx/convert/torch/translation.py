"""Exported programs as Core functions, call by call, and Core functions as models.

Weights are inputs of the Core function and initializers of the model that refer to torch's memory. Values are named
after their modules: ``layer1.0.conv.conv2d``. The model declares which weights are parameters of the module that have
gradients, and which are buffers or frozen, for a later training.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from onnx_ir.tensor_adapters import TorchTensor
from torch._subclasses.fake_tensor import FakeTensor

from sardonyx.convert.imported import NOT_NEEDED, Call, Imported, Outcome
from sardonyx.convert.torch.arrays import as_array
from sardonyx.convert.torch.capture import Program, Runner
from sardonyx.convert.torch.capture_context import quiet, unchanged_transforms
from sardonyx.convert.torch.custom_operators import custom_translation, is_opaque
from sardonyx.convert.torch.decomposition import name_of
from sardonyx.convert.torch.exported_programs import input_names
from sardonyx.convert.torch.guards import ASSERTIONS, Guard, guard_of, guarded, name_guards
from sardonyx.convert.torch.operators.promotion import core_dtype, tensor_of, torch_dtype
from sardonyx.convert.torch.operators.registry import IGNORED, Site, site, translation_of
from sardonyx.convert.torch.operators.sizes import learn, symbols
from sardonyx.convert.torch.operators.spectral import REAL, complex_of, is_complex, pairs
from sardonyx.convert.torch.quantized_modules import CODE_BITS, is_quantized
from sardonyx.convert.torch.size_guards import SizeGuard, needed_ties, size_guards, sizes_of, sizes_outside
from sardonyx.convert.torch.sources import line_of, module_of, place_of
from sardonyx.core.dim import Dim, Size, as_dim
from sardonyx.core.eval.tensor import Tensor, constant
from sardonyx.core.eval.trace import trace
from sardonyx.core.export.export import to_model
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Value
from sardonyx.core.ir.types import TensorType
from sardonyx.errors import ConversionError, EvaluationError, SardonyxError
from sardonyx.model.declared_weights import declare_weights
from sardonyx.ops.nodes import written_opset

OPSET = 20
"""The version of ``ai.onnx`` that is written: the first with Gelu, GridSample in 3 dimensions and DFT over any axis."""

BFLOAT16_OPSET = 22
"""The version written for programs with bfloat16, the first whose convolutions accept the type."""

MOST_REFUSED = 3
"""Number of inputs outside the guards on which the model has to fail in the proof."""

MOST_KNOWN = 64
"""Integer buffers of at most this many elements are constants, whose values decide shapes."""


def read(program: Program) -> Imported:
    """Return a program as a model of our own translation.

    Raises:
        ConversionError: An operator has no translation; names all of them with the source lines.
    """
    while True:
        captured, runner = program.captured, program.runner
        if _lacks_values(captured.exported):
            if program.lower():
                continue
            raise ConversionError(
                "torch.export captures a tensor of the program without its values",
                remedy="Leave gradients and transforms out of the module.",
            )
        try:
            with quiet(), unchanged_transforms():
                exported = program.decomposed(captured.exported)
        except SardonyxError:
            raise
        except Exception as error:  # torch's decompositions raise exceptions of unrelated classes.
            if program.lower():
                continue
            problem = f"torch cannot decompose the program: {type(error).__name__}: {str(error)[:200]}"
            raise ConversionError(problem, remedy="Leave gradients and transforms out of the module.") from error
        translation = _Translation(exported, program)
        try:
            model = translation.model()
            break
        except ConversionError:
            # An axis that a translation needs as a number, e.g. the channels of a convolution.
            if not program.narrow():
                raise
    names = {str(value.name) for value in model.graph.inputs}
    feeds = {
        name: as_array(leaf)
        for name, leaf in zip(runner.names, runner.leaves, strict=True)
        if name in names and isinstance(leaf, torch.Tensor)
    }
    free = {name: str(label) for name, label in translation.symbols.items() if name not in program.ties}
    sizes = {free[name]: size for name, size in captured.sizes.items() if name in free}
    _require_named(program, sizes)
    guards = size_guards(captured.exported, runner.names)
    examples = program.example_sizes(captured.exported) or {}
    outside = [
        {free[name]: size for name, size in one.items() if name in free}
        for one in (sizes_outside(guards, examples) if examples.keys() <= translation.symbols.keys() else ())
        if all(one[name] == examples[name] for name in program.ties)
    ]
    notes = [*program.notes]
    if program.size_guards:
        conditions = "; ".join(guard.text(translation.symbols) for guard in program.size_guards)
        notes.append(f"the model refuses sizes at which the program takes other branches; admitted are: {conditions}")
    if program.ties:
        tied = ", ".join(dict.fromkeys(free[name] for name in program.ties.values() if name in free))
        notes.append(f"sizes of inputs that are equal in the examples are one size of the model: {tied}")
    if captured.reason:
        opened = "no sizes are" if captured.openness == "none" else "only first sizes are"
        notes.append(f"{opened} open: {captured.reason}")
    if any(isinstance(leaf, torch.Tensor) and leaf.is_complex() for leaf in runner.leaves) or translation.has_pairs:
        notes.append("complex inputs and outputs are pairs of real numbers on a last axis")
    program.differing = ()
    program.was_read = True
    run = _WithinSizes(program) if program.size_guards else runner
    opaque = ", ".join(dict.fromkeys(call.operator for call in translation.calls if call.outcome == "opaque"))
    if opaque:
        notes.append(f"operators without a definition are opaque nodes, which few engines run: {opaque}")
    return Imported(
        model,
        None if opaque else run,
        reason=f"the model has opaque operators: {opaque}" if opaque else "",
        sizes=sizes,
        examples=(feeds,),
        calls=translation.calls,
        inner=lambda feeds: _inner_values(exported, runner, feeds),
        notes=tuple(notes),
        refused=(lambda: run.refused) if isinstance(run, _WithinSizes) else None,
        outside=outside,
        differs=program.differ,
        first=runner.first(program),
        rounded=runner.rounded(_coarse_weights(exported)),
        code_bits=CODE_BITS if is_quantized(program.subject) else 0,
    )


def _require_named(program: Program, sizes: Mapping[str, Any]) -> None:
    """Refuse a program that fixes a size which the caller opened.

    Raises:
        ConversionError: A named size is a number in the program.
    """
    if isinstance(program.options.dynamic, Mapping):
        names = dict.fromkeys(name for axes in program.options.dynamic.values() for name in axes.values())
        if fixed := [name for name in names if name not in sizes]:
            problem = f"the program fixes the size {', '.join(fixed)} that `dynamic` opens"
            raise ConversionError(problem, remedy="Leave the size out of `dynamic`.")


def read_narrower(program: Program) -> Imported:
    """Return a program that differs at other sizes as a model that refuses these, or that has fewer open sizes.

    torch captures branches on sizes and some operators for the sizes of the examples alone. Sizes that are equal in the
    examples, the batch of ids and that of their mask, become one if the model differs only where they are not. Sizes
    that the caller named remain as named.

    Raises:
        ConversionError: No size is open, or torch refuses the program.
    """
    has_names = isinstance(program.options.dynamic, Mapping)
    may_tie = program.was_read and program.exported is None and not program.ties and not program.size_guards
    if may_tie and not has_names:
        exported = program.captured.exported
        examples = program.example_sizes(exported) or {}
        program.ties = needed_ties(exported, program.runner.names, examples, program.differing)
        if program.ties:
            return read(program)
    if program.was_read and not program.size_guards and program.exported is None:
        program.size_guards = _needed_guards(program)
        if program.size_guards:
            return read(program)
    if not program.was_read or not program.narrow():
        raise ConversionError(f"{NOT_NEEDED}no other choice of open sizes leads to another model")
    program.notes.append("fewer sizes are open: with all of them the model was not proved")
    return read(program)


def _needed_guards(program: Program) -> list[SizeGuard]:
    """Return the conditions on sizes without which a model differs from its source; none if they are not the cause."""
    exported, names = program.captured.exported, program.runner.names
    known = size_guards(exported, names)
    violated: list[list[SizeGuard]] = []
    for feeds in program.differing:
        sizes = sizes_of(exported, names, feeds)
        violated.append([guard for guard in known if sizes is not None and not guard.holds(sizes)])
    needed: list[SizeGuard] = []
    for guards in sorted(violated, key=len):
        if not any(guard in needed for guard in guards):
            needed += [guard for guard in guards if guard.is_branch] or guards
    examples = program.example_sizes(exported)
    if not all(violated) or examples is None or not all(guard.holds(examples) for guard in needed):
        return []
    return needed


class _WithinSizes:
    """The source in PyTorch, for sizes that the guards of its model admit."""

    def __init__(self, program: Program) -> None:
        self._runner = program.runner
        self._exported = program.captured.exported
        self._guards = program.size_guards
        self.refused: list[Mapping[str, Any]] = []

    def __call__(self, feeds: Mapping[str, Any]) -> Mapping[str, Any]:
        sizes = sizes_of(self._exported, self._runner.names, feeds) or {}
        failed = next((guard.label for guard in self._guards if not guard.holds(sizes)), None)
        if failed is not None:
            if len(self.refused) < MOST_REFUSED:
                self.refused.append(dict(feeds))
            raise EvaluationError(f"the sizes take other branches: {failed}", where="the source")
        return self._runner(feeds)


@dataclass(frozen=True)
class _Input:
    """An input of the Core function, as the source of a placeholder; all other sources are constants."""

    index: int


class _Translation:
    """The translation of one program."""

    def __init__(self, exported: Any, program: Program) -> None:
        options = program.options
        self._size_guards = program.size_guards
        self._ties = program.ties
        self._exported = exported
        self._opaque = options.opaque
        self._labels = options.dynamic if isinstance(options.dynamic, Mapping) else {}
        self._runner = program.runner
        self.calls: list[Call] = []
        self.symbols: dict[str, Size] = {}
        self._types: list[TensorType] = []
        self._names: list[str] = []
        self._weights: dict[int, ir.TensorProtocol] = {}
        self._parameters: set[str] = set()
        self._frozen: set[str] = set()
        self._pairs: set[int] = set()
        self._guards: list[Guard] = []
        self._guard_lines = program.guard_lines
        self._placeholders: list[tuple[Any, Any]] = []
        self._opset = BFLOAT16_OPSET if _uses_bfloat16(exported) else OPSET

    def model(self) -> ir.Model:
        """Return the model."""
        self._declare_inputs()
        with written_opset(self._opset):
            token = symbols.set(dict(self.symbols))
            try:
                function = trace("program", self._body, self._types)
            finally:
                symbols.reset(token)
            model = to_model(
                function,
                input_names=self._names,
                output_names=self._runner.outputs,
                weights=self._weights,
                opset=self._opset,
            )
        for node in model.graph.all_nodes():
            if node.outputs and "." in str(node.outputs[0].name):
                node.name = node.outputs[0].name
        name_guards(model.graph.all_nodes())
        # A module without gradients was prepared for inference: all of its parameters may be trained.
        parameters = self._parameters or self._frozen
        names = {tensor.name or "" for tensor in self._weights.values()}
        # Numbers that operators are written with are tensors of the file as well.
        initializers = (
            value for graph in (model.graph, *model.graph.subgraphs()) for value in graph.initializers.values()
        )
        names |= {
            str(value.name) for value in initializers if value.dtype is not None and value.dtype.is_floating_point()
        }
        declare_weights(model, parameters, names - parameters)
        return model

    @property
    def has_pairs(self) -> bool:
        """True if an output holds complex numbers."""
        specs = self._exported.graph_signature.output_specs
        nodes = next(node for node in self._exported.graph.nodes if node.op == "output").args[0]
        kind = torch.export.graph_signature.OutputKind.USER_OUTPUT
        return any(
            spec.kind == kind
            and isinstance(node, torch.fx.Node)
            and torch.is_tensor(value := node.meta.get("val"))
            and value.is_complex()
            for node, spec in zip(nodes, specs, strict=True)
        )

    def _declare_inputs(self) -> None:
        """Give every placeholder a type, a constant or a weight."""
        kinds = torch.export.graph_signature
        exported = self._exported
        specs = {spec.arg.name: spec for spec in exported.graph_signature.input_specs}
        shared: dict[Any, _Input] = {}
        user = input_names(exported)
        for node in exported.graph.nodes:
            if node.op != "placeholder":
                continue
            spec = specs[node.name]
            if spec.kind == kinds.InputKind.USER_INPUT:
                self._declare_user_input(node, user)
                continue
            stored = _stored(exported, spec)
            if not isinstance(stored, torch.Tensor):
                self._placeholders.append((node, stored))
                continue
            tensor = stored.detach()
            if tensor.is_complex() or (tensor.numel() <= MOST_KNOWN and not tensor.is_floating_point()):
                known = tensor.cpu().resolve_conj().numpy()
                self._placeholders.append((node, constant(np.array(known), core_dtype(tensor.dtype))))
                continue
            key = (tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype)
            if not tensor.numel() or key not in shared:
                shared[key] = self._add(TensorType(core_dtype(tensor.dtype), tuple(tensor.shape)), str(spec.target))
                name = str(spec.target)
                self._weights[shared[key].index] = TorchTensor(tensor.contiguous(), name=name)
                if spec.kind == kinds.InputKind.PARAMETER:
                    (self._parameters if stored.requires_grad else self._frozen).add(name)
            self._placeholders.append((node, shared[key]))

    def _declare_user_input(self, node: Any, user: Sequence[str]) -> None:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor):
            shape = tuple(self._size(size, node.name, axis) for axis, size in enumerate(value.shape))
            dtype = core_dtype(value.dtype)
            if t.kind(dtype) == "complex":
                self._pairs.add(len(self._types))
                self._placeholders.append((node, self._add(TensorType(REAL[dtype], (*shape, 2)), node.name)))
                return
            self._placeholders.append((node, self._add(TensorType(dtype, shape), node.name)))
        elif isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            dtype = t.INT64 if isinstance(value, torch.SymInt) else t.FLOAT
            self._placeholders.append((node, self._add(TensorType(dtype, ()), node.name)))
        else:
            self._placeholders.append((node, value))

    def _add(self, type: TensorType, name: str) -> _Input:
        self._types.append(type)
        self._names.append(name)
        return _Input(len(self._types) - 1)

    def _size(self, size: Any, name: str, axis: int) -> Size:
        """Return a size of an input: a number, or an expression over named symbols."""
        if isinstance(size, int):
            return size
        expression = size.node.expr
        for symbol in sorted(expression.free_symbols, key=str):
            root = self._ties.get(str(symbol), str(symbol))
            if root not in self.symbols:
                chosen = self._labels.get(name, {}).get(axis)
                label = chosen or ("batch" if axis == 0 and not self.symbols else f"{name}_{axis}")
                self.symbols[root] = Dim.symbol(label)
            self.symbols[str(symbol)] = self.symbols[root]
        text = str(expression)
        for symbol in sorted(map(str, expression.free_symbols), key=len, reverse=True):
            text = text.replace(symbol, str(self.symbols[symbol]))
        return as_dim(text)

    def _body(self, *inputs: Any) -> Sequence[Value]:
        values: dict[Any, Any] = {}
        needed = (guard.guard(self.symbols) for guard in self._size_guards)
        self._guards = [guard for guard in needed if guard is not None]
        for node, source in self._placeholders:
            if not isinstance(source, _Input):
                values[node] = source
            else:
                value = inputs[source.index]
                values[node] = complex_of(value) if source.index in self._pairs else value
        outputs = self._graph(self._exported.graph_module, values)
        specs = self._exported.graph_signature.output_specs
        kinds = torch.export.graph_signature
        results = [
            pairs(value) if is_complex(value) else value
            for value, spec in zip(outputs, specs, strict=True)
            if spec.kind == kinds.OutputKind.USER_OUTPUT and isinstance(spec.arg, kinds.TensorArgument)
        ]
        return guarded(results, self._guards, self._guard_lines)

    def _graph(self, module: Any, values: dict[Any, Any]) -> Sequence[Any]:
        """Translate the calls of a graph; placeholders have values."""
        for node in module.graph.nodes:
            if node.op == "placeholder":
                if node not in values:
                    raise ConversionError("an input of the program has no value", where=node.name)
            elif node.op == "get_attr":
                values[node] = self._attribute(module, node)
            elif node.op == "output":
                results = torch.fx.node.map_arg(node.args[0], values.__getitem__)
                return list(results) if isinstance(results, (tuple, list)) else [results]
            else:
                values[node] = self._call(node, values)
        return ()

    def branch(self, module: Any, values: dict[Any, Any]) -> list[Any]:
        """Translate the calls of a branch or a loop body, whose checks guard its own results."""
        outer, self._guards = self._guards, []
        try:
            return guarded(self._graph(module, values), self._guards, self._guard_lines)
        finally:
            self._guards = outer

    def _attribute(self, module: Any, node: Any) -> Any:
        target = module
        for part in str(node.target).split("."):
            target = getattr(target, part)
        if isinstance(target, torch.fx.GraphModule):
            return _Branch(self, target)
        if isinstance(target, torch.Tensor):
            return constant(np.array(as_array(target)), core_dtype(target.dtype))
        return target

    def _call(self, node: Any, values: Mapping[Any, Any]) -> Any:
        name = name_of(node.target)
        args = torch.fx.node.map_arg(node.args, values.__getitem__)
        kwargs = torch.fx.node.map_arg(node.kwargs, values.__getitem__)
        kwargs = {key: value for key, value in kwargs.items() if key not in IGNORED}
        if node.target is operator.getitem:
            if args[1] >= len(args[0]):
                raise ConversionError(f"the call has {len(args[0])} results, expected more", where=place_of(node))
            return args[0][args[1]]
        function = translation_of(name) or custom_translation(node.target, self._opaque)
        if function is None:
            raise ConversionError(f"{name} has no translation", where=place_of(node))
        if name in ASSERTIONS and (guard := guard_of(node, args[0])) is not None:
            self._guards.append(guard)
        if name.startswith("aten.") and name not in ASSERTIONS:
            args, kwargs = _with_weak_numbers(node, args, kwargs)
        token = site.set(Site(node.meta.get("val"), node.name))
        try:
            result = function(*args, **kwargs)
            learn(result, node.meta.get("val"))
            _require_types(result, node.meta.get("val"), name)
        except ConversionError:
            raise
        except (SardonyxError, ArithmeticError, LookupError, ValueError, TypeError, AttributeError) as error:
            problem = error.problem if isinstance(error, SardonyxError) else f"{type(error).__name__}: {error}"
            raise ConversionError(f"{name} has no translation here: {problem}", where=place_of(node)) from error
        finally:
            site.reset(token)
        outcome: Outcome = "removed" if result is None else "converted"
        if is_opaque(node.target, self._opaque) and translation_of(name) is None:
            outcome = "opaque"
        self.calls.append(Call(name, outcome, place_of(node)))
        _name_results(result, node)
        return result


def _with_weak_numbers(node: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Return arguments with the scalars that are numbers of Python in the type that such numbers get beside tensors."""
    kinds = [type(one.meta.get("val")) for one in node.all_input_nodes]
    if torch.SymFloat not in kinds:
        return args, kwargs
    operands = [one.meta["val"] for one in node.all_input_nodes if isinstance(one.meta.get("val"), torch.Tensor)]
    result = node.meta.get("val")
    floats = [x.dtype for x in (*operands, result) if isinstance(x, torch.Tensor) and x.is_floating_point()]
    dtype = core_dtype(floats[0] if floats else torch.get_default_dtype())

    def weak(argument: Any, value: Any) -> Any:
        if isinstance(argument, torch.fx.Node):
            is_number = isinstance(argument.meta.get("val"), torch.SymFloat)
            return tensor_of(value, dtype) if is_number and isinstance(value, Tensor) else value
        if isinstance(argument, (tuple, list)):
            return type(value)(weak(one, own) for one, own in zip(argument, value, strict=True))
        return value

    named = {key: weak(node.kwargs[key], value) for key, value in kwargs.items()}
    return tuple(weak(one, value) for one, value in zip(node.args, args, strict=True)), named


class _Branch:
    """A graph of a program as a function of values: a branch of ``cond``, the body of a loop."""

    def __init__(self, translation: _Translation, module: Any) -> None:
        self._translation = translation
        self._module = module

    def __call__(self, *arguments: Any) -> list[Any]:
        nodes = [node for node in self._module.graph.nodes if node.op == "placeholder"]
        return self._translation.branch(self._module, dict(zip(nodes, arguments, strict=True)))


def value_name(node: Any) -> str:
    """Return the name of a call's result: module and call."""
    module = module_of(node)
    return f"{module}.{node.name}" if module else f"main.{node.name}"


def _name_results(result: Any, node: Any) -> None:
    name = value_name(node)
    if isinstance(result, Tensor):
        if result.op not in ("input", "constant", "dims"):
            result.origin = name
    elif isinstance(result, (tuple, list)):
        for i, value in enumerate(result):
            if isinstance(value, Tensor) and value.op not in ("input", "constant", "dims"):
                value.origin = f"{name}.{i}"


def _require_types(result: Any, expected: Any, name: str) -> None:
    """Compare a result with torch's: element type, rank, and known sizes."""
    if isinstance(expected, torch.Tensor):
        if not isinstance(result, Tensor):
            raise ConversionError(f"internal: {name} has no tensor, expected {list(expected.shape)}.")
        dtype = core_dtype(expected.dtype)
        shape = tuple(expected.shape)
        fits = len(shape) == result.rank and all(
            not (isinstance(a, int) and isinstance(b, int)) or a == b for a, b in zip(shape, result.shape, strict=True)
        )
        if result.dtype != dtype or not fits:
            raise ConversionError(f"internal: {name} is {result.type}, expected {torch_dtype(dtype)}{list(shape)}.")
    elif isinstance(expected, (tuple, list)) and isinstance(result, (tuple, list)):
        for own, other in zip(result, expected, strict=False):
            if own is not None:
                _require_types(own, other, name)


def _stored(exported: Any, spec: Any) -> Any:
    target = spec.target
    if target in exported.state_dict:
        return exported.state_dict[target]
    return exported.constants.get(target)


def _lacks_values(exported: Any) -> bool:
    """Return True if a constant is a tensor of a transform, which has no memory."""
    stored = (*exported.constants.values(), *exported.state_dict.values())
    return any(
        isinstance(value, torch.Tensor)
        and (
            isinstance(value, FakeTensor)
            or torch._is_functional_tensor(value)
            or torch._C._functorch.is_functorch_wrapped_tensor(value)
        )
        for value in stored
    )


def _coarse_weights(exported: Any) -> dict[str, torch.dtype]:
    """Return the 16-bit types in which a program computes with weights, by their names: their own, or a cast's."""
    coarse = (torch.float16, torch.bfloat16)
    specs = {spec.arg.name: str(spec.target) for spec in exported.graph_signature.input_specs if spec.target}
    types: dict[str, torch.dtype] = {}
    for node in exported.graph.nodes:
        if node.op != "placeholder" or node.name not in specs:
            continue
        casts = [user for user in node.users if name_of(user.target).partition(".")[2].startswith(("_to_copy", "to."))]
        for part in (node, *casts):
            value = part.meta.get("val")
            if isinstance(value, torch.Tensor) and value.dtype in coarse:
                types[specs[node.name]] = value.dtype
    return types


def _uses_bfloat16(exported: Any) -> bool:
    for node in exported.graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor) and value.dtype == torch.bfloat16:
            return True
    return False


def _inner_values(exported: Any, runner: Runner, feeds: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """Yield the results of a program's calls, in order."""
    results: list[tuple[str, str, Any]] = []

    def run_node(self: Any, node: Any) -> Any:
        value = torch.fx.Interpreter.run_node(self, node)
        if node.op == "call_function":
            location = f"{name_of(node.target)} in {module_of(node) or 'the program'} {line_of(node)}".strip()
            parts = value if isinstance(value, (tuple, list)) else (value,)
            for i, part in enumerate(parts):
                suffix = f".{i}" if isinstance(value, (tuple, list)) else ""
                if isinstance(part, torch.Tensor):
                    results.append((value_name(node) + suffix, location, as_array(part)))
        return value

    interpreter = type("Recorder", (torch.fx.Interpreter,), {"run_node": run_node})(exported.graph_module)
    try:
        with torch.no_grad(), quiet():
            interpreter.run(*_interpreted_inputs(exported, runner, feeds))
    except Exception as error:  # A program that torch captured for other sizes raises any exception.
        location = results[-1][1] if results else "the program"
        problem = f"the captured program fails after {location}: {type(error).__name__}: {str(error)[:200]}"
        raise EvaluationError(problem, where="torch.export") from error
    yield from results


def _interpreted_inputs(exported: Any, runner: Runner, feeds: Mapping[str, Any]) -> list[Any]:
    kinds = torch.export.graph_signature.InputKind
    leaves = iter(runner.tensors(feeds))
    return [
        next(leaves) if spec.kind == kinds.USER_INPUT else _stored(exported, spec)
        for spec in exported.graph_signature.input_specs
    ]
