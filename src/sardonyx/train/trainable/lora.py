"""Low-rank adapters (Hu et al., 2022; DoRA: Liu et al., 2024): added to weights, saved apart, merged, swapped live."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np
import onnx_ir as ir

from sardonyx.base.artifact_store import write_whole
from sardonyx.base.option_checks import option, require_count, require_number, require_options
from sardonyx.errors import ModelFileError, OptionError
from sardonyx.model import Loadable, load
from sardonyx.model.copying import copy_model
from sardonyx.runtime.session import Session
from sardonyx.train.safetensors_files import safetensors_module
from sardonyx.train.trainable.trainable_models import trainable_form

_KEY = "sardonyx.adapter"


@dataclass(frozen=True)
class LoRA:
    """Adapters of weights: the product of two matrices of a small rank is added to each weight.

    Attributes:
        rank: Columns of the first matrix.
        alpha: The product is multiplied by ``alpha / rank``; the rank by default.
        targets: Patterns of the weights, as ``trainable`` of a trainer; vectors are left out.
        dora: If True, the lengths of the output channels are trained apart from the directions.
        rslora: If True, the product is multiplied by ``alpha / sqrt(rank)`` (Kalajdzievski, 2023).
        dropout: Ratio of the inputs of an adapter that a step leaves out, as ``lora_dropout`` of PEFT; adapters of
            embeddings have none. All targets must then be read by products or convolutions alone, without DoRA.
        ranks: Ranks of some adapters, by name or pattern of weights; the first match counts, as in ``rank_pattern`` of
            PEFT.
        alphas: Values of ``alpha`` of some adapters, likewise.
    """

    rank: int = option(8, least=1)
    alpha: float | None = option(None, kind=float, above=0)
    targets: str | tuple[str, ...] = "*"
    dora: bool = False
    rslora: bool = False
    dropout: float = option(0.0, least=0, below=1)
    ranks: Mapping[str, int] = field(default_factory=dict, hash=False)
    alphas: Mapping[str, float] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        require_options(self, besides=["targets", "ranks", "alphas"])
        for where in ("ranks", "alphas"):
            values = getattr(self, where)
            if not isinstance(values, Mapping) or not all(isinstance(pattern, str) for pattern in values):
                raise OptionError(f"expected numbers by pattern of names, got {values!r}.", where=where)
            for pattern, value in values.items():
                if where == "ranks":
                    require_count(value, f"{where}, {pattern}")
                else:
                    require_number(value, f"{where}, {pattern}", above=0)
            object.__setattr__(self, where, dict(values))
        if self.dropout and self.dora:
            raise OptionError(
                "DoRA adds the adapter to the weight, so that no inputs are left out.", where="dropout",
                remedy="Leave out `dropout`, or `dora`.",
            )  # fmt: skip
        targets = (self.targets,) if isinstance(self.targets, str) else self.targets
        if not isinstance(targets, Sequence) or not all(isinstance(target, str) for target in targets):
            raise OptionError(f"expected patterns of names, got {self.targets!r}.", where="targets")
        if not isinstance(self.targets, str):  # A list has no hash.
            object.__setattr__(self, "targets", tuple(targets))

    def rank_of(self, name: str) -> int:
        """Return the rank of the adapter of a weight."""
        return int(_matched(self.ranks, name, self.rank))

    def scale_of(self, name: str) -> float:
        """Return the factor of the product of a weight."""
        rank = self.rank_of(name)
        alpha = _matched(self.alphas, name, rank if self.alpha is None else self.alpha)
        return alpha / (math.sqrt(rank) if self.rslora else rank)


def _matched(values: Mapping[str, float], name: str, default: float) -> float:
    """Return the value of a name itself, else of the first pattern that matches the name, else the default."""
    if name in values:
        return values[name]
    return next((value for pattern, value in values.items() if fnmatchcase(name, pattern)), default)


@dataclass(frozen=True)
class Adapter:
    """Trained adapters of a model.

    Attributes:
        options: The options.
        tensors: ``NAME.lora_a`` [rows, rank], ``NAME.lora_b`` [rank, columns] and, with DoRA, ``NAME.lora_m`` for each
            weight. A weight is a matrix of its first axis by the rest. Weights that were trained whole have their own
            names.
    """

    options: LoRA
    tensors: Mapping[str, np.ndarray]

    def targets(self) -> list[str]:
        """Return the names of the weights that the adapter changes."""
        names = (name.removesuffix(".lora_a") for name in self.tensors if not name.endswith((".lora_b", ".lora_m")))
        return list(dict.fromkeys(names))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the adapter as safetensors, atomically.

        Raises:
            MissingDependencyError: safetensors is not installed.
            ModelFileError: The file cannot be written.
        """
        metadata = {_KEY: json.dumps(asdict(self.options))}
        data = safetensors_module().save(dict(self.tensors), metadata)
        try:
            write_whole(Path(path), data)
        except OSError as error:
            raise ModelFileError(f"cannot be written: {error.strerror}.", where=os.fspath(path)) from error

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Adapter:
        """Read an adapter.

        Raises:
            MissingDependencyError: safetensors is not installed.
            ModelFileError: The file is missing, damaged, or no adapter.
        """
        module = safetensors_module()
        try:
            data = Path(path).read_bytes()
            tensors = module.load(data)
            length = int.from_bytes(data[:8], "little")
            options = json.loads(json.loads(data[8 : 8 + length])["__metadata__"][_KEY])
            if isinstance(options.get("targets"), list):
                options["targets"] = tuple(options["targets"])
            return cls(LoRA(**options), tensors)
        except OSError as error:
            raise ModelFileError(f"cannot be read: {error.strerror}.", where=os.fspath(path)) from error
        except Exception as error:
            known = (ValueError, KeyError, TypeError, AttributeError, OptionError)
            if isinstance(error, known) or type(error).__module__.startswith("safetensors"):
                raise ModelFileError("expected an adapter of Sardonyx.", where=os.fspath(path)) from error
            raise

    def weights(self, model: Loadable, share: float = 1.0) -> dict[str, np.ndarray]:
        """Return the adapted weights by name, for :meth:`Session.update_weights`.

        Args:
            model: The model that the adapter belongs to.
            share: Factor of the change; 0 gives the weights of the model.

        Raises:
            OptionError: The model has no such weight, or one of another shape.
        """
        return {name: weight + change for name, (weight, change) in self.changes(_weights(model), share).items()}

    def changes(
        self, weights: Mapping[str, np.ndarray], share: float = 1.0
    ) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Return adapted weights without adapter, and their changes.

        Args:
            weights: The weights of the model.
            share: Factor of the changes.

        Raises:
            OptionError: The model has no such weight, or one of another shape.
        """
        if missing := [name for name in self.targets() if name not in weights]:
            raise OptionError(
                f"the model has no weight {missing[0]!r}.", where="adapter",
                remedy="Give the model that the adapter was trained on.",
            )  # fmt: skip
        own = {name: weights[name] for name in self.targets()}
        return {
            name: (weight, (share * (self._adapted(name, weight) - weight)).astype(weight.dtype))
            for name, weight in own.items()
        }

    def _adapted(self, name: str, weight: np.ndarray) -> np.ndarray:
        if name in self.tensors:
            whole = self.tensors[name]
            if whole.shape != weight.shape:
                raise OptionError(
                    f"expected a weight of shape {list(whole.shape)}, got {list(weight.shape)}.",
                    where=f"adapter, {name}",
                )
            return whole.astype(np.float32)
        a, b = self.tensors[f"{name}.lora_a"], self.tensors[f"{name}.lora_b"]
        matrix = weight.reshape(weight.shape[0], -1).astype(np.float32)
        if (a.shape[0], b.shape[1]) != matrix.shape:
            raise OptionError(
                f"expected a weight of {a.shape[0]} by {b.shape[1]}, got {list(matrix.shape)}.",
                where=f"adapter, {name}",
            )
        matrix = matrix + np.float32(self.options.scale_of(name)) * (a @ b)
        if self.options.dora:
            lengths = self.tensors[f"{name}.lora_m"]
            axis = 1 if lengths.shape == (len(matrix), 1) else 0
            matrix = matrix / np.sqrt(np.square(matrix).sum(axis, keepdims=True)) * lengths
        return np.asarray(matrix.reshape(weight.shape))

    def merge(self, model: Loadable, share: float = 1.0) -> ir.Model:
        """Return the model with adapted weights.

        Args:
            model: The model that the adapter belongs to, which is not changed.
            share: Factor of the change.
        """
        return merge_adapters(model, [self], share)


def merge_adapters(model: Loadable, adapters: Sequence[Adapter], share: float = 1.0) -> ir.Model:
    """Return a model whose weights are changed by the sum of the changes of adapters.

    Args:
        model: The model that the adapters belong to, which is not changed.
        adapters: The adapters.
        share: Factor of the changes.

    Raises:
        OptionError: An adapter has a weight that the model lacks, or of another shape; or the factor is not finite.
    """
    require_number(share, "share")
    source = load(model)
    weights = combine([(adapter, share) for adapter in adapters], source)
    form = source if all(name in source.graph.initializers for name in weights) else trainable_form(source)
    result = copy_model(form)
    for name, array in weights.items():
        value = result.graph.initializers[name]
        assert value.const_value is not None
        dtype = value.const_value.dtype
        value.const_value = ir.Tensor(array.astype(dtype.numpy()), dtype=dtype, name=name)
    return result


class LiveAdapters:
    """Several adapters of the model of a session, of which any are active; a change is one edit of the session.

    Args:
        session: The session, which answers from the model without adapters.
        adapters: The adapters by name.

    Attributes:
        active: The factors of the active adapters by name.

    Raises:
        OptionError: An adapter does not fit the model.

    Example:
        >>> live = LiveAdapters(session, {"legal": Adapter.load("legal.safetensors"), "polite": polite})
        >>> live.activate({"legal": 1.0, "polite": 0.5})
    """

    def __init__(self, session: Session, adapters: Mapping[str, Adapter]) -> None:
        self._session, self._adapters = session, dict(adapters)
        weights = _weights(session.model)
        self._changes = {name: adapter.changes(weights) for name, adapter in self._adapters.items()}
        self._plain = {name: weight for changes in self._changes.values() for name, (weight, _) in changes.items()}
        self.active: dict[str, float] = {}

    def activate(self, factors: Mapping[str, float] | Sequence[str]) -> None:
        """Answer with these adapters alone: names, or factors of their changes by name; none restores the model.

        Raises:
            OptionError: A name is unknown; the session answers as before.
        """
        chosen = dict(factors) if isinstance(factors, Mapping) else dict.fromkeys(factors, 1.0)
        unknown = [name for name in chosen if name not in self._adapters]
        if unknown:
            raise OptionError(
                f"no adapter is named {unknown[0]!r}.", where="adapters",
                remedy=f"The adapters are {', '.join(self._adapters)}.",
            )  # fmt: skip
        changes = [(self._changes[name], factor) for name, factor in chosen.items()]
        self._session.update_weights({**self._plain, **_summed(changes)})
        self.active = chosen


def combine(adapters: Sequence[tuple[Adapter, float]], model: Loadable) -> dict[str, np.ndarray]:
    """Return the weights of a model with several adapters, each with a factor of its change.

    Args:
        adapters: Adapters and factors.
        model: The model that the adapters belong to.
    """
    weights = _weights(model)
    return _summed([(adapter.changes(weights), share) for adapter, share in adapters])


Changes = Mapping[str, tuple[np.ndarray, np.ndarray]]


def _summed(changes: Sequence[tuple[Changes, float]]) -> dict[str, np.ndarray]:
    """Return weights with changes of adapters, each with a factor."""
    result: dict[str, np.ndarray] = {}
    for one, share in changes:
        for name, (weight, change) in one.items():
            scaled = change if share == 1 else (share * change).astype(weight.dtype)
            result[name] = result.get(name, weight) + scaled
    return result


def _weights(model: Loadable) -> dict[str, np.ndarray]:
    """Return the weights of a model by name."""
    tensors = {name: value.const_value for name, value in trainable_form(load(model)).graph.initializers.items()}
    return {name: tensor.numpy() for name, tensor in tensors.items() if tensor is not None}


def summed_axis(weight: ir.Value) -> int:
    """Return the axis of the matrix that products sum over: 0 for the right factor of a product, else 1."""
    for node, index in weight.uses():
        if node.op_type in ("MatMul", "FusedMatMul") and index == 1:
            return 0
        if node.op_type in ("Gemm", "FusedGemm") and index == 1:
            return 1 if node.attributes.get_int("transB", 0) else 0
    return 1
