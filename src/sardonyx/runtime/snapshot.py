"""Snapshots: calls of one version of a live model, whatever edits follow."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sardonyx.base.artifact_store import digest
from sardonyx.errors import ResourceError
from sardonyx.runtime.live.model_version import ModelVersion
from sardonyx.runtime.model_info import ValueInfo
from sardonyx.runtime.run_options import RunOptions

if TYPE_CHECKING:
    import onnx_ir as ir


class Snapshot:
    """One version of a session's model; see :meth:`.Session.snapshot`.

    A snapshot holds the weights of its version: drop snapshots of old versions.

    Args:
        version: The version.
        run: Computes one call of a version under the limits of the session.
    """

    __slots__ = ("_run", "_version")

    def __init__(self, version: ModelVersion, run: Callable[..., list[Any]]) -> None:
        self._version = version
        self._run = run

    @property
    def revision(self) -> int:
        """The number of the version within its session; every edit, reload and undo increases the number."""
        return self._version.revision

    @property
    def commit(self) -> int:
        """The number of the latest edit in the session's history that the version contains; 0 without an edit."""
        return self._version.commit

    @property
    def model(self) -> ir.Model:
        """The model; callers must not change it."""
        return self._version.model

    @property
    def inputs(self) -> Sequence[ValueInfo]:
        """The inputs that a call must feed."""
        return self._version.inputs

    @property
    def outputs(self) -> Sequence[ValueInfo]:
        """The outputs of the model."""
        return self._version.outputs

    @property
    def defaults(self) -> Sequence[ValueInfo]:
        """The inputs with a default value, which a call may feed."""
        return self._version.defaults

    def remembered(self, question: str, answer: Callable[[], Any]) -> Any:
        """Return a fact about this version, from the store of compiled programs if a process has found it before.

        Args:
            question: The name of the fact.
            answer: Finds the fact: a value of JSON; None is not stored.
        """
        artifacts = self._version.artifacts()
        if artifacts is None:
            return answer()
        store, key = artifacts[0], digest("fact", question, artifacts[1])
        stored = store.get("fact", key)
        if stored is not None:
            return json.loads(stored)
        fact = answer()
        if fact is not None:
            store.put("fact", key, json.dumps(fact).encode())
        return fact

    def run(
        self, output_names: Sequence[str] | None, feeds: Mapping[str, Any], options: RunOptions | None = None
    ) -> list[Any]:
        """Run this version once; as :meth:`.Session.run`."""
        return self._run(self._version, output_names, feeds, options)

    def run_again(self, feeds: Mapping[str, Any]) -> list[Any]:
        """Run this version on other values of sizes that :meth:`run` has accepted, without the session's limits.

        A server bounds time and memory by :meth:`run` once for all sizes of a call; a model without loops needs the
        same memory for equal sizes.

        Args:
            feeds: The inputs by name.
        """
        native = self._version.native
        if native is not None and (call := native.call) is not None:
            try:
                results = call(feeds)
            except MemoryError as error:
                raise ResourceError("the machine has too little memory for the call.") from error
            if results is not None:
                return results
        return self._run(self._version, None, feeds, None)
