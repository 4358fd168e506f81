"""Adapters in the files of PEFT: a folder with ``adapter_config.json`` and ``adapter_model.safetensors``.

PEFT names the tensors by modules of torch: ``base_model.model.MODULE.lora_A.weight`` [rank, inputs] and ``lora_B``
[outputs, rank], ``lora_embedding_A`` and ``lora_embedding_B`` of embeddings, ``lora_magnitude_vector`` of DoRA. Weights
of modules that are trained whole have the names of torch.
"""

from __future__ import annotations

import ast
import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.base.artifact_store import write_whole
from sardonyx.errors import ModelFileError, OptionError
from sardonyx.model import Loadable, load
from sardonyx.train.safetensors_files import safetensors_module
from sardonyx.train.trainable.lora import Adapter, LoRA, summed_axis
from sardonyx.train.trainable.trainable_models import trainable_form

_PREFIX = "base_model.model."
_CONFIG, _TENSORS = "adapter_config.json", "adapter_model.safetensors"
_PARTS = {
    "lora_A.weight": "a", "lora_B.weight": "b", "lora_embedding_A": "a", "lora_embedding_B": "b",
    "lora_magnitude_vector": "m", "lora_magnitude_vector.weight": "m",
}  # fmt: skip
_SCOPES = "pkg.torch.onnx.name_scopes"
"""Metadata key of torch's exporter: a list of dotted names of a node's modules, and of the node last."""

_REFUSED = ("lora_bias", "layer_replication", "megatron_config", "trainable_token_indices")


def read_peft(folder: str | os.PathLike[str], model: Loadable) -> Adapter:
    """Read an adapter that PEFT wrote.

    Args:
        folder: The folder.
        model: The model that the adapter belongs to; weights, or nodes that read them, have the names of modules.

    Raises:
        MissingDependencyError: safetensors is not installed.
        ModelFileError: A file is missing, damaged, or of another kind of adapter.
        OptionError: The model has no weight of a module, or one of another shape.
    """
    config, tensors = _files(Path(folder))
    lora = _options(config, os.fspath(folder))
    ranks, alphas = (_patterns(config, name, os.fspath(folder)) for name in ("rank_pattern", "alpha_pattern"))
    own_ranks, own_alphas = dict[str, int](), dict[str, float]()
    graph = trainable_form(load(model)).graph
    modules: dict[str, dict[str, np.ndarray]] = {}
    whole: dict[str, np.ndarray] = {}
    for key, array in tensors.items():
        name = key.removeprefix(_PREFIX)
        part = next((part for part in _PARTS if name.endswith("." + part)), None)
        if part is None:
            whole[name.replace(".modules_to_save.default", "").replace(".base_layer.", ".")] = array
        else:
            modules.setdefault(name.removesuffix("." + part), {})[_PARTS[part]] = array.astype(np.float32)
    result: dict[str, np.ndarray] = {}
    for module, parts in modules.items():
        weight = _weight(graph, module)
        own = weight.const_value
        if {"a", "b"} - parts.keys() or own is None:
            raise ModelFileError(f"expected both matrices of {module!r}.", where=os.fspath(folder))
        result |= _ours(weight, [int(size) for size in own.shape.numpy()], module, parts)
        if (rank := _matched(ranks, module)) is not None:
            own_ranks[str(weight.name)] = rank
        if (alpha := _matched(alphas, module)) is not None:
            own_alphas[str(weight.name)] = alpha
    for name, array in whole.items():
        value = _named(graph, name)
        if value is None or value.const_value is None:
            raise OptionError(
                f"the model has no weight {name!r}.", where="adapter",
                remedy="Export the model with the names of its parameters, or merge the adapter with PEFT.",
            )  # fmt: skip
        result[str(value.name)] = array
    return Adapter(replace(lora, ranks=own_ranks, alphas=own_alphas), result)


def read_adapter(path: str | os.PathLike[str], model: Loadable) -> Adapter:
    """Read an adapter: a file that :meth:`.Adapter.save` wrote, or a folder of PEFT.

    Raises:
        MissingDependencyError: safetensors is not installed.
        ModelFileError: A file is missing, damaged, or no adapter.
        OptionError: The model has no weight of a module of PEFT, or one of another shape.
    """
    return read_peft(path, model) if Path(path).is_dir() else Adapter.load(path)


