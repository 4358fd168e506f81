"""The importer of weights: a folder with ``config.json`` and safetensors, or a GGUF file."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.convert.drawing import caller_examples
from sardonyx.convert.imported import Answers, Call, Feeds, Imported, Options, Size, Way
from sardonyx.convert.weights.architecture import Architecture, from_config
from sardonyx.convert.weights.checkpoint import Checkpoint, FolderCheckpoint, GgufCheckpoint, SafetensorsFiles
from sardonyx.convert.weights.gguf import GgufFile
from sardonyx.convert.weights.gguf_families import from_gguf
from sardonyx.convert.weights.models import has_positions, transformer_model
from sardonyx.convert.weights.witness import transformers_answers
from sardonyx.errors import ModelFileError, OptionError, UnsupportedError

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "generation_config.json",
    "chat_template.jinja",
)
"""Files beside the weights that describe texts, and are carried to the model."""

_LONGEST_CONFIG = 1 << 24


def ways(source: Any, options: Options) -> Sequence[Way]:
    """Return the way to read weights.

    Args:
        source: A folder with ``config.json`` and ``*.safetensors``, a safetensors file beside its ``config.json``, or a
            GGUF file.
        options: See :class:`Options`.

    Raises:
        OptionError: The source is not a path.
        ModelFileError: A file is missing or malformed.
    """
    if not isinstance(source, (str, os.PathLike)):
        raise OptionError(f"expected a path, got {type(source).__name__}", where="source")
    path = Path(source)
    if path.suffix.lower() == ".gguf":
        return (Way("sardonyx", lambda: _read_gguf(path, options)),)
    folder = path if path.is_dir() else path.parent
    return (Way("sardonyx", lambda: _read_folder(folder, path, options)),)


def _read_folder(folder: Path, path: Path, options: Options) -> Imported:
    config = folder / "config.json"
    try:
        if config.stat().st_size > _LONGEST_CONFIG:
            raise ModelFileError(f"a configuration has at most {_LONGEST_CONFIG} bytes", where=str(config))
        fields = json.loads(config.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelFileError(f"cannot be read: {error}", where=str(config)) from error
    architecture = from_config(fields, str(config))
    checkpoint = FolderCheckpoint(SafetensorsFiles(path), architecture.family.prefixes)
    model = transformer_model(architecture, checkpoint)
    unused = [name for name in checkpoint.unused() if not _is_left_out(name, architecture)]
    _refuse_unused(architecture, unused, folder)
    run, reason = transformers_answers(folder, architecture)
    beside = [folder / name for name in TOKENIZER_FILES if (folder / name).is_file()]
    return _imported(architecture, checkpoint, model, options, run, reason, beside)


def _is_left_out(name: str, architecture: Architecture) -> bool:
    """Return True for weights that the model has not: heads of encoders, and the head of logits if tied."""
    if not architecture.family.is_encoder:
        return architecture.is_tied and name.startswith(f"{architecture.family.names.head}.")
    inner = name.split(".")[0] if not name.startswith(architecture.family.prefixes) else name.split(".")[1]
    return inner not in ("embeddings", "encoder", "transformer", "layers")


def _read_gguf(path: Path, options: Options) -> Imported:
    file = GgufFile(path)
    description = from_gguf(file)
    architecture = description.architecture
    checkpoint = GgufCheckpoint(file, architecture, has_pairs=description.has_pairs)
    model = transformer_model(architecture, checkpoint)
    _refuse_unused(architecture, checkpoint.unused(), path)
    run, reason = transformers_answers(path.parent, architecture, path.name, description.config)
    if architecture.family.repeats_cache:
        run, reason = None, "transformers reads the fused rows of Falcon's new architecture in another order"
    return _imported(architecture, checkpoint, model, options, run, reason)


def _refuse_unused(architecture: Architecture, unused: Sequence[str], path: Path) -> None:
    """Raise ``UnsupportedError`` if the file has weights that the family does not know."""
    if unused:
        names = ", ".join(f"'{name}'" for name in unused[:3])
        problem = f"{architecture.name} has no use for {len(unused)} tensors of the file ({names})"
        raise UnsupportedError(problem, where=str(path))


def _imported(
    architecture: Architecture,
    checkpoint: Checkpoint,
    model: ir.Model,
    options: Options,
    run: Callable[[Feeds], Answers] | None,
    reason: str,
    beside: Sequence[Path] = (),
) -> Imported:
    types = architecture.family.names.token_types
    kinds = len(checkpoint.tensor(f"{types}.weight")) if types else 0
    examples: list[Feeds] = [_example(architecture, kinds, *sizes) for sizes in ((2, 5, 3), (1, 1, 4), (3, 4, 0))]
    examples += caller_examples(model, options)
    sizes = {"batch": Size(2), "sequence": Size(5)}
    if not architecture.family.is_encoder:
        sizes["past"] = Size(3, low=0)
    calls = (Call(f"{architecture.name} layer", "converted", count=len(architecture.layers)),)
    return Imported(model, run, reason, sizes=sizes, examples=examples, calls=calls, beside=beside)


def _example(architecture: Architecture, kinds: int, batch: int, length: int, past: int) -> dict[str, Any]:
    """Return drawn inputs; `kinds` is the number of token types."""
    generator = np.random.default_rng(batch)
    feeds: dict[str, Any] = {"input_ids": generator.integers(0, architecture.vocabulary, (batch, length))}
    if architecture.family.is_encoder:
        feeds["attention_mask"] = np.ones((batch, length), np.int64)
        feeds["attention_mask"][0, length // 2 + 1 :] = 0
        if kinds:
            feeds["token_type_ids"] = generator.integers(0, kinds, (batch, length))
        return feeds
    feeds["attention_mask"] = np.ones((batch, past + length), np.int64)
    if has_positions(architecture):
        feeds["position_ids"] = np.tile(np.arange(past, past + length), (batch, 1))
    for i in range(len(architecture.layers)):
        for part, width in zip(("key", "value"), architecture.cache_widths, strict=True):
            shape = (batch, architecture.key_heads, past, width)
            feeds[f"past_key_values.{i}.{part}"] = generator.standard_normal(shape).astype(np.float32)
    return feeds
