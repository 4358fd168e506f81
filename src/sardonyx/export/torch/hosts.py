"""The torch form of host functions: counted results, sequences and optionals. Texts and images have none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sardonyx.core.ir.graph import Value
from sardonyx.errors import UnsupportedError
from sardonyx.export.torch.source import Source

HostRule = Callable[..., "str | Sequence[str]"]

HOST_FORMS: dict[str, HostRule] = {}


def host_form(*names: str) -> Callable[[HostRule], HostRule]:
    """Register the torch form of host functions."""

    def register(rule: HostRule) -> HostRule:
        HOST_FORMS.update(dict.fromkeys(names, rule))
        return rule

    return register


@host_form("NonZero")
def _nonzero(s: Source, value: Value, x: str, **attributes: Any) -> str:
    if not value.operands[0].type.shape:  # type: ignore[union-attr]
        raise UnsupportedError("torch has no positions of a scalar.")
    return f"torch.nonzero({x}).transpose(0, 1)"
