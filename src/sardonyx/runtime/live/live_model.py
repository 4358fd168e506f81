"""Live models: the version that answers calls, and its replacement by edits."""

from __future__ import annotations

import dataclasses
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from sardonyx.base import background_threads
from sardonyx.base.gc_pause import collector_paused
from sardonyx.base.recycled_arrays import release_all
from sardonyx.base.thread_priority import let_calls_pass, run_after_calls
from sardonyx.errors import EditError, SardonyxError, UnsupportedError
from sardonyx.runtime.editing.history import Commit, History
from sardonyx.runtime.live.model_version import ModelVersion
from sardonyx.runtime.live.publication import pass_gate
from sardonyx.runtime.options import SessionOptions

if TYPE_CHECKING:
    import onnx_ir as ir

    from sardonyx.model import Loadable
    from sardonyx.runtime.compiled.compiled_model import NativeModel
    from sardonyx.runtime.editing.draft import Draft
    from sardonyx.runtime.editing.fingerprint import Structure

EditCompile = Literal["wait", "background"]
"""When an edited model is compiled: before it answers calls, or while the interpreter answers them."""

_CAPACITY = 8
"""Compiled models of earlier versions; their common weights are in memory once."""

_PAUSE_SECONDS = 0.05
"""Time to wait for the next edit, so that only the last edit of a series is compiled."""


