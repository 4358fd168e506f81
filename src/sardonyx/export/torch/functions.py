"""Core functions as Python statements: every value in order, calls of known operators as torch's own functions."""

from __future__ import annotations

from collections.abc import Sequence

from sardonyx.core.ir.graph import Function, Value
from sardonyx.core.ir.types import UINT64, TensorType, TupleType, is_integer
from sardonyx.errors import UnsupportedError
from sardonyx.export.torch.element_types import WIDENED, WRAPPED
from sardonyx.export.torch.hosts import HOST_FORMS
from sardonyx.export.torch.operators import OPERATOR_FORMS, Call, Unpacked
from sardonyx.export.torch.primitives import LAZY, dtype_of, expression, form_of, spelled_dtype
from sardonyx.export.torch.size_values import size_elements
from sardonyx.export.torch.source import Source


def write(s: Source, function: Function, arguments: Sequence[str]) -> list[str]:
    """Write a function's values as statements, and return the expressions of its results."""
    s.expressions.update(zip(function.inputs, arguments, strict=True))
    for declared, argument in zip(function.inputs, arguments, strict=True):
        s.bind_sizes(declared.type, argument)
    names = _names_of_tuples(function.values)
    for value in function.values:
        if value not in s.expressions and value.op not in LAZY:
            _write_value(s, value, names.get(value, {}))
    return [_result(s, value) for value in function.results]


def _result(s: Source, value: Value) -> str:
    return expression(s, value) if isinstance(value.type, TensorType) else str(s.expressions[value])


def _names_of_tuples(values: Sequence[Value]) -> dict[Value, dict[int, str]]:
    """Return the origins of the elements of values with several results."""
    names: dict[Value, dict[int, str]] = {}
    for value in values:
        if value.op == "get":
            names.setdefault(value.operands[0], {})[value.params["index"]] = value.origin
    return names


def _write_value(s: Source, value: Value, names: dict[int, str]) -> None:
    match value.op:
        case "input":
            raise UnsupportedError("an input belongs to another function.", where=value.origin)
        case "get":
            s.expressions[value] = s.expressions[value.operands[0]][value.params["index"]]
            return
        case "bind":
            _bind(s, value)
            return
        case "call":
            results = _call(s, value, names)
        case "cond":
            results = _cond(s, value, names)
        case "loop":
            results = _loop(s, value, names)
        case "host":
            results = _host(s, value, names)
        case _:
            base = value.origin or value.op
            s.expressions[value] = s.assign(base, form_of(s, value))
            s.bind_sizes(value.type, s.expressions[value])
            return
    assert isinstance(value.type, TupleType)
    s.expressions[value] = results
    for type_, result in zip(value.type.results, results, strict=False):
        if result != "_":
            s.bind_sizes(type_, result)


def _bind(s: Source, value: Value) -> None:
    """Read an element as a size, unless the size is known otherwise."""
    number = _number(s, value.operands[0], value.params["element"])
    if number is not None:
        s.bind(value.params["symbol"], number)
        return
    x, element = expression(s, value.operands[0]), value.params["element"]
    index = f"[{', '.join(map(str, element))}]" if element else ""
    s.bind(value.params["symbol"], f"int({x}{index})")
    s.expressions[value] = x


def _number(s: Source, value: Value, element: tuple[int, ...] = ()) -> str | None:
    """Return an element of a tensor that depends on sizes alone as a number; None for data."""
    elements = size_elements(s, value)
    if elements is None or not is_integer(dtype_of(value)):
        return None
    text = str(elements[element] if element else elements.reshape(-1)[0])
    if "truncated(" in text:
        s.helper("truncated")
    return text


def _call(s: Source, value: Value, names: dict[int, str]) -> list[str]:
    """Write a known operator of torch, else the values of the definition."""
    function: Function = value.params["function"]
    form = function.node
    if form is not None and not form.domain and form.name in OPERATOR_FORMS and _is_computable(value):
        call = Call(s, value, form)
        known = OPERATOR_FORMS[form.name](call)
        if known is not None:
            key = f"{form.name} → {call.spelling}"
            s.module.forms[key] = s.module.forms.get(key, 0) + 1
            return _assigned(s, known, names, form.name)
    if form is not None:
        key = f"{form.name} → definition"
        s.module.forms[key] = s.module.forms.get(key, 0) + 1
    outer = dict(s.expressions)
    results = write(s, function, [expression(s, operand) for operand in value.operands])
    named = []
    for i, (result, inner) in enumerate(zip(results, function.results, strict=True)):
        if names.get(i) and not inner.origin and result not in outer.values():
            s.line(f"{(name := s.name(names[i]))} = {result}")
            result = name
        named.append(result)
    s.expressions = outer
    return named


