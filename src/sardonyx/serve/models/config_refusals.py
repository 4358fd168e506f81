"""Fields of a configuration that contradict each other, or that this server cannot follow: refused by name.

Fields that only tune Triton on given hardware (``instance_group``, ``optimization``, ``parameters`` of a backend,
``metric_tags`` and ``model_metrics``) change no answer, and are kept without an effect.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from sardonyx.errors import ModelFileError, SardonyxError, UnsupportedError

_BACKENDS = ("", "onnxruntime", "onnxruntime_onnx", "sardonyx", "sardonyx_onnx")
_RUNTIMES = ("", "libtriton_onnxruntime.so")


def require_served_fields(config: Any, where: str) -> None:
    """Refuse a ``ModelConfig`` message that this server cannot follow.

    Args:
        config: The message.
        where: The name of the file.

    Raises:
        ModelFileError: Fields contradict each other.
        UnsupportedError: The configuration asks for another kind of model, or for a service that is missing here.
    """
    refusal = next(_refusals(config, where), None)
    if refusal is not None:
        raise refusal


def _refusals(config: Any, where: str) -> Iterator[SardonyxError]:
    backend = config.backend or config.platform
    if backend == "ensemble" and not config.HasField("ensemble_scheduling"):
        yield ModelFileError("an ensemble needs ensemble_scheduling.", where=where)
    if backend not in _BACKENDS and not config.HasField("ensemble_scheduling"):
        yield UnsupportedError(f"expected an ONNX model, got the backend {backend!r}.", where=where)
    if config.runtime not in _RUNTIMES:
        yield UnsupportedError(f"expected no runtime of another backend, got {config.runtime!r}.", where=where)
    if config.model_transaction_policy.decoupled:
        yield UnsupportedError("an ONNX model has one answer a request, not a decoupled number.", where=where)
    if config.model_operations.op_library_filename:
        yield UnsupportedError("libraries of custom operators are not loaded (model_operations).", where=where)
    if config.model_repository_agents.agents:
        name = config.model_repository_agents.agents[0].name
        yield UnsupportedError(
            f"the repository agent {name!r} cannot be run.", where=where,
            remedy="Verify the files by a signature: sardonyx verify, and a policy of the server.",
        )  # fmt: skip
    if config.max_batch_size < 0:
        yield ModelFileError(f"expected max_batch_size of at least 0, got {config.max_batch_size}.", where=where)
    policy = config.version_policy
    if policy.HasField("latest") and policy.latest.num_versions == 0:
        yield ModelFileError("expected num_versions of at least 1, got 0.", where=where)
    yield from _tensors(config, where)
    yield from _dynamic_batching(config, where)
    yield from _sequences(config, where)
    for part in config.model_warmup:
        if part.batch_size > config.max_batch_size > 0:
            yield ModelFileError(
                f"expected a warm-up of at most {config.max_batch_size} rows, got {part.batch_size}.", where=where
            )


def _tensors(config: Any, where: str) -> Iterator[SardonyxError]:
    counts = Counter(("input", part.name) for part in config.input)
    counts.update(("output", part.name) for part in config.output)
    for (kind, name), count in counts.items():
        if count > 1:
            yield ModelFileError(f"the {kind} {name!r} is described {count} times.", where=where)
    for part in (*config.input, *config.output):
        if part.is_shape_tensor or part.is_non_linear_format_io:
            yield UnsupportedError(f"the tensor {part.name!r} has a form of TensorRT.", where=where)
    for part in config.input:
        if part.format and len(part.dims) != 3:
            yield ModelFileError(
                f"expected 3 sizes of {part.name!r} for its format, got {list(part.dims)}.", where=where
            )


def _dynamic_batching(config: Any, where: str) -> Iterator[SardonyxError]:
    if not config.HasField("dynamic_batching"):
        return
    options, most = config.dynamic_batching, max(config.max_batch_size, 1)
    for rows in options.preferred_batch_size:
        if not 0 < rows <= most:
            yield ModelFileError(f"expected preferred_batch_size from 1 to {most}, got {rows}.", where=where)
    levels = options.priority_levels
    if levels:
        named = {"default_priority_level": [options.default_priority_level],
                 "priority_queue_policy": list(options.priority_queue_policy)}  # fmt: skip
        for field, numbers in named.items():
            for number in numbers:
                if not 0 < number <= levels:
                    yield ModelFileError(f"expected {field} from 1 to {levels}, got {number}.", where=where)
    elif options.priority_queue_policy:
        yield ModelFileError("priority_queue_policy needs priority_levels.", where=where)
    if options.preserve_ordering:
        policies = (options.default_queue_policy, *options.priority_queue_policy.values())
        if levels > 1 or any(one.default_timeout_microseconds and one.timeout_action == 1 for one in policies):
            yield ModelFileError("preserve_ordering contradicts priorities and delayed requests.", where=where)


def _sequences(config: Any, where: str) -> Iterator[SardonyxError]:
    if not config.HasField("sequence_batching"):
        return
    options = config.sequence_batching
    if config.response_cache.enable:
        yield ModelFileError("answers of sequences cannot be remembered (response_cache).", where=where)
    if options.iterative_sequence:
        yield UnsupportedError("an ONNX model cannot repeat its own requests (iterative_sequence).", where=where)
    for part in options.control_input:
        if len(part.control) != 1:
            yield UnsupportedError(f"expected one control of the input {part.name!r}.", where=where)