class LiveModel:
    """The current version of a session's model, replaced as a whole by edits.

    Args:
        loadable: The model.
        options: The options of the session.

    Attributes:
        version: The version that answers calls that begin now.
        options: The options of the session.
        history: The committed edits.
    """

    def __init__(self, loadable: Loadable, options: SessionOptions) -> None:
        self.version = ModelVersion(loadable, options)
        self.options = options
        self.history = History()
        self._editing = threading.Lock()
        self._editor: int | None = None
        self._compiled = CompiledModelCache()
        self._recompiler = Recompiler()

    def begin(self) -> None:
        """Wait until no other thread edits, and exclude edits of other threads.

        Raises:
            EditError: This thread edits already.
        """
        if self._editor == threading.get_ident():
            raise EditError("an edit is open in this thread.", remedy="Make the change with it, or end it first.")
        self._editing.acquire()
        self._editor = threading.get_ident()

    def end(self) -> None:
        """Let other threads edit."""
        self._editor = None
        self._editing.release()

    def commit(self, draft: Draft, compile: EditCompile | None = None) -> None:
        """Validate a draft and let the draft answer from now on; the caller has begun an edit.

        Args:
            draft: The edited model.
            compile: When to compile the model; None: see :meth:`.Session.edit`.

        Raises:
            SardonyxError: The draft cannot be run; the live model is unchanged.
        """
        if not draft.changes:
            return
        before = self.version

        def validated() -> ModelVersion:
            draft.validate()
            return self._version_of(draft.model, compile, None if draft.is_structural else before.native)

        with collector_paused():
            self._replace(validated, self.history.next_number)
            self.history.add(before.stored_model, draft.model, tuple(draft.changes))

    def publish(self, weights: Mapping[str, Any]) -> bool:
        """Let copies of other weights answer from now on, in the code of the current version, as one edit.

        No graph is copied or compared. The result is False, without a change, if an edit of the model must make the
        change: the model is not compiled, the code depends on elements of a weight, or a weight is unknown or
        of another type or shape.

        Args:
            weights: The weights by name.

        Raises:
            EditError: This thread edits already.
        """
        self.begin()
        try:
            before = self.version
            # Without a swap, which the first update by an edit prepares, copies of weights would be made in vain.
            if not weights or before.native is None or not before.native.has_swap or before.structure is None:
                return False
            from sardonyx.runtime.editing.weighted_model import WeightedModel

            weighted = before.weighted or WeightedModel.of(before.model, before.structure)
            replaced = weighted.replaced(weights, before.native.program.copy_arrays)
            let_calls_pass()
            # In this thread: a thread of lower priority would hold the interpreter lock while it waits for a processor.
            version = None if replaced is None else before.reweighted(replaced)
            if version is None:
                return False
            self._put(version, self.history.next_number)
            self.history.add(before.stored_model, replaced, (f"update_weights of {len(weights)}",))
            return True
        finally:
            self.end()

    def reload(self, loadable: Loadable) -> None:
        """Replace the model by another; the current version answers until the other is ready.

        Raises:
            SardonyxError: The other model cannot be loaded or run; the live model is unchanged.
        """
        self.begin()
        try:
            when = "wait" if self.options.compiles else self.options.compile
            options = dataclasses.replace(self.options, compile=when)
            version = run_after_calls(lambda: ModelVersion(loadable, options))
            after = _model_of(version)
            before = _earlier_model_of(self._put(version, self.history.next_number))
            name = os.fspath(loadable) if isinstance(loadable, (str, os.PathLike)) else type(loadable).__name__
            self.history.add(before, after, (f"reload {name}",))
        finally:
            self.end()

    def undo(self) -> Commit:
        """Undo the latest edit.

        Raises:
            EditError: No edit can be undone.
        """
        self.begin()
        try:
            from sardonyx.runtime.editing.weighted_model import WeightedModel

            before = self.history.before()
            current = self.version

            def restored() -> ModelVersion:
                if not isinstance(before, WeightedModel):
                    return self._version_of(before)
                return current.reweighted(before) or self._version_of(before.model)

            self._replace(restored, self.history.earlier_number)
            return self.history.forget()
        finally:
            self.end()

    def renumber(self, revision: int) -> None:
        """Give the current version the number of a revision, and forget the edits before it."""
        self.begin()
        try:
            self.version.revision = revision
            self.version.commit = 0
            self.history = History()
        finally:
            self.end()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until compiling is over; return True if compiled code answers from now on."""
        while True:
            version = self.version
            is_native = version.wait(timeout)
            if version is self.version or timeout is not None:
                return is_native

    def shrink(self) -> None:
        """Free memory that no call uses, and the compiled models of earlier versions."""
        from sardonyx.runtime.compiled.memory_usage import give_back

        self._compiled = CompiledModelCache()
        self.version.shrink()
        release_all()
        give_back()

    def _version_of(
        self, model: ir.Model, compile: EditCompile | None = None, like: NativeModel | None = None
    ) -> ModelVersion:
        """Return a version of a validated model.

        Args:
            model: The model.
            compile: When to compile the model, if compiling takes long.
            like: The compiled model of the same graph with other weights.
        """
        version = ModelVersion.edited(model, self.options)
        if self.options.compiles:
            if not self._compiled.compile(version) and (like is not None or self._waits(compile)):
                version.compile(like)
            version.require_strict_placement()
        return version

    def _replace(self, make: Callable[[], ModelVersion], commit: int) -> None:
        """Let the version of an edit, which is its latest commit, answer from now on."""
        if self.options.compiles:
            self._compiled.add(self.version)
        version = run_after_calls(make)
        self._put(version, commit)
        if not version.compiled:
            self._recompiler.start(lambda: self.version)

    def _put(self, version: ModelVersion, commit: int) -> ModelVersion:
        """Let a version, with its latest commit, answer calls that begin from now on; return the version before."""
        pass_gate()
        before = self.version
        version.revision, version.commit = before.revision + 1, commit
        self.version = version
        return before

    def _waits(self, compile: EditCompile | None) -> bool:
        """Return True if a model is compiled before it answers, so that calls never become slower."""
        if self.options.strict:
            return True
        if compile is not None:
            return compile == "wait"
        return self.options.compile == "wait" or self.version.native is not None


class CompiledModelCache:
    """The compiled models of earlier versions, by the structure of the model, least recently used first.

    An edit that restores an earlier structure reuses its code; other weights are put into this code.
    """

    def __init__(self) -> None:
        self._compiled: OrderedDict[Hashable, tuple[Structure, NativeModel]] = OrderedDict()

    def add(self, version: ModelVersion) -> None:
        """Remember the compiled model of a version, if there is one."""
        native, structure = version.native, version.structure
        if native is not None and structure is not None:
            self._compiled[structure.form] = structure, native
            self._compiled.move_to_end(structure.form)
            while len(self._compiled) > _CAPACITY:
                self._compiled.popitem(last=False)

    def compile(self, version: ModelVersion) -> bool:
        """Compile a version by the code of an equal structure; return False if no such code is cached."""
        structure = version.structure
        entry = None if structure is None else self._compiled.get(structure.form)
        if structure is None or entry is None:
            return False
        cached, native = entry
        if structure.same_weights(cached):
            version.adopt(native)
        else:
            version.compile(native)
        return True


class Recompiler:
    """One thread that compiles edited versions while the interpreter answers, skipping replaced versions.

    The recompiler refers to the live model only while the thread runs, so that a dropped session is freed.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def start(self, current: Callable[[], ModelVersion]) -> None:
        """Compile the current version, now or after the version that is being compiled.

        Args:
            current: Returns the current version; the same function at every call.
        """
        with self._lock:
            if self._thread is None:
                self._thread = background_threads.start("sardonyx-compile", self._compile, current)

    def _compile(self, current: Callable[[], ModelVersion]) -> None:
        while True:
            version = current()
            background_threads.pause(_PAUSE_SECONDS)
            if version is not current():
                continue
            if not version.compiled:
                version.compile_quietly()
                continue
            with self._lock:
                if version is current():
                    self._thread = None
                    return


def _model_of(version: ModelVersion) -> ir.Model | None:
    try:
        return version.model
    except UnsupportedError:  # A compiled file holds no model.
        return None


def _earlier_model_of(version: ModelVersion) -> ir.Model | None:
    """Return the model of a version; None if it cannot be read any more.

    A version from the store has not read its file, which the file of the next version may have replaced.
    """
    try:
        return _model_of(version)
    except SardonyxError:
        return None