def write_peft(adapter: Adapter, folder: str | os.PathLike[str], model: Loadable, *, root: str = "") -> None:
    """Write an adapter as PEFT reads it.

    Args:
        adapter: The adapter.
        folder: The folder, which is made.
        model: The model that the adapter belongs to; its weights, or the nodes that read them, have the names of
            torch's modules.
        root: The beginning of these names that is left out: an exported wrapper has the module as its attribute.

    Raises:
        MissingDependencyError: safetensors is not installed.
        ModelFileError: A file cannot be written.
    """
    graph, tensors, modules = trainable_form(load(model)).graph, dict[str, np.ndarray](), list[str]()
    options = adapter.options
    alpha = float(options.rank if options.alpha is None else options.alpha)
    ranks, alphas, whole = dict[str, int](), dict[str, float](), dict[str, np.ndarray]()
    for name in adapter.targets():
        if name in adapter.tensors:
            whole[name.removeprefix(root)] = adapter.tensors[name]
            continue
        weight = graph.initializers[name]
        module = _module(weight).removeprefix(root)
        a, b = adapter.tensors[f"{name}.lora_a"], adapter.tensors[f"{name}.lora_b"]
        if _is_embedding(weight):
            tensors[f"{_PREFIX}{module}.lora_embedding_A"], tensors[f"{_PREFIX}{module}.lora_embedding_B"] = a.T, b.T
        else:
            down, up = (b, a) if summed_axis(weight) else (a.T, b.T)
            own = weight.const_value
            kernel = [] if own is None else [int(size) for size in own.shape.numpy()][2:]
            if kernel:
                down, up = down.reshape(len(down), -1, *kernel), up.reshape(*up.shape, *[1] * len(kernel))
            tensors[f"{_PREFIX}{module}.lora_A.weight"], tensors[f"{_PREFIX}{module}.lora_B.weight"] = down, up
        if f"{name}.lora_m" in adapter.tensors:
            rank = 0 if weight.const_value is None else len(weight.const_value.shape)
            shape = (1, -1, *[1] * (rank - 2)) if rank > 2 else (-1,)  # Of convolutions as PEFT broadcasts the lengths.
            tensors[f"{_PREFIX}{module}.lora_magnitude_vector"] = adapter.tensors[f"{name}.lora_m"].reshape(shape)
        modules.append(module)
        # A small weight has an adapter of a smaller rank, which PEFT divides by.
        rank, exact = a.shape[1], f"^{re.escape(module)}"
        own_alpha = options.scale_of(name) * (math.sqrt(rank) if options.rslora else rank)
        if rank != options.rank:
            ranks[exact] = rank
        if not math.isclose(own_alpha, alpha):
            alphas[exact] = own_alpha
    for name, array in whole.items():
        module, _, part = name.rpartition(".")
        tensors[_PREFIX + (f"{module}.base_layer.{part}" if module in modules else name)] = array
    biases = "all" if any(name.endswith(".bias") for name in whole) else "none"
    config = {
        "peft_type": "LORA", "r": options.rank, "lora_alpha": alpha, "bias": biases,
        "lora_dropout": options.dropout, "fan_in_fan_out": False, "use_dora": options.dora,
        "use_rslora": options.rslora, "target_modules": modules, "inference_mode": True,
        "rank_pattern": ranks, "alpha_pattern": alphas,
    }  # fmt: skip
    contiguous = {key: np.ascontiguousarray(array) for key, array in tensors.items()}
    target = Path(folder)
    try:
        target.mkdir(parents=True, exist_ok=True)
        write_whole(target / _TENSORS, safetensors_module().save(contiguous, {"format": "pt"}))
        write_whole(target / _CONFIG, json.dumps(config, indent=2).encode())
    except OSError as error:
        raise ModelFileError(f"cannot be written: {error.strerror}.", where=os.fspath(folder)) from error


def _files(folder: Path) -> tuple[Mapping[str, Any], Mapping[str, np.ndarray]]:
    module, path = safetensors_module(), folder / _CONFIG
    try:
        config = json.loads(path.read_text())
        path = folder / _TENSORS
        tensors = module.load(path.read_bytes())
    except OSError as error:
        raise ModelFileError(f"cannot be read: {error.strerror}.", where=os.fspath(path)) from error
    except Exception as error:
        if isinstance(error, ValueError) or type(error).__module__.startswith("safetensors"):
            raise ModelFileError("expected a file of PEFT.", where=os.fspath(path)) from error
        raise
    if not isinstance(config, dict):
        raise ModelFileError("expected a file of PEFT.", where=os.fspath(folder / _CONFIG))
    return config, tensors


def _options(config: Mapping[str, Any], where: str) -> LoRA:
    kind = config.get("peft_type")
    if kind != "LORA":
        raise ModelFileError(f"expected an adapter of the type LORA, got {kind!r}.", where=where)
    for name in _REFUSED:
        if config.get(name):
            raise ModelFileError(f"adapters with `{name}` are not read.", where=where, remedy="Merge them with PEFT.")
    rank, alpha = config.get("r"), config.get("lora_alpha")
    return LoRA(
        rank, None if alpha is None else float(alpha), dora=bool(config.get("use_dora")),  # type: ignore[arg-type]
        rslora=bool(config.get("use_rslora")), dropout=float(config.get("lora_dropout") or 0.0),
    )  # fmt: skip


