"""Operators of ONNX as functions of torch. Any other operator is written by the definition over Core."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sardonyx.core.ir.graph import NodeForm, Value
from sardonyx.core.ir.types import Shape
from sardonyx.export.torch.primitives import expression, shape_of
from sardonyx.export.torch.source import Source

OperatorRule = Callable[["Call"], "str | Sequence[str] | None"]

OPERATOR_FORMS: dict[str, OperatorRule] = {}


class Call:
    """A call of an operator that is being written.

    Attributes:
        s: The statements.
        inputs: The values of the inputs; None for omitted ones.
        attributes: The attributes of the node.
        result: Sizes of the first result.
        spelling: The function of torch, for the report.
        version: Version of ``ai.onnx``.
        outputs: Number of results.
    """

    def __init__(self, s: Source, value: Value, form: NodeForm) -> None:
        operands = iter(value.operands)
        self.s = s
        self.inputs: list[Value | None] = [next(operands) if there else None for there in form.present]
        self.attributes: dict[str, Any] = dict(form.attributes)
        self.result: Shape = value.type.results[0].shape  # type: ignore[union-attr,assignment]
        self.outputs = len(value.type.results)  # type: ignore[union-attr]
        self.version = form.version
        self.spelling = ""

    def get(self, name: str, default: Any) -> Any:
        """Return an attribute."""
        return self.attributes.get(name, default)

    def value(self, index: int) -> Value | None:
        """Return the value of an input; None if omitted."""
        return self.inputs[index] if index < len(self.inputs) else None

    def shape(self, index: int) -> Shape:
        """Return the sizes of an input."""
        value = self.inputs[index]
        assert value is not None
        return shape_of(value)

    def text(self, index: int) -> str:
        """Return the expression of an input; ``None`` if omitted."""
        value = self.value(index)
        return "None" if value is None else expression(self.s, value)

    def apply(self, function: str, *arguments: str, **options: str) -> str:
        """Return a call of a function, and remember its name for the report."""
        self.spelling = function.removeprefix("torch.").removeprefix("F.")
        named = [f"{name}={text}" for name, text in options.items()]
        return f"{function}({', '.join([*arguments, *named])})"


def operator_form(*names: str) -> Callable[[OperatorRule], OperatorRule]:
    """Register the torch form of operators of ``ai.onnx``."""

    def register(rule: OperatorRule) -> OperatorRule:
        OPERATOR_FORMS.update(dict.fromkeys(names, rule))
        return rule

    return register


@operator_form("Conv")
def _conv(c: Call) -> str | None:
    n = len(c.shape(0)) - 2
    if n not in (1, 2, 3):
        return None
    x = c.text(0)
    auto, pads = c.get("auto_pad", "NOTSET"), c.get("pads", (0,) * (2 * n))
    if auto == "VALID":
        pads = (0,) * (2 * n)
    elif auto != "NOTSET":
        return None
    options: dict[str, str] = {}
    if pads[:n] == pads[n:]:
        if any(pads):
            options["padding"] = _compact(pads[:n])
    else:
        flat = [amount for axis in reversed(range(n)) for amount in (pads[axis], pads[n + axis])]
        x = f"F.pad({x}, {tuple(flat)!r})"
    for name, onnx in (("stride", "strides"), ("dilation", "dilations")):
        if any(step != 1 for step in c.get(onnx, ())):
            options[name] = _compact(c.get(onnx, ()))
    if c.get("group", 1) != 1:
        options["groups"] = str(c.get("group", 1))
    arguments = [x, c.text(1), *([c.text(2)] if c.value(2) is not None else [])]
    return c.apply(f"F.conv{n}d", *arguments, **options)


def _compact(numbers: Sequence[int]) -> str:
    return str(numbers[0]) if len(set(numbers)) == 1 else repr(tuple(numbers))
