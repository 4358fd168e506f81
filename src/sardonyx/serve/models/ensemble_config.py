"""Ensembles in Triton's model configuration: ``ensemble_scheduling``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sardonyx.errors import ModelFileError, SardonyxError, UnsupportedError
from sardonyx.serve.models.ensemble import Ensemble, EnsembleStep
from sardonyx.serve.models.interface import Tensor
from sardonyx.serve.protocol.datatypes import Datatype

_NEWEST = -1
"""The number of a version that means the newest."""


def ensemble_of(config: Any, message: Mapping[str, Any], types: Mapping[str, Datatype], where: str) -> Ensemble:
    """Return the ensemble of a ``ModelConfig`` message.

    Args:
        config: The message.
        message: The message with the names of its fields.
        types: The element types of inputs and outputs.
        where: The name of the file.

    Raises:
        ModelFileError: The steps are not connected, or a field contradicts an ensemble.
        UnsupportedError: The steps need a service that is missing here.
    """
    refusal = next(_refusals(config, where), None)
    if refusal is not None:
        raise refusal
    rows = (None,) if config.max_batch_size > 0 else ()
    try:
        return Ensemble(
            steps=[
                EnsembleStep(
                    step.model_name, dict(step.input_map), dict(step.output_map),
                    "" if step.model_version == _NEWEST else str(step.model_version),
                )
                for step in config.ensemble_scheduling.step
            ],
            inputs=[part.name for part in config.input],
            outputs=[part.name for part in config.output],
            declared={
                part.name: Tensor(
                    part.name, types[part.name], (*rows, *(size if size >= 0 else None for size in part.dims))
                )
                for part in (*config.input, *config.output)
                if part.name in types
            },
            row_limit=config.max_batch_size,
            cached=config.response_cache.enable,
            config=message,
        )  # fmt: skip
    except ModelFileError as error:
        raise ModelFileError(error.problem, where=where) from error


def _refusals(config: Any, where: str) -> Iterator[SardonyxError]:
    if config.platform not in ("", "ensemble") or config.backend:
        yield ModelFileError(
            f"expected the platform 'ensemble' and no backend, got {config.platform!r} and {config.backend!r}.",
            where=where,
        )  # fmt: skip
    for field in ("instance_group", "model_warmup", "batch_input", "batch_output"):
        if len(getattr(config, field)):
            yield ModelFileError(f"an ensemble has no {field}.", where=where)
    if config.HasField("optimization"):
        yield ModelFileError("an ensemble has no optimization.", where=where)
    for part in (*config.input, *config.output):
        if part.HasField("reshape"):
            yield UnsupportedError(
                f"the tensor {part.name!r} of an ensemble cannot be reshaped.", where=where,
                remedy="Reshape it in the configuration of its model.",
            )  # fmt: skip
    for part in config.input:
        if part.optional or part.allow_ragged_batch:
            yield UnsupportedError(
                f"the input {part.name!r} of an ensemble is neither optional nor ragged.", where=where
            )
    for step in config.ensemble_scheduling.step:
        if step.model_namespace:
            yield UnsupportedError(
                f"the repository has no namespaces, got {step.model_namespace!r} of {step.model_name!r}.", where=where
            )
        if step.model_version < _NEWEST or step.model_version == 0:
            yield ModelFileError(
                f"expected a version above 0, or -1 for the newest, got {step.model_version}.", where=where
            )
