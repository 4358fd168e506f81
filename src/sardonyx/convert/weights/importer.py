"""The importer of weights: a folder with ``config.json`` and safetensors, or a GGUF file."""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sardonyx.convert.imported import Answers, Call, Feeds, Imported, Options, Size, Way
from sardonyx.convert.weights.architecture import Architecture, from_config, from_gguf
from sardonyx.convert.weights.checkpoint import GgufCheckpoint, SafetensorsFiles
from sardonyx.convert.weights.gguf import GgufFile
from sardonyx.convert.weights.transformer import Transformer
from sardonyx.errors import EvaluationError, ModelFileError, OptionError

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


class _Folder:
    """Weights of safetensors files, with the base model's prefix added where the file lacks it."""

    def __init__(self, files: SafetensorsFiles, family: str) -> None:
        self._files = files
        self._names = files.names()
        self._prefix = {"gpt2": "transformer.", "bert": ""}.get(family, "model.")

    def _name(self, name: str) -> str:
        short = name.removeprefix(self._prefix)
        return name if name in self._names or short not in self._names else short

    def has(self, name: str) -> bool:
        return self._name(name) in self._names

    def tensor(self, name: str) -> Any:
        return self._files.tensor(self._name(name))


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
        return (Way("sardonyx", lambda: _read_gguf(path)),)
    folder = path if path.is_dir() else path.parent
    return (Way("sardonyx", lambda: _read_folder(folder, path)),)


def _read_folder(folder: Path, path: Path) -> Imported:
    config = folder / "config.json"
    try:
        fields = json.loads(config.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelFileError(f"cannot be read: {error}", where=str(config)) from error
    architecture = from_config(fields, str(config))
    checkpoint = _Folder(SafetensorsFiles(path), architecture.family)
    run, reason = _transformers(folder, architecture)
    beside = [folder / name for name in TOKENIZER_FILES if (folder / name).is_file()]
    return _imported(architecture, checkpoint, run, reason, beside)


def _read_gguf(path: Path) -> Imported:
    file = GgufFile(path)
    architecture = from_gguf(file.metadata, file.shapes, str(path))
    run, reason = _transformers(path.parent, architecture, path.name)
    return _imported(architecture, GgufCheckpoint(file, architecture), run, reason)


def _imported(
    architecture: Architecture,
    checkpoint: Any,
    run: Callable[[Feeds], Answers] | None,
    reason: str,
    beside: Sequence[Path] = (),
) -> Imported:
    model = Transformer(architecture, checkpoint).model()
    examples = [_example(architecture, 2, 5, 3), _example(architecture, 1, 1, 4), _example(architecture, 3, 4, 0)]
    if architecture.family == "bert":
        sizes = {"batch": Size(2), "sequence": Size(5)}
    else:
        sizes = {"batch": Size(2), "sequence": Size(5), "past": Size(3, low=0)}
    calls = (Call(f"{architecture.family} layer", "converted", count=architecture.layers),)
    return Imported(model, run, reason, sizes=sizes, examples=examples, calls=calls, beside=beside)


def _example(architecture: Architecture, batch: int, length: int, past: int) -> dict[str, Any]:
    generator = np.random.default_rng(batch)
    ids = generator.integers(0, architecture.vocabulary, (batch, length))
    if architecture.family == "bert":
        mask = np.ones((batch, length), np.int64)
        mask[0, length // 2 + 1 :] = 0
        return {"input_ids": ids, "attention_mask": mask, "token_type_ids": generator.integers(0, 2, (batch, length))}
    feeds: dict[str, Any] = {
        "input_ids": ids,
        "attention_mask": np.ones((batch, past + length), np.int64),
        "position_ids": np.tile(np.arange(past, past + length), (batch, 1)),
    }
    shape = (batch, architecture.key_heads, past, architecture.head_size)
    for i in range(architecture.layers):
        for part in ("key", "value"):
            feeds[f"past_key_values.{i}.{part}"] = generator.standard_normal(shape).astype(np.float32)
    return feeds


def _transformers(
    folder: Path, architecture: Architecture, gguf: str | None = None
) -> tuple[Callable[[Feeds], Answers] | None, str]:
    """Return the answers of transformers, or None and the reason."""
    missing = [name for name in ("torch", "transformers") if importlib.util.find_spec(name) is None]
    if missing:
        return None, f"{' and '.join(missing)} not installed: pip install sardonyx[transformers]"
    import torch
    import transformers

    model: Any = None

    def loaded() -> Any:
        nonlocal model
        if model is None:
            kind = transformers.AutoModel if architecture.family == "bert" else transformers.AutoModelForCausalLM
            options = {"gguf_file": gguf} if gguf else {}
            model = kind.from_pretrained(
                folder, local_files_only=True, dtype=torch.float32, attn_implementation="eager", **options
            ).eval()
        return model

    def run(feeds: Feeds) -> Answers:
        try:
            tensors = {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in feeds.items()}
            with torch.no_grad():
                return _answered(loaded(), tensors, architecture)
        except (RuntimeError, ValueError, IndexError, ImportError, OSError) as error:
            raise EvaluationError(f"transformers refuses: {error}", where=str(folder)) from error

    return run, ""


def _answered(model: Any, tensors: Mapping[str, Any], architecture: Architecture) -> dict[str, Any]:
    if architecture.family == "bert":
        result = model(**tensors)
        answer = {"last_hidden_state": result.last_hidden_state.numpy()}
        if getattr(result, "pooler_output", None) is not None:
            answer["pooler_output"] = result.pooler_output.numpy()
        return answer
    from transformers import DynamicCache

    past = tensors["past_key_values.0.key"].shape[2]
    if tensors["attention_mask"].shape[1] != past + tensors["input_ids"].shape[1]:
        raise ValueError("attention_mask: expected as many columns as past and new tokens")
    cache = DynamicCache()
    if past:
        for i in range(architecture.layers):
            cache.update(tensors[f"past_key_values.{i}.key"], tensors[f"past_key_values.{i}.value"], i)
    result = model(
        input_ids=tensors["input_ids"],
        attention_mask=tensors["attention_mask"],
        position_ids=tensors["position_ids"],
        past_key_values=cache,
        use_cache=True,
    )
    answer = {"logits": result.logits.numpy()}
    for i, layer in enumerate(result.past_key_values.layers):
        answer[f"present.{i}.key"], answer[f"present.{i}.value"] = layer.keys.numpy(), layer.values.numpy()
    return answer
