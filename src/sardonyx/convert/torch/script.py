"""TorchScript as modules that torch captures: its graphs, executed node by node with traced tensors.

torch has no export of TorchScript. A scripted module is mirrored by a plain module with the same parts, parameters and
names, whose methods execute the graphs of the scripted methods; operators are called by their schemas.
"""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Callable, Sequence
from keyword import iskeyword
from types import SimpleNamespace
from typing import Any

import torch

from sardonyx.convert.torch.archives import FORBIDDEN
from sardonyx.convert.torch.script_functions import DTYPES, FORMATS, FUNCTIONS, LAYOUTS, is_number
from sardonyx.errors import ConversionError

_MOST_TURNS = 1 << 16
"""Maximum number of turns of a loop whose count is not limited."""

_SCRIPT = "<script>"
"""Attribute of a mirror, whose name no program has."""


def is_script(source: Any) -> bool:
    """Return True for modules and functions of TorchScript."""
    return isinstance(source, (torch.jit.ScriptModule, FunctionModule))


class FunctionModule(torch.nn.Module):  # type: ignore[misc]
    """A scripted function as a module."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        return self.function(*args, **kwargs)


def mirror_of(source: Any) -> torch.nn.Module:
    """Return a plain module that executes a scripted module or function.

    Raises:
        ConversionError: The module has no method ``forward``.
    """
    interpreter = _Interpreter()
    if not isinstance(source, FunctionModule):
        if not source._c._has_method("forward"):
            raise ConversionError("the scripted module has no method 'forward'")
        return interpreter.mirror(source._c)
    mirror, graph = torch.nn.Module(), source.function.graph
    forward = _function(source.function.schema, lambda *operands: interpreter.run(graph, operands), 0)
    object.__setattr__(mirror, "forward", forward)
    return mirror


def with_plain_parts(module: torch.nn.Module) -> torch.nn.Module | None:
    """Return a copy of a plain module whose scripted parts are plain too; None if it has none.

    The copy has the module's own parameters.
    """
    scripted = [part for part in module.modules() if isinstance(part, torch.jit.ScriptModule)]
    functions = _functions(module)
    if not scripted and not functions:
        return None
    known: dict[int, Any] = {id(parameter): parameter for parameter in module.parameters()}
    interpreter = _Interpreter()
    known |= {id(part): interpreter.mirror(part._c) for part in scripted}
    known |= {id(function): mirror_of(FunctionModule(function)) for function in functions}
    return copy.deepcopy(module, known)


def _functions(module: torch.nn.Module) -> list[Any]:
    """Return the scripted functions among the attributes of a module's parts."""
    parts = (part for part in module.modules() if not isinstance(part, torch.jit.ScriptModule))
    return [value for part in parts for value in vars(part).values() if isinstance(value, torch.jit.ScriptFunction)]


def copied(module: torch.nn.Module) -> torch.nn.Module:
    """Return a copy of a module with states of its own; it has the same scripted functions, which have no state."""
    return copy.deepcopy(module, {id(function): function for function in _functions(module)})


_WRITES = re.compile(
    r"prim::SetAttr|aten::(?:append|extend|insert|pop|popitem|remove|clear|reverse|sort|update|setdefault"
    r"|_set_item|Delete|[a-z]\w*_)\("
)
"""Nodes that write to attributes, or to lists, dicts and tensors that may be attributes."""


def writes_state(source: Any) -> bool:
    """Return True for a module with scripted parts that may write to their attributes when they are called."""
    parts = (part for part in source.modules() if isinstance(part, torch.jit.ScriptModule))
    methods = (part._c._get_method(name) for part in parts for name in part._c._method_names())
    return any(_WRITES.search(str(method.inlined_graph)) for method in methods)


