"""Requests to models with a privacy policy: which outputs are released, for how many rows, and their noise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sardonyx.errors import RequestError
from sardonyx.serve.dispatch.endpoint import Endpoint
from sardonyx.serve.models.interface import Interface
from sardonyx.serve.models.soundness import batch_axis_refusal
from sardonyx.serve.protocol.datatypes import shortened
from sardonyx.serve.protocol.requests import Answer, InferRequest, RequestedOutput

if TYPE_CHECKING:
    from sardonyx.privacy.answers import PrivateAnswers


def released_outputs(endpoint: Endpoint, policy: PrivateAnswers, request: InferRequest) -> tuple[list[str], int]:
    """Return the outputs of an answer with noise, and its rows; the request names exactly these outputs from now on.

    A malformed request is refused here, before it costs privacy.

    Raises:
        RequestError: The request does not fit the model, or names an output that is not released.
    """
    interface = endpoint.model.revision.interface
    if endpoint.sequences is not None:
        raise RequestError("a model with sequences has no private answers.", kind="unsupported", where=request.model)
    missing = [name for name in policy.outputs if name not in interface.outputs]
    if missing:
        raise RequestError("the model lacks an output of its privacy policy.", kind="unsupported", where=missing[0])
    for output in request.outputs:
        if output.name not in policy.outputs:
            raise RequestError(f"unknown output {shortened(output.name)}.", where=request.model)
    if len({output.name for output in request.outputs}) != len(request.outputs):
        raise RequestError("an output is requested twice.", where=request.model)
    interface.check(request.inputs)
    request.outputs = request.outputs or [RequestedOutput(name) for name in policy.outputs]
    names = [output.name for output in request.outputs]
    return names, _rows(interface, policy, names, request)


def _rows(interface: Interface, policy: PrivateAnswers, names: list[str], request: InferRequest) -> int:
    """Return the rows of an answer, each of which is charged; 1 for a model without a batch axis.

    Raises:
        RequestError: The client could have more rows computed than are charged.
    """
    if batch_axis_refusal(interface):
        for name in names:
            shape = interface.outputs[name].shape
            if policy.outputs[name].sensitivity is not None and not (shape is not None and _has_fixed_rows(shape)):
                raise RequestError(
                    "the number of rows of the output is open, but the model has no batch axis: a stated sensitivity of"
                    " one row does not bound the answer.",
                    kind="unsupported", where=name,
                )  # fmt: skip
        return 1
    from sardonyx.privacy.noise import MOST_ELEMENTS  # Imported late: few servers have policies.

    counts = {array.shape[0] if array.ndim else 0 for array in request.inputs.values()}
    if len(counts) != 1:
        raise RequestError(f"expected one number of rows, got {sorted(counts)}.", where=request.model)
    rows = counts.pop()
    if not 0 < rows <= MOST_ELEMENTS:
        raise RequestError(
            f"expected 1 to {MOST_ELEMENTS} rows of a model with private answers, got {rows}.", where=request.model
        )
    return rows


def _has_fixed_rows(shape: Sequence[int | str | None]) -> bool:
    return not shape or isinstance(shape[0], int)


def make_noisy(policy: PrivateAnswers, answer: Answer, rows: int) -> None:
    """Replace the outputs of an answer by their noisy forms.

    Raises:
        UnsupportedError: An output has no noisy form.
    """
    for output in answer.outputs:
        output.array = policy.noisy(output.name, output.array, rows)


def described_policy(policy: PrivateAnswers | None) -> dict[str, str]:
    """Return the policy as a parameter of the metadata; nothing without a policy."""
    if policy is None:
        return {}
    outputs = ", ".join(
        f"{name}: {noise.mechanism}, epsilon {noise.epsilon:g} a row" for name, noise in policy.outputs.items()
    )
    budget = policy.budget
    return {"sardonyx_privacy": f"{outputs}; each client: epsilon {budget.epsilon:g}, delta {budget.delta:g}"}
