"""Triton's model configuration: the text of ``config.pbtxt`` as options of serving."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from sardonyx.errors import ModelFileError, RequestError, UnsupportedError
from sardonyx.serve.models.auxiliary_files import AuxiliaryFiles
from sardonyx.serve.models.batching import Batching, QueuePolicy
from sardonyx.serve.models.concatenation import Concatenation, SizeInput, SizeKind
from sardonyx.serve.models.config_refusals import require_served_fields
from sardonyx.serve.models.ensemble import Ensemble
from sardonyx.serve.models.ensemble_config import ensemble_of
from sardonyx.serve.models.model import Control, State
from sardonyx.serve.models.reshaping import Reshaping
from sardonyx.serve.protocol.datatypes import DATATYPES, Datatype
from sardonyx.serve.protocol.messages import message_class
from sardonyx.serve.protocol.raw_tensors import binary_tensor

MAX_BYTES = 1 << 20
"""Limit of the size of a configuration file."""

_ELEMENTS = 1 << 28
"""Limit of the elements of a tensor that a configuration describes: a state, or an input of a warm-up."""

_FILE_BYTES = 1 << 30
"""Limit of the bytes of a file with such a tensor."""

_JSON_DEPTH = 32
"""Limit of objects and lists inside one another in a configuration."""

_RANK = 64
"""Limit of the axes of such a tensor: that of numpy."""

_CONTROL_KINDS = {0: "start", 1: "ready", 2: "end", 3: "corrid"}


@dataclass(frozen=True)
class Config:
    """The options of a configuration that serving uses.

    Attributes:
        message: The whole configuration, with the names of its fields.
        filename: The name of the model file in a version's folder.
        policy: The served versions: ``("latest", n)``, ``("all",)`` or ``("specific", versions)``.
        batching: Options of batching and queueing.
        states: Tensors that sequences carry on.
        controls: Inputs that tell the position in a sequence.
        idle_seconds: Time after which an idle sequence ends.
        is_stateful: True if requests belong to sequences.
        label_files: The file of class names, by output.
        cached: True if answers are remembered.
        warmup: Inputs of runs before the model is ready.
        declared: Sizes of inputs and outputs as the model has them, -1 for any.
        reshapings: Inputs and outputs whose sizes in requests and answers differ from those in the model.
        types: Element types of inputs and outputs, as far as the configuration names them.
        has_rows: True if the first axis of every input and output counts rows.
        optional: Inputs that requests need not have.
        ensemble: The steps of an ensemble, which has no model file; None for a model.
    """

    message: Mapping[str, Any] = field(default_factory=dict)
    filename: str = "model.onnx"
    policy: tuple[Any, ...] = ("latest", 1)
    batching: Batching = field(default_factory=Batching)
    states: Sequence[State] = ()
    controls: Sequence[Control] = ()
    idle_seconds: float = 60.0
    is_stateful: bool = False
    label_files: Mapping[str, str] = field(default_factory=dict)
    cached: bool = False
    warmup: Sequence[Mapping[str, np.ndarray]] = ()
    declared: Mapping[str, Sequence[int]] = field(default_factory=dict)
    reshapings: Mapping[str, Reshaping] = field(default_factory=dict)
    types: Mapping[str, str] = field(default_factory=dict)
    has_rows: bool = False
    optional: Sequence[str] = ()
    ensemble: Ensemble | None = None

    @property
    def named_file(self) -> str:
        """The model file that the configuration names; empty for none."""
        return str(self.message.get("default_model_filename", ""))


def read_config(files: AuxiliaryFiles, name: str) -> Config:
    """Read the configuration file in the folder of a model.

    Args:
        files: The files of the folder.
        name: The name of the model.

    Raises:
        ModelFileError: The file cannot be read, or contradicts itself or the folder.
        UnsupportedError: The configuration asks for another kind of model.
    """
    from google.protobuf import text_format

    try:
        text = files.read("config.pbtxt", MAX_BYTES, f"{name}/config.pbtxt").decode()
        config = text_format.Parse(text, message_class("ModelConfig")())
    except (ValueError, RecursionError, text_format.ParseError) as error:
        # ValueError: no UTF-8, or a number out of range.
        raise ModelFileError(f"the configuration cannot be read: {error}", where=f"{name}/config.pbtxt") from error
    return parsed_config(config, name, files)


def read_json_config(text: str, name: str, files: AuxiliaryFiles) -> Config:
    """Read a configuration in JSON, as clients write it; raises like :func:`read_config`.

    Args:
        text: The configuration.
        name: The name of the model.
        files: The files that the configuration may name.
    """
    from google.protobuf import json_format

    if len(text) > MAX_BYTES:
        raise ModelFileError(f"expected at most {MAX_BYTES:,} bytes.", where=f"{name}: config")
    try:
        # The parser takes an empty list for an empty object.
        if not text.lstrip().startswith("{"):
            raise ValueError("expected a JSON object.")
        config = json_format.Parse(text, message_class("ModelConfig")(), max_recursion_depth=_JSON_DEPTH)
    except (ValueError, TypeError, RecursionError, json_format.ParseError) as error:
        raise ModelFileError(f"the configuration cannot be read: {error}", where=f"{name}: config") from error
    return parsed_config(config, name, files)


def parsed_config(config: Any, name: str, files: AuxiliaryFiles) -> Config:
    """Return the options of a ``ModelConfig`` message; raises like :func:`read_config`.

    Args:
        config: The message.
        name: The name of the model's folder.
        files: The files that the configuration may name.
    """
    where = f"{name}/config.pbtxt"
    if config.name not in ("", name):
        raise ModelFileError(f"expected the name of the folder, got {config.name!r}.", where=where)
    require_served_fields(config, where)
    config.name = name
    has_rows = config.max_batch_size > 0
    tensors = (*config.input, *config.output)
    reshapings = {part.name: _reshaping(part, has_rows, where) for part in tensors if part.HasField("reshape")}
    sequence = config.sequence_batching if config.HasField("sequence_batching") else None
    labels = {output.name: output.label_filename for output in config.output if output.label_filename}
    datatypes = {part.name: _datatype(part.data_type, part.name) for part in tensors if part.data_type}
    message = _described(config)
    is_ensemble = config.HasField("ensemble_scheduling")
    return Config(
        message=message,
        filename=_plain_name(config.default_model_filename or "model.onnx", where),
        policy=_policy(config.version_policy),
        batching=_batching(config),
        states=() if sequence is None else [_state(state, files) for state in sequence.state],
        controls=() if sequence is None else [_control(part) for part in sequence.control_input],
        idle_seconds=(sequence.max_sequence_idle_microseconds * 1e-6 if sequence else 0) or 60.0,
        is_stateful=sequence is not None,
        label_files={output: _plain_name(file, where) for output, file in labels.items()},
        cached=config.response_cache.enable,
        warmup=[
            {name: reshapings[name].to_inner(x, name) if name in reshapings else x for name, x in run.items()}
            for part in config.model_warmup
            for run in _warmup(part, has_rows, files)
        ],
        declared={
            part.name: (*((-1,) if has_rows else ()), *(part.reshape.shape if part.HasField("reshape") else part.dims))
            for part in tensors
            if part.dims
        },
        reshapings=reshapings,
        types={name: datatype.name for name, datatype in datatypes.items()},
        has_rows=has_rows,
        optional=[part.name for part in config.input if part.optional],
        ensemble=ensemble_of(config, message, datatypes, where) if is_ensemble else None,
    )


def _reshaping(part: Any, has_rows: bool, where: str) -> Reshaping:
    if not part.reshape.shape and not has_rows:
        raise ModelFileError(f"the tensor {part.name!r} without rows cannot be reshaped to no sizes.", where=where)
    if getattr(part, "allow_ragged_batch", False):
        raise UnsupportedError(f"the input {part.name!r} of ragged batches cannot be reshaped.", where=where)
    try:
        return Reshaping(tuple(part.dims), tuple(part.reshape.shape), has_rows)
    except ModelFileError as error:
        raise ModelFileError(error.problem, where=f"{where}: {part.name}") from error


def _described(config: Any) -> dict[str, Any]:
    from google.protobuf.json_format import MessageToDict

    return dict(MessageToDict(config, preserving_proto_field_name=True))


def _plain_name(name: str, where: str) -> str:
    if Path(name).name != name or name in (".", ".."):
        raise ModelFileError(f"expected a file name without a folder, got {name!r}.", where=where)
    return name


def _policy(policy: Any) -> tuple[Any, ...]:
    kind = policy.WhichOneof("policy_choice")
    if kind == "all":
        return ("all",)
    if kind == "specific":
        return ("specific", tuple(policy.specific.versions))
    return ("latest", policy.latest.num_versions or 1)


def _batching(config: Any) -> Batching:
    concatenation = _concatenation(config)
    if concatenation is not None and config.max_batch_size == 0:
        raise ModelFileError("expected max_batch_size above 0 for inputs of ragged batches.", where=config.name)
    if config.max_batch_size == 0 and not config.HasField("dynamic_batching"):
        # The owner says that the first axis is none of the batch; a proof on samples does not overrule this.
        return Batching(mode="off")
    options = config.dynamic_batching
    queue = _queue_policy(options.default_queue_policy)
    return Batching(
        max_rows=config.max_batch_size or 1,
        preferred_rows=tuple(options.preferred_batch_size),
        keeps_order=options.preserve_ordering,
        max_delay_us=options.max_queue_delay_microseconds,
        priority_levels=options.priority_levels,
        default_priority=options.default_priority_level,
        most_rows=config.max_batch_size,
        timeout_us=queue.timeout_us,
        delays=queue.delays,
        allows_timeout=queue.allows_timeout,
        queue_requests=queue.queue_requests,
        level_queues={level: _queue_policy(policy) for level, policy in options.priority_queue_policy.items()},
        ragged="group" if concatenation is None else "concat",
        concatenation=concatenation,
    )


def _queue_policy(policy: Any) -> QueuePolicy:
    return QueuePolicy(
        timeout_us=policy.default_timeout_microseconds,
        delays=policy.timeout_action == _DELAY,
        allows_timeout=policy.allow_timeout_override or not policy.default_timeout_microseconds,
        queue_requests=policy.max_queue_size,
    )


_DELAY = 1
"""The action of a queue that does not refuse a request whose time is over."""

_SIZE_KINDS: Sequence[SizeKind] = ("counts", "ends", "offsets", "longest", "shapes", "flat_shapes")
"""Kinds of inputs that the server computes, by their number in configurations."""


def _concatenation(config: Any) -> Concatenation | None:
    inputs = [part.name for part in config.input if part.allow_ragged_batch]
    sizes: list[SizeInput] = []
    outputs: dict[str, str] = {}
    for part in (*config.batch_input, *config.batch_output):
        if len(part.source_input) != 1 or not part.target_name:
            raise ModelFileError("expected a target and one source of a batch input or output.", where=config.name)
    for part in config.batch_input:
        if not 0 <= part.kind < len(_SIZE_KINDS):
            raise UnsupportedError(f"unknown kind of batch input {part.kind}.", where=config.name)
        sizes += [SizeInput(name, _SIZE_KINDS[part.kind], part.source_input[0]) for name in part.target_name]
    for part in config.batch_output:
        outputs |= dict.fromkeys(part.target_name, part.source_input[0])
    return Concatenation(inputs, sizes, outputs) if inputs or sizes or outputs else None


_TYPES = [
    "BOOL",
    "UINT8",
    "UINT16",
    "UINT32",
    "UINT64",
    "INT8",
    "INT16",
    "INT32",
    "INT64",
    "FP16",
    "FP32",
    "FP64",
    "BYTES",
    "BF16",
]
"""Element types by their number in configurations, from 1."""


def _datatype(number: int, where: str) -> Datatype:
    """Return the element type of a number; FP32 where none is named."""
    if not 0 <= number <= len(_TYPES):
        raise UnsupportedError(f"unknown element type {number}.", where=where)
    return DATATYPES[_TYPES[number - 1] if number else "FP32"]


def _state(state: Any, files: AuxiliaryFiles) -> State:
    if len(state.initial_state) > 1:
        raise ModelFileError("expected one initial state.", where=state.input_name)
    described = state.initial_state[0] if state.initial_state else state
    sizes = list(described.dims)
    if any(size < 0 for size in sizes):
        return State(state.input_name, state.output_name, None)
    _require_elements(sizes, state.input_name)
    if state.initial_state and described.WhichOneof("state_data") == "data_file":
        initial = _file_tensor(files, "initial_state", described.data_file, described, sizes, state.input_name)
    else:
        initial = np.zeros(tuple(sizes), _datatype(described.data_type, state.input_name).dtype)
    return State(state.input_name, state.output_name, initial)


def _control(part: Any) -> Control:
    control = part.control[0]
    pair = (*control.int32_false_true, *control.fp32_false_true, *map(float, control.bool_false_true))
    false, true = pair[:2] if len(pair) >= 2 else (0, 1)
    kind = _CONTROL_KINDS.get(control.kind)
    if kind is None:
        raise UnsupportedError(f"unknown kind of control {control.kind}.", where=part.name)
    return Control(part.name, kind, false, true)


def _require_elements(sizes: Sequence[int], where: str) -> None:
    """Refuse a tensor of a configuration before it is allocated."""
    count = math.prod(sizes)
    if count > _ELEMENTS or len(sizes) > _RANK:
        raise ModelFileError(
            f"expected at most {_ELEMENTS} elements in {_RANK} axes, got {count} in {len(sizes)}.", where=where
        )


def _warmup(part: Any, has_rows: bool, files: AuxiliaryFiles) -> list[Mapping[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    feeds = {}
    rows = (max(part.batch_size, 1),) if has_rows else ()
    for name, spec in part.inputs.items():
        sizes = [max(size, 1) for size in spec.dims]
        shape = (*rows, *sizes)
        _require_elements(shape, name)
        dtype = _datatype(spec.data_type, name).dtype
        if spec.WhichOneof("input_data_type") == "input_data_file":
            row = _file_tensor(files, "warmup", spec.input_data_file, spec, sizes, name)
            feeds[name] = np.broadcast_to(row, shape).copy()
        elif spec.random_data and dtype.kind == "f":
            feeds[name] = rng.random(shape).astype(dtype)
        else:
            feeds[name] = np.full(shape, "", object) if dtype.kind == "O" else np.zeros(shape, dtype)
    return [feeds] * min(max(part.count, 1), 100)


def _file_tensor(
    files: AuxiliaryFiles, folder: str, filename: str, spec: Any, sizes: list[int], where: str
) -> np.ndarray:
    """Return a tensor from a file of raw bytes.

    Args:
        files: The files beside the model.
        folder: The folder of such files, in that of the model.
        filename: The name of the file.
        spec: The description with the element type.
        sizes: The sizes.
        where: The name of the tensor.
    """
    name = _plain_name(filename, where)
    datatype = _datatype(spec.data_type, where)
    contents = files.read(f"{folder}/{name}", _FILE_BYTES, where)
    try:
        return binary_tensor(memoryview(contents), datatype, sizes, where)
    except RequestError as error:
        raise ModelFileError(f"the file of the tensor does not fit: {error.problem}", where=where) from error