def _function(schema: Any, run: Callable[..., Any], skipped: int) -> Callable[..., Any]:
    """Return a function with the signature of a schema, without the first ``skipped`` arguments."""
    arguments = schema.arguments[skipped:]
    parameters = [
        inspect.Parameter(
            argument.name if argument.name.isidentifier() and not iskeyword(argument.name) else f"input_{i}",
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
            default=argument.default_value if argument.has_default_value() else inspect.Parameter.empty,
        )
        for i, argument in enumerate(arguments)
    ]
    signature = inspect.Signature(parameters)

    def function(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return run(*bound.args)

    function.__signature__ = signature  # type: ignore[attr-defined]
    return function


class Mirror(torch.nn.Module):  # type: ignore[misc]
    """A plain module with the parts, parameters, buffers and methods of a scripted one."""

    def __init__(self, script: Any) -> None:
        super().__init__()
        for name, parameter in torch._C.ParameterDict(script).items():
            self.register_parameter(name, torch.nn.Parameter(parameter.detach(), False))
        for name, buffer in torch._C.BufferDict(script).items():
            self.register_buffer(name, buffer)
        # Registration requires that the names are free, so other attributes come after it.
        self.__dict__[_SCRIPT] = script

    def read(self, name: str) -> Any:
        """Return an attribute of the scripted module, not a method of torch with its name."""
        return self.__dict__[name] if name in self.__dict__ else self.__getattr__(name)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            script = self.__dict__.get(_SCRIPT)
            if script is None or name.startswith("__") or not script.hasattr(name):
                raise
            value = script.getattr(name)
            if isinstance(value, (torch.Tensor, list, dict)):
                # Of the same object every time, which a method may write to.
                object.__setattr__(self, name, value)
            return value


class _Interpreter:
    """Executes the graphs of one scripted source."""

    def __init__(self) -> None:
        self._constants: dict[Any, Any] = {}
        self._mirrors: dict[Any, Mirror] = {}
        self._inlined: dict[Any, Any] = {}
        self._schemas: dict[str, Any] = {}

    def mirror(self, script: Any) -> Mirror:
        """Return the plain module of a scripted one; a part that appears twice is one module."""
        if script in self._mirrors:
            return self._mirrors[script]
        mirror = self._mirrors[script] = Mirror(script)
        for name, part in torch._C.ModuleDict(script).items():
            mirror._modules[name] = self.mirror(part)
        for name in script._method_names():
            method = script._get_method(name)

            def run(*args: Any, graph: Any = method.graph) -> Any:
                return self.run(graph, (mirror, *args))

            object.__setattr__(mirror, name, _function(method.schema, run, 1))
        mirror.eval()
        return mirror

    def run(self, graph: Any, inputs: Sequence[Any]) -> Any:
        """Return the result of a graph."""
        values = {value.unique(): entry for value, entry in zip(graph.inputs(), inputs, strict=True)}
        results = self._block(graph, values, graph.outputs())
        return results[0] if len(results) == 1 else tuple(results)

    def _block(self, block: Any, values: dict[int, Any], outputs: Any) -> list[Any]:
        for node in block.nodes():
            operands = [values[value.unique()] for value in node.inputs()]
            results = self._node(node, operands, values)
            targets = list(node.outputs())
            if len(targets) == 1:
                values[targets[0].unique()] = results
            elif targets:
                values.update(zip((target.unique() for target in targets), results, strict=True))
        return [values[value.unique()] for value in outputs]

    def _node(self, node: Any, operands: Sequence[Any], values: dict[int, Any]) -> Any:
        kind = node.kind()
        own = getattr(self, "_" + kind.replace("::", "_"), None)
        if own is not None:
            return own(node, operands, values)
        function = FUNCTIONS.get(kind)
        if function is not None:
            result = function(*operands)
            if result is not NotImplemented:
                is_float = node.outputsSize() == 1 and node.output().type().kind() == "FloatType"
                return torch.sym_float(result) if is_float and isinstance(result, (int, torch.SymInt)) else result
        if kind.startswith("prim::") or not node.schema() or "(no schema)" in node.schema():
            raise ConversionError(f"{kind} of TorchScript has no translation", where=_location(node))
        return self._operator(node, operands)

    def _operator(self, node: Any, operands: Sequence[Any]) -> Any:
        text = node.schema()
        schema = self._schemas.get(text)
        if schema is None:
            schema = self._schemas[text] = torch._C.parse_schema(text)
        if operands and any(is_number(x) for x in operands):
            operands = [_as_operand(x, argument) for x, argument in zip(operands, schema.arguments, strict=True)]
        space, _, name = schema.name.partition("::")
        if name in FORBIDDEN:
            raise ConversionError(f"{node.kind()} accesses files or other machines", where=_location(node))
        packet = getattr(getattr(torch.ops, space), name, None)
        called = getattr(packet, schema.overload_name or "default", None)
        if called is None:
            raise ConversionError(f"{node.kind()} of TorchScript has no translation", where=_location(node))
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for value, argument in zip(operands, schema.arguments, strict=True):
            value = _of_type(value, str(argument.real_type))
            if argument.kwarg_only:
                kwargs[argument.name] = value
            else:
                args.append(value)
        return called(*args, **kwargs)

    # Nodes of the language itself, by their kinds.

    def _prim_Constant(self, node: Any, _: Any, __: Any) -> Any:
        output = node.output()
        if output.type().kind() == "FunctionType":
            return None
        value = output.toIValue()
        if not isinstance(value, torch.Tensor):
            return value
        key = (value.data_ptr(), tuple(value.shape), value.dtype)
        return self._constants.setdefault(key, value) if value.numel() else value

    def _prim_GetAttr(self, node: Any, operands: Sequence[Any], _: Any) -> Any:
        name = node.s("name")
        owner = operands[0]
        return owner.read(name) if isinstance(owner, Mirror) else getattr(owner, name)

    def _prim_SetAttr(self, node: Any, operands: Sequence[Any], _: Any) -> None:
        setattr(operands[0], node.s("name"), operands[1])

    def _prim_CallMethod(self, node: Any, operands: Sequence[Any], _: Any) -> Any:
        owner, *rest = operands
        name = node.s("name")
        if isinstance(owner, torch.nn.Module):
            return owner(*rest) if name == "forward" else getattr(owner, name)(*rest)
        if isinstance(owner, SimpleNamespace):
            return self.run(self._inline(node), operands)
        return getattr(owner, name)(*rest)

    def _prim_CallFunction(self, node: Any, operands: Sequence[Any], _: Any) -> Any:
        return self.run(self._inline(node), operands[1:])

    def _inline(self, node: Any) -> Any:
        """Return the graph of a called function, whose inputs are the arguments."""
        callee = node.inputsAt(0)
        key = (callee.type().str(), node.kind(), node.hasAttribute("name") and node.s("name"))
        key = (*key, *(value.type().str() for value in node.inputs()))
        if key not in self._inlined:
            graph = torch._C.Graph()
            operands = list(node.inputs())
            copies = []
            if node.kind() == "prim::CallFunction":
                constant = graph.createClone(operands.pop(0).node(), lambda value: value)
                graph.insertNode(constant)
                copies.append(constant.output())
            for operand in operands:
                copies.append(graph.addInput())
                copies[-1].setType(operand.type())
            remaining = iter(copies)
            call = graph.createClone(node, lambda _: next(remaining))
            graph.insertNode(call)
            for output in call.outputs():
                graph.registerOutput(output)
            torch._C._jit_pass_inline(graph)
            self._inlined[key] = graph
        return self._inlined[key]

    def _prim_If(self, node: Any, operands: Sequence[Any], values: dict[int, Any]) -> Any:
        first, second = node.blocks()
        block = first if operands[0] else second
        return _results(node, self._block(block, values, block.outputs()))

    def _prim_Loop(self, node: Any, operands: Sequence[Any], values: dict[int, Any]) -> Any:
        most, condition, *carried = operands
        (block,) = node.blocks()
        inputs = [value.unique() for value in block.inputs()]
        turn = 0
        while condition and turn < most:
            values.update(zip(inputs, (turn, *carried), strict=True))
            condition, *carried = self._block(block, values, block.outputs())
            turn += 1
            if turn > _MOST_TURNS:
                raise ConversionError(f"expected a loop of at most {_MOST_TURNS} turns", where=_location(node))
        return _results(node, carried)

    def _prim_With(self, node: Any, operands: Sequence[Any], values: dict[int, Any]) -> Any:
        raise ConversionError("`with` of TorchScript has no translation", where=_location(node))

    def _prim_TupleConstruct(self, node: Any, operands: Sequence[Any], _: Any) -> Any:
        return tuple(operands)

    def _prim_ListConstruct(self, node: Any, operands: Sequence[Any], _: Any) -> Any:
        return list(operands)

    def _prim_DictConstruct(self, node: Any, operands: Sequence[Any], _: Any) -> Any:
        return dict(zip(operands[::2], operands[1::2], strict=True))

    def _prim_ListUnpack(self, node: Any, operands: Sequence[Any], _: Any) -> Any:
        return _results(node, list(operands[0]))

    def _prim_TupleUnpack(self, node: Any, operands: Sequence[Any], _: Any) -> Any:
        return _results(node, list(operands[0]))

    def _prim_ConstantChunk(self, node: Any, operands: Sequence[Any], _: Any) -> Any:
        return _results(node, list(torch.chunk(operands[0], node.i("chunks"), node.i("dim"))))

    def _prim_TupleSlice(self, node: Any, operands: Sequence[Any], _: Any) -> Any:
        return operands[0][node.i("beg") : node.i("end")]

    def _prim_CreateObject(self, node: Any, _: Any, __: Any) -> Any:
        return SimpleNamespace()

    def _prim_RaiseException(self, node: Any, operands: Sequence[Any], _: Any) -> Any:
        raise ConversionError(f"the program raises: {operands[0]}", where=_location(node))

    def _prim_isinstance(self, node: Any, operands: Sequence[Any], _: Any) -> Any:
        kinds = [str(kind) for kind in node.tys("types")]
        value = operands[0]
        tests: dict[str, Callable[[Any], bool]] = {
            "Tensor": lambda x: isinstance(x, torch.Tensor),
            "int": lambda x: isinstance(x, (int, torch.SymInt)) and not isinstance(x, bool),
            "float": lambda x: isinstance(x, (float, torch.SymFloat)),
            "bool": lambda x: isinstance(x, (bool, torch.SymBool)),
            "str": lambda x: isinstance(x, str),
            "NoneType": lambda x: x is None,
        }
        for kind in kinds:
            base = "list" if kind.endswith("[]") or kind == "AnyListType" else kind
            test = tests.get(base)
            if base == "list":
                inner = tests.get(kind[:-2], lambda _: True)
                if isinstance(value, list) and all(map(inner, value)):
                    return True
            elif kind == "AnyTupleType":
                if isinstance(value, tuple):
                    return True
            elif test is None:
                raise ConversionError(f"isinstance of {kind} has no translation", where=_location(node))
            elif test(value):
                return True
        return False


def _results(node: Any, results: list[Any]) -> Any:
    """Return results as those of a node: one by itself."""
    return results[0] if node.outputsSize() == 1 else results


def _as_operand(value: Any, argument: Any) -> Any:
    """Return a number as a tensor if the operator expects one."""
    if is_number(value) and str(argument.type) in ("Tensor", "Optional[Tensor]"):
        return torch.scalar_tensor(value, dtype=_dtype_of(value))
    return value


def _dtype_of(value: Any) -> torch.dtype:
    if isinstance(value, (bool, torch.SymBool)):
        return torch.bool
    return torch.int64 if isinstance(value, (int, torch.SymInt)) else torch.get_default_dtype()


def _of_type(value: Any, kind: str) -> Any:
    """Return the element type, layout or format that a number encodes."""
    tables = {"ScalarType": DTYPES, "Layout": LAYOUTS, "MemoryFormat": FORMATS}
    match = re.fullmatch(r"(?:Optional\[)?(ScalarType|Layout|MemoryFormat)\]?", kind)
    if match and isinstance(value, int) and not isinstance(value, bool):
        return tables[match[1]][value]
    return value


def _location(node: Any) -> str:
    """Return the user's line of a node."""
    match = re.search(r'File "([^"]+)", line (\d+)', node.sourceRange())
    return f"{match[1]}:{match[2]}" if match else ""
