"""Checkpoints: the state of a training in one safetensors file, written atomically."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from sardonyx.base.artifact_store import write_whole
from sardonyx.errors import ModelFileError
from sardonyx.train.safetensors_files import safetensors_module

FORMAT = 1
_KEY = "sardonyx.training"
_NAME = "training.safetensors"


@dataclass(frozen=True)
class Position:
    """The position of a training in its data.

    Attributes:
        epoch: Completed epochs.
        batch: Batches of the current epoch that are part of the state.
        step: Completed steps.
        history: Rows of the completed epochs.
        loss_total: Sum of the losses of the current epoch.
        waiting: Batches whose gradients are summed and not applied.
        form: Names and shapes of the state, which another training must have to continue this one.
    """

    epoch: int = 0
    batch: int = 0
    step: int = 0
    history: list[dict[str, float]] = field(default_factory=list)
    loss_total: float = 0.0
    form: str = ""
    waiting: int = 0


def checkpoint_file(folder: str | os.PathLike[str], *, make: bool = True) -> Path:
    """Return the file of the checkpoint in a folder, which is made if missing unless ``make`` is False.

    Raises:
        ModelFileError: The folder cannot be made.
    """
    path = Path(folder)
    if make:
        try:
            path.mkdir(parents=True, exist_ok=True)
        except FileExistsError as error:
            raise ModelFileError("expected a folder, got a file.", where=os.fspath(path)) from error
        except OSError as error:
            raise ModelFileError(f"cannot be made: {error.strerror}.", where=os.fspath(path)) from error
    return path / _NAME


def write_checkpoint(path: Path, tensors: Mapping[str, np.ndarray], position: Position) -> None:
    """Write a checkpoint; afterwards the file is complete, or as before.

    Raises:
        MissingDependencyError: safetensors is not installed.
        ModelFileError: The file cannot be written.
    """
    save = safetensors_module().save
    record = {"format": FORMAT, **asdict(position)}
    data = save({name: np.asarray(array, order="C") for name, array in tensors.items()}, {_KEY: json.dumps(record)})
    try:
        write_whole(path, data)
    except OSError as error:
        raise ModelFileError(f"cannot be written: {error.strerror}.", where=os.fspath(path)) from error


def read_checkpoint(path: Path) -> tuple[dict[str, np.ndarray], Position]:
    """Return the tensors and the position of a checkpoint.

    Raises:
        MissingDependencyError: safetensors is not installed.
        ModelFileError: The file is missing, damaged, or of another format.
    """
    module = safetensors_module()
    try:
        data = path.read_bytes()
        tensors = module.load(data)
        length = int.from_bytes(data[:8], "little")
        record: dict[str, Any] = json.loads(json.loads(data[8 : 8 + length])["__metadata__"][_KEY])
    except OSError as error:
        raise ModelFileError(f"cannot be read: {error.strerror}.", where=os.fspath(path)) from error
    except (ValueError, KeyError, TypeError) as error:
        raise ModelFileError("expected a checkpoint of a training.", where=os.fspath(path)) from error
    except Exception as error:
        if type(error).__module__.startswith("safetensors"):
            raise ModelFileError(f"expected a checkpoint: {error}.", where=os.fspath(path)) from error
        raise
    if record.pop("format", None) != FORMAT:
        raise ModelFileError(f"expected a checkpoint of format {FORMAT}.", where=os.fspath(path))
    return tensors, Position(**record)
