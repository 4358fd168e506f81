"""A version that a server answers from: of a model, or of an ensemble of models; and the runs of its queue."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from sardonyx.runtime.session import Session
from sardonyx.serve.models.batching import Batching
from sardonyx.serve.models.interface import Signature, Tensor
from sardonyx.serve.models.reshaping import Reshaping
from sardonyx.serve.observation.statistics import Statistics


class Served(abc.ABC):
    """A version that a server answers from.

    Args:
        name: The name of the model.
        version: The number of the version.

    Attributes:
        name: As passed.
        version: The number of the version, as text.
        statistics: Counts and times of requests.
        retired: True once the version is unloaded; requests that arrived before are still answered.
    """

    def __init__(self, name: str, version: int) -> None:
        self.name = name
        self.version = str(version)
        self.statistics = Statistics()
        self.retired = False

    @property
    @abc.abstractmethod
    def platform(self) -> str:
        """The platform, as the metadata name it."""

    @property
    @abc.abstractmethod
    def session(self) -> Session:
        """The session of the model.

        Raises:
            RequestError: An ensemble has no session of its own.
        """

    @property
    @abc.abstractmethod
    def revision_number(self) -> int:
        """The number of the current revision."""

    @property
    @abc.abstractmethod
    def config(self) -> Mapping[str, Any] | None:
        """The parsed ``config.pbtxt``; None without one."""

    @property
    @abc.abstractmethod
    def labels(self) -> Mapping[str, Sequence[str]]:
        """Names of classes, by output."""

    @property
    @abc.abstractmethod
    def reshapings(self) -> Mapping[str, Reshaping]:
        """Inputs and outputs whose sizes in requests and answers differ from those in the model."""

    @property
    @abc.abstractmethod
    def hidden(self) -> frozenset[str]:
        """Inputs that the server feeds, and outputs that answers do not contain."""

    @property
    @abc.abstractmethod
    def row_limit(self) -> int:
        """The largest number of rows of a request; 0 for no limit."""

    @abc.abstractmethod
    def tensors(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the inputs and the outputs by name, as requests and answers have them."""

    @abc.abstractmethod
    def batching_note(self) -> str:
        """Return ``"sound"``, ``"forced"``, or the reason why requests are not merged."""


class Computation(Protocol):
    """One revision as runs use it: of a model, or of all models of an ensemble.

    Attributes:
        number: The number of the revision.
    """

    number: int

    @property
    def interface(self) -> Signature:
        """The inputs and outputs."""

    def run(self, feeds: Mapping[str, np.ndarray]) -> list[Any]:
        """Run once; return all outputs in order."""


class Computed(Protocol):
    """A model or ensemble as a queue computes it.

    Attributes:
        name: The name of the model.
        version: The number of the version, as text.
        statistics: Counts and times of requests.
    """

    name: str
    version: str
    statistics: Statistics

    @property
    def batching(self) -> Batching:
        """Options of batching and queueing."""

    @property
    def revision(self) -> Computation:
        """The revision that answers runs that begin now."""

    @property
    def max_rows(self) -> int:
        """The largest number of rows of a batch; 1 if requests are not merged."""
