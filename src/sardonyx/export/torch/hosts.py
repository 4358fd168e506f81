"""The torch form of host functions: counted results, sequences and optionals. Texts and images have none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sardonyx.core.ir.graph import Value
from sardonyx.core.ir.types import kind
from sardonyx.errors import UnsupportedError
from sardonyx.export.torch.operators import Unpacked
from sardonyx.export.torch.primitives import dtype_of, shape_of
from sardonyx.export.torch.source import Source

HostRule = Callable[..., "str | Unpacked"]

HOST_FORMS: dict[str, HostRule] = {}


def host_form(*names: str) -> Callable[[HostRule], HostRule]:
    """Register the torch form of host functions."""

    def register(rule: HostRule) -> HostRule:
        HOST_FORMS.update(dict.fromkeys(names, rule))
        return rule

    return register


def _position(position: str | None, default: str) -> str:
    return default if position is None else f"int({position})"


@host_form("NonZero")
def _nonzero(s: Source, value: Value, x: str, **attributes: Any) -> str:
    if not shape_of(value.operands[0]):
        return f"torch.nonzero({x}.reshape(1)).transpose(0, 1)[:0]"
    return f"torch.nonzero({x}).transpose(0, 1)"


@host_form("SequenceConstruct")
def _construct(s: Source, value: Value, *xs: str, **attributes: Any) -> str:
    return f"[{', '.join(xs)}]"


@host_form("SequenceEmpty")
def _empty(s: Source, value: Value, **attributes: Any) -> str:
    return "[]"


@host_form("SequenceInsert")
def _insert(s: Source, value: Value, xs: str, x: str, position: str | None = None, **attributes: Any) -> str:
    return f"{s.helper('inserted')}({xs}, {x}, {_position(position, f'len({xs})')})"


@host_form("SequenceErase")
def _erase(s: Source, value: Value, xs: str, position: str | None = None, **attributes: Any) -> str:
    return f"{s.helper('erased')}({xs}, {_position(position, '-1')})"


@host_form("SequenceAt")
def _at(s: Source, value: Value, xs: str, position: str, **attributes: Any) -> str:
    return f"{xs}[int({position})]"


@host_form("SequenceLength")
def _length(s: Source, value: Value, xs: str, **attributes: Any) -> str:
    return f"torch.tensor(len({xs}), device=device)"


@host_form("ConcatFromSequence")
def _concat(s: Source, value: Value, xs: str, *, axis: int, new_axis: int = 0, **attributes: Any) -> str:
    return f"torch.{'stack' if new_axis else 'cat'}({xs}, dim={axis})"


@host_form("SplitToSequence")
def _split(
    s: Source, value: Value, x: str, split: str | None = None, *, axis: int = 0, keepdims: int = 1, **_: Any
) -> str:
    if split is None:
        text = f"torch.split({x}, 1, dim={axis})"
        return f"list({text})" if keepdims else f"[part.squeeze({axis}) for part in {text}]"
    return f"list(torch.split({x}, {split}.tolist(), dim={axis}))"


@host_form("Optional")
def _optional(s: Source, value: Value, x: str | None = None, **attributes: Any) -> str:
    return "None" if x is None else x


@host_form("OptionalGetElement")
def _element(s: Source, value: Value, x: str, **attributes: Any) -> str:
    return x


@host_form("OptionalHasElement")
def _has_element(s: Source, value: Value, x: str | None = None, **attributes: Any) -> str:
    return f"torch.tensor({'False' if x is None else f'{x} is not None'}, device=device)"


@host_form("NonMaxSuppression")
def _suppression(
    s: Source,
    value: Value,
    boxes: str,
    scores: str,
    most: str | None = None,
    overlap: str | None = None,
    least: str | None = None,
    *,
    center_point_box: int = 0,
    **attributes: Any,
) -> str:
    limits = ["0" if most is None else f"int({most})", "0.0" if overlap is None else f"float({overlap})"]
    limits.append("None" if least is None else f"float({least})")
    return f"{s.helper('non_max_suppression')}({boxes}, {scores}, {', '.join(limits)}, {bool(center_point_box)})"


@host_form("Unique")
def _unique(
    s: Source, value: Value, x: str, *, axis: int | None = None, sorted_: int = 1, **attributes: Any
) -> Unpacked:
    if kind(dtype_of(value.operands[0])) == "complex":
        raise UnsupportedError("torch has no order of complex numbers.")
    in_order = bool(attributes.get("sorted", sorted_))
    return Unpacked(f"{s.helper('unique')}({x}, {axis}, {in_order})", 4)