def _is_computable(value: Value) -> bool:
    """Return True if torch computes with the element types of a call as they are."""
    results = value.type.results if isinstance(value.type, TupleType) else ()
    types = (*(operand.type for operand in value.operands), *results)
    return not any(
        isinstance(type_, TensorType) and (type_.dtype in WRAPPED or type_.dtype in WIDENED or type_.dtype == UINT64)
        for type_ in types
    )


def _assigned(s: Source, results: str | Unpacked, names: dict[int, str], base: str) -> list[str]:
    """Assign an expression to a name, or its elements to several; return the names."""
    if isinstance(results, str):
        return [s.assign(names.get(0) or base, results)]
    targets = [s.name(names[i]) if names.get(i) else "_" for i in range(results.count)]
    s.line(f"{', '.join(targets)} = {results.text}")
    return targets


def _host(s: Source, value: Value, names: dict[int, str]) -> list[str]:
    function, attributes = value.params["function"], dict(value.params["attributes"])
    form = HOST_FORMS.get(function.name)
    if form is None or function.domain:
        name = f"{function.domain}.{function.name}" if function.domain else function.name
        raise UnsupportedError(f"torch has no form for {name}.", where=value.origin)
    present = function.present or [True] * len(value.operands)
    rest = iter(_result(s, operand) for operand in value.operands)
    operands = [next(rest) if there else None for there in present]
    results = form(s, value, *operands, **attributes)
    key = f"{function.name} → torch"
    s.module.forms[key] = s.module.forms.get(key, 0) + 1
    return _assigned(s, results, names, function.name)


# Control flow.


def _cond(s: Source, value: Value, names: dict[int, str]) -> list[str]:
    condition, *operands = [_result(s, operand) for operand in value.operands]
    then, otherwise = value.params["then"], value.params["otherwise"]
    results = [s.name(names.get(i) or "chosen") for i in range(len(then.results))]
    for head, branch in ((f"if {condition}:", then), ("else:", otherwise)):
        with s.block(head):
            for name, result in zip(results, write(s, branch, operands), strict=True):
                s.line(f"{name} = {result}")
    return results


def _loop(s: Source, value: Value, names: dict[int, str]) -> list[str]:
    """Write a loop: `for` over a count if the condition is always true, `while` otherwise."""
    body: Function = value.params["body"]
    carried: int = value.params["carried"]
    scanned = len(body.results) - 1 - carried
    count, go, *operands = value.operands
    start = [_result(s, operand) for operand in operands[:carried]]
    captured = [_result(s, operand) for operand in operands[carried:]]
    origins = [value.origin or "state" for value in body.inputs[2 : 2 + carried]]
    states = [s.assign(names.get(i) or name, text) for i, (name, text) in enumerate(zip(origins, start, strict=True))]
    rows = [s.assign(f"{names.get(carried + i) or 'rows'}_list", "[]") for i in range(scanned)]
    stays = body.results[0].is_constant and bool(body.results[0].known)
    starts = go.is_constant and bool(go.known)
    step = s.name("step")
    total = _number(s, count) or f"int({_result(s, count)})"
    going = "" if stays and starts else s.assign("go", _result(s, go))
    with s.block(f"for {step} in range({total}):"):
        if going:
            s.line(f"if not {going}:")
            s.line("    break")
        index = s.name("index")
        if body.inputs[0] in _read(body):
            s.line(f"{index} = torch.full((), {step}, dtype=torch.int64, device=device)")
        if body.inputs[1] in _read(body) and not going:
            going_text = s.assign("go", "torch.full((), True, device=device)")
        else:
            going_text = going or "True"
        results = write(s, body, [index, going_text, *states, *captured])
        for name, result in zip(rows, results[1 + carried :], strict=True):
            s.line(f"{name}.append({result})")
        targets = [name for name, result in zip(states, results[1 : 1 + carried], strict=True) if name != result]
        sources = [result for name, result in zip(states, results[1 : 1 + carried], strict=True) if name != result]
        if going and not stays:
            targets, sources = [going, *targets], [results[0], *sources]
        if targets:
            s.line(f"{', '.join(targets)} = {', '.join(sources)}")
    assert isinstance(value.type, TupleType)
    for i, name in enumerate(rows):
        type_ = value.type.results[carried + i]
        assert isinstance(type_, TensorType) and type_.shape is not None
        try:
            sizes, dtype = s.shape((0, *type_.shape[1:])), spelled_dtype(type_.dtype)
            empty = f"torch.zeros({sizes}, dtype={dtype}, device=device)"
        except UnsupportedError:  # A size of the rows is known from the rows alone.
            empty = ""
        stacked = f"torch.stack({name})"
        if empty and not (count.is_constant and int(count.known) > 0 and not going):
            stacked = f"torch.stack({name}) if {name} else {empty}"
        rows[i] = s.assign(names.get(carried + i) or "rows", stacked)
    return [*states, *rows]


def _read(body: Function) -> set[Value]:
    return {operand for value in body.values for operand in value.operands} | set(body.results)
