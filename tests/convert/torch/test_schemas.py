"""Translations accept the calls that the schemas of torch's operators describe."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from sardonyx.convert.torch.operators.registry import translation_of  # noqa: E402


def _defaults(function: Any, schema: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield the parameters of a schema that have a default: name, the default, and that of a translation."""
    parameters = inspect.signature(function).parameters
    ordered = [parameter for parameter in parameters.values() if parameter.kind != parameter.KEYWORD_ONLY]
    for i, argument in enumerate(schema.arguments):
        own = parameters.get(argument.name) if argument.kwarg_only else next(iter(ordered[i : i + 1]), None)
        if own is not None and argument.has_default_value() and own.kind not in (own.VAR_POSITIONAL, own.VAR_KEYWORD):
            yield argument.name, argument.default_value, own.default


def test_parameters_of_translations_have_the_defaults_of_torch() -> None:
    compared, differing = 0, []
    for schema in vars(vars(torch)["_C"])["_jit_get_all_schemas"]():
        name = f"{schema.name.replace('::', '.')}.{schema.overload_name or 'default'}"
        function = translation_of(name)
        for parameter, default, own in _defaults(function, schema) if function is not None else ():
            values = default if isinstance(default, list) else [default]
            absent = [0] if default == "valid" else [None] if default == [] else []
            compared += 1
            if own not in (default, tuple(values), *absent) and not (values and all(own == one for one in values)):
                differing.append(f"{name}: {parameter}={own!r}, expected {default!r}")
    assert compared > 300
    assert not differing
