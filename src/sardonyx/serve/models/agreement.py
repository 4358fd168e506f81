"""The agreement of a configuration with its model: names, element types and sizes of inputs and outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sardonyx.errors import ModelFileError
from sardonyx.runtime.session import Session
from sardonyx.serve.models.interface import Interface, Tensor
from sardonyx.serve.models.triton_config import Config


def require_agreement(config: Config, session: Session, name: str) -> None:
    """Refuse a configuration that contradicts its model, as requests cannot fit both.

    Args:
        config: The configuration.
        session: The session of the model.
        name: The name of the model.

    Raises:
        ModelFileError: A tensor of the configuration is unknown, or has another element type or other sizes.
        UnsupportedError: An input or output of the model is not a tensor.
    """
    if not (config.declared or config.types or config.has_rows or config.optional):
        return
    interface = Interface(session.snapshot(), config.batching.concatenation)
    tensors = interface.inputs | interface.outputs
    computed = interface.computed
    where = f"{name}/config.pbtxt"
    for tensor in {*config.declared, *config.types, *config.optional} - set(computed):
        if tensor not in tensors:
            raise ModelFileError(
                f"the model has no input or output {tensor!r}.", where=where, remedy=f"It has {', '.join(tensors)}."
            )
    for tensor, datatype in config.types.items():
        if tensor in tensors and tensors[tensor].datatype.name != datatype:
            raise ModelFileError(
                f"expected TYPE_{tensors[tensor].datatype.name} of {tensor!r}, got TYPE_{datatype}.", where=where
            )
    for tensor in config.optional:
        if not tensors[tensor].is_optional:
            raise ModelFileError(f"the model has no default for the optional input {tensor!r}.", where=where)
    _require_sizes(config.declared, tensors, where)
    if config.has_rows:
        _require_rows(interface, where)


def _require_sizes(declared: Mapping[str, Sequence[int]], tensors: Mapping[str, Tensor], where: str) -> None:
    for name, sizes in declared.items():
        tensor = tensors.get(name)
        if tensor is None or tensor.shape is None:
            continue
        actual = tensor.sizes
        is_equal = len(sizes) == len(actual) and all(
            size == other or size < 0 or other < 0 for size, other in zip(sizes, actual, strict=True)
        )
        if not is_equal:
            raise ModelFileError(
                f"expected sizes of {name!r} as in the model, {actual}, got {list(sizes)}.", where=where
            )


def _require_rows(interface: Interface, where: str) -> None:
    """Refuse rows of a batch in a model whose first sizes are fixed."""
    for tensor in (*interface.inputs.values(), *interface.outputs.values()):
        if tensor.shape is not None and (not tensor.shape or isinstance(tensor.shape[0], int)):
            raise ModelFileError(
                f"max_batch_size needs an open first size, but {tensor.name!r} has {tensor.sizes}.", where=where,
                remedy="Set max_batch_size to 0, or open the batch of the model.",
            )  # fmt: skip
