"""Example inputs of modules: positional and named ones, as tensors that torch captures as separate inputs."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from sardonyx.convert.imported import Options
from sardonyx.errors import OptionError


def examples_of(module: torch.nn.Module, options: Options) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the example inputs of a module, by position and by name.

    Raises:
        OptionError: The module needs inputs, and the caller gives none.
    """
    seen: set[int] = set()
    register_dataclasses(options.examples)
    examples = pytree.tree_map(lambda leaf: _distinct(_as_example(leaf), seen), options.examples)
    if not examples:
        needed = [p for p in inspect.signature(module.forward).parameters.values() if p.default is p.empty]
        if needed:
            names = ", ".join(parameter.name for parameter in needed)
            raise OptionError(
                f"the module needs example inputs for {names}",
                where="example_inputs",
                remedy="Pass example inputs (`--sample x.npz`).",
            )
        return (), {}
    if isinstance(examples, Mapping):
        if all(str(name).startswith("arr_") for name in examples):
            return tuple(examples.values()), {}
        _require_known(module, examples)
        return (), dict(examples)
    examples = tuple(examples)
    if len(examples) > 1 and isinstance(examples[-1], dict) and _takes_keywords(module, examples):
        return examples[:-1], dict(examples[-1])
    return examples, {}


def _require_known(module: torch.nn.Module, examples: Mapping[str, Any]) -> None:
    """Refuse examples whose names are no parameters of a module.

    Raises:
        OptionError: A name is unknown.
    """
    parameters = inspect.signature(module.forward).parameters
    if any(parameter.kind == parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    if unknown := [str(name) for name in examples if name not in parameters]:
        raise OptionError(
            f"the module has no input {', '.join(unknown)}",
            where="example_inputs",
            remedy=f"Inputs are: {', '.join(parameters) or 'none'}.",
        )


def _as_example(leaf: Any) -> Any:
    """Return an array as a tensor, and a tensor without gaps: strides would become conditions of the program."""
    if isinstance(leaf, np.ndarray):
        return torch.from_numpy(leaf)
    return leaf.contiguous() if isinstance(leaf, torch.Tensor) and leaf.layout == torch.strided else leaf


def _distinct(leaf: Any, seen: set[int]) -> Any:
    """Return a tensor that appears again as a copy: torch.export would take both inputs for one."""
    if isinstance(leaf, torch.Tensor):
        if id(leaf) in seen:
            leaf = leaf.clone()
        seen.add(id(leaf))
    return leaf


def _takes_keywords(module: torch.nn.Module, examples: Sequence[Any]) -> bool:
    """Return True if the last example, a dict, names parameters that the others leave free."""
    parameters = list(inspect.signature(module.forward).parameters.values())
    free = parameters[len(examples) - 1 :]
    names = {parameter.name for parameter in free}
    if any(parameter.kind == parameter.VAR_KEYWORD for parameter in free):
        # Any name is one of a keyword, unless the dict itself is the next positional argument.
        named = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD)
        if all(parameter.kind in named for parameter in free):
            return all(isinstance(name, str) for name in examples[-1])
    return all(isinstance(name, str) and name in names for name in examples[-1])


def require_dense(examples: Any) -> None:
    """Refuse tensors that no input of a model holds.

    Raises:
        OptionError: A tensor is nested, quantized or sparse.
    """
    leaves = [leaf for leaf in pytree.tree_leaves(examples) if isinstance(leaf, torch.Tensor)]
    kinds = {
        "nested": any(leaf.is_nested for leaf in leaves),
        "quantized": any(leaf.is_quantized for leaf in leaves),
        "sparse": any(leaf.layout != torch.strided and not leaf.is_nested for leaf in leaves),
    }
    if named := [kind for kind, occurs in kinds.items() if occurs]:
        raise OptionError(
            f"expected dense tensors, got {', '.join(named)} ones",
            where="example_inputs",
            remedy="Pass dense tensors to a module that makes others of them.",
        )


def require_one_device(module: torch.nn.Module, args: Any, kwargs: Any) -> None:
    """Refuse modules and examples whose numbers are not in the memory of the processor.

    Raises:
        OptionError: A tensor is on another device, or on none (`meta`).
    """
    devices = {str(tensor.device) for tensor in (*module.parameters(), *module.buffers())}
    devices |= {str(leaf.device) for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)}
    if others := sorted(devices - {"cpu"}):
        is_empty = "meta" in others
        raise OptionError(
            f"expected tensors on the CPU, got tensors on {', '.join(others)}",
            where="source",
            remedy="Give the tensors memory and values: `module.to_empty(device='cpu')`, then load the weights."
            if is_empty
            else "Move module and examples there: `module.cpu()`.",
        )


def register_dataclasses(value: Any) -> None:
    """Register the dataclasses in nested values with torch, which sees no tensors in others."""
    if isinstance(value, Mapping):
        parts = list(value.values())
    elif isinstance(value, (tuple, list)):
        parts = list(value)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = [getattr(value, field.name) for field in dataclasses.fields(value)]
        if type(value) not in pytree.SUPPORTED_NODES and all(field.init for field in dataclasses.fields(value)):
            torch.export.register_dataclass(type(value))
    else:
        return
    for part in parts:
        register_dataclasses(part)