def _patterns(config: Mapping[str, Any], name: str, where: str) -> list[tuple[re.Pattern[str], Any]]:
    """Return the numbers of modules by pattern, as PEFT matches them: with the end of a module's name."""
    patterns = config.get(name) or {}
    if not isinstance(patterns, Mapping):
        raise ModelFileError(f"expected `{name}` to map modules to numbers, got {patterns!r}.", where=where)
    try:
        return [(re.compile(rf"(.*\.)?({pattern})$"), number) for pattern, number in patterns.items()]
    except re.error as error:
        raise ModelFileError(f"`{name}` has an invalid regular expression: {error}.", where=where) from error


def _matched(patterns: Sequence[tuple[re.Pattern[str], Any]], module: str) -> Any:
    """Return the number of the first pattern that matches a module; None without one."""
    return next((number for pattern, number in patterns if pattern.match(module)), None)


def _weight(graph: ir.Graph, module: str) -> ir.Value:
    """Return the weight of a module, by its name or by the module of a node that reads the weight.

    The exported module may be a part of the module of torch, or a wrapper around it: the names agree at their ends.
    """
    named = _named(graph, f"{module}.weight")
    if named is not None:
        return named
    parts = module.split(".")
    readers = {
        value: [path for node, _ in value.uses() for path in module_paths(node)]
        for value in graph.initializers.values()
        if value.const_value is not None and len(value.const_value.shape) > 1
    }
    for first in range(len(parts)):
        end = "." + ".".join(parts[first:])
        candidates = [value for value, paths in readers.items() if any(f".{path}".endswith(end) for path in paths)]
        if len(candidates) == 1:
            return candidates[0]
    raise OptionError(
        f"the model has no weight of the module {module!r}.", where="adapter",
        remedy="Export the model with the names of its parameters, or merge the adapter with PEFT.",
    )  # fmt: skip


def _named(graph: ir.Graph, name: str) -> ir.Value | None:
    """Return the only weight whose name agrees with the longest end of a name; None without one."""
    parts = name.split(".")
    for first in range(max(1, len(parts) - 1)):
        end = ".".join(parts[first:])
        value = graph.initializers.get(end)
        if value is not None:
            return value
        named = [value for own, value in graph.initializers.items() if own.endswith(f".{end}")]
        if len(named) == 1:
            return named[0]
    return None


def module_paths(node: ir.Node) -> list[str]:
    """Return the dotted name of the module that a node computes, as exporters leave it; empty if unknown.

    The newer exporter of torch writes it to the metadata, the older one to the node's name, ``/layer1/conv/Conv``.
    """
    scopes = node.metadata_props.get(_SCOPES)
    if scopes is not None:
        try:
            listed = ast.literal_eval(scopes)
        except (SyntaxError, ValueError):
            listed = []
        return [str(listed[-2])] if isinstance(listed, list) and len(listed) > 1 else []
    name = str(node.name or "")
    return [name.strip("/").rpartition("/")[0].replace("/", ".")] if "/" in name else [name.rpartition(".")[0]]


def _module(weight: ir.Value) -> str:
    """Return the module of a weight: its own name, or the module of a node that reads an anonymous weight."""
    name = str(weight.name)
    if name.endswith(".weight"):
        return name.removesuffix(".weight")
    paths = {path for node, _ in weight.uses() for path in module_paths(node) if path}
    return min(paths) if len(paths) == 1 else name


def _ours(weight: ir.Value, shape: list[int], module: str, parts: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the tensors of an adapter for a weight, which may be stored transposed."""
    rows, columns = shape[0], int(np.prod(shape[1:]))
    down = parts["a"].reshape(len(parts["a"]), -1)
    up = parts["b"].reshape(len(parts["b"]), -1)
    is_stored_as_in_torch = bool(summed_axis(weight)) and not _is_embedding(weight)
    a, b = (up, down) if is_stored_as_in_torch else (down.T, up.T)
    if (a.shape[0], b.shape[1]) != (rows, columns) or a.shape[1] != b.shape[0]:
        raise OptionError(
            f"expected an adapter of {rows} by {columns}, got {a.shape[0]} by {b.shape[1]}.",
            where=f"adapter, {module}",
        )
    name = str(weight.name)
    result = {f"{name}.lora_a": np.ascontiguousarray(a), f"{name}.lora_b": np.ascontiguousarray(b)}
    if "m" in parts:
        lengths = parts["m"].reshape(-1)
        result[f"{name}.lora_m"] = lengths.reshape(-1, 1) if is_stored_as_in_torch else lengths.reshape(1, -1)
    return result


def _is_embedding(weight: ir.Value) -> bool:
    return any(node.op_type == "Gather" and index == 0 for node, index in weight.uses())
