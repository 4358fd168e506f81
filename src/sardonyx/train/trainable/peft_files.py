"""Adapters in the files of PEFT: a folder with ``adapter_config.json`` and ``adapter_model.safetensors``.

PEFT names the tensors by modules of torch: ``base_model.model.MODULE.lora_A.weight`` [rank, inputs] and ``lora_B``
[outputs, rank], ``lora_embedding_A`` and ``lora_embedding_B`` of embeddings, ``lora_magnitude_vector`` of DoRA. Weights
of modules that are trained whole have the names of torch.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
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
_REFUSED = (
    "lora_bias",
    "alpha_pattern",
    "rank_pattern",
    "layer_replication",
    "megatron_config",
    "trainable_token_indices",
)


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
    graph = trainable_form(load(model)).graph
    modules: dict[str, dict[str, np.ndarray]] = {}
    whole: dict[str, np.ndarray] = {}
    for key, array in tensors.items():
        name = key.removeprefix(_PREFIX)
        part = next((part for part in _PARTS if name.endswith("." + part)), None)
        if part is None:
            whole[name.replace(".modules_to_save.default", "")] = array
        else:
            modules.setdefault(name.removesuffix("." + part), {})[_PARTS[part]] = array.astype(np.float32)
    result: dict[str, np.ndarray] = {}
    for module, parts in modules.items():
        weight = _weight(graph, module)
        own = weight.const_value
        if {"a", "b"} - parts.keys() or own is None:
            raise ModelFileError(f"expected both matrices of {module!r}.", where=os.fspath(folder))
        result |= _ours(weight, [int(size) for size in own.shape.numpy()], module, parts)
    for name, array in whole.items():
        value = graph.initializers.get(name)
        if value is None or value.const_value is None:
            raise OptionError(f"the model has no weight {name!r}.", where="adapter")
        result[name] = array
    return Adapter(lora, result)


def write_peft(adapter: Adapter, folder: str | os.PathLike[str], model: Loadable) -> None:
    """Write an adapter as PEFT reads it.

    Args:
        adapter: The adapter.
        folder: The folder, which is made.
        model: The model that the adapter belongs to; its weights have the names of torch's parameters.

    Raises:
        MissingDependencyError: safetensors is not installed.
        ModelFileError: A file cannot be written.
    """
    graph, tensors, modules = trainable_form(load(model)).graph, dict[str, np.ndarray](), list[str]()
    for name in adapter.targets():
        if name in adapter.tensors:
            tensors[_PREFIX + name] = adapter.tensors[name]
            continue
        module = name.removesuffix(".weight")
        weight = graph.initializers[name]
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
            tensors[f"{_PREFIX}{module}.lora_magnitude_vector"] = adapter.tensors[f"{name}.lora_m"].reshape(-1)
        modules.append(module)
    options = adapter.options
    config = {
        "peft_type": "LORA", "r": options.rank, "lora_alpha": options.alpha or options.rank, "lora_dropout": 0.0,
        "bias": "none", "fan_in_fan_out": False, "use_dora": options.dora, "use_rslora": options.rslora,
        "target_modules": modules, "inference_mode": True,
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
    if config.get("bias", "none") != "none":
        raise ModelFileError("adapters with biases are not read.", where=where, remedy="Merge them with PEFT.")
    rank, alpha = config.get("r"), config.get("lora_alpha")
    return LoRA(
        rank, None if alpha is None else float(alpha), dora=bool(config.get("use_dora")),  # type: ignore[arg-type]
        rslora=bool(config.get("use_rslora")),
    )  # fmt: skip


def _weight(graph: ir.Graph, module: str) -> ir.Value:
    """Return the weight of a module, by its name or by the name of a node that reads it."""
    parts = module.split(".")
    for first in range(len(parts)):  # The exported model may be a part of the module of torch.
        value = graph.initializers.get(".".join([*parts[first:], "weight"]))
        if value is not None:
            return value
    for first in range(len(parts)):
        path = "/" + "/".join(parts[first:]) + "/"
        dotted = ".".join(parts[first:])
        candidates = [
            value for value in graph.initializers.values()
            if value.const_value is not None and len(value.const_value.shape) > 1
            and any(path in f"/{node.name}" or dotted in str(node.name) for node, _ in value.uses())
        ]  # fmt: skip
        if len(candidates) == 1:
            return candidates[0]
    raise OptionError(
        f"the model has no weight of the module {module!r}.", where="adapter",
        remedy="Export the model with the names of its parameters, or merge the adapter with PEFT.",
    )  # fmt: skip


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
