"""A live model: the version that answers, and how another takes its place."""

from __future__ import annotations

import dataclasses
import threading

import onnx_ir as ir

from sardonyx.errors import EditError, UnsupportedError
from sardonyx.model.reader import collector_paused
from sardonyx.runtime.draft import Draft
from sardonyx.runtime.history import Commit, History
from sardonyx.runtime.kept import Given
from sardonyx.runtime.known import Known
from sardonyx.runtime.native import NativeModel
from sardonyx.runtime.options import SessionOptions
from sardonyx.runtime.recompile import Recompiler
from sardonyx.runtime.version import Version

_AT_ONCE = 64
"""Nodes of a model that is compiled before it takes the place of the one before; of a larger one a call does not wait
for that."""


class Live:
    """Versions of a model, one after another.

    Args:
        given: The model.
        options: What is asked of the session.

    Attributes:
        version: The one that answers calls that begin now.
        options: What is asked of the session.
        history: What was done.
    """

    def __init__(self, given: Given, options: SessionOptions) -> None:
        self.version = Version(given, options)
        self.options = options
        self.history = History()
        self._editing = threading.Lock()
        self._editor: int | None = None
        self._known = Known()
        self._recompiler = Recompiler(lambda: self.version)

    def begin(self) -> None:
        """Wait until no other thread edits, and keep others from it.

        Raises:
            EditError: This thread edits already.
        """
        if self._editor == threading.get_ident():
            raise EditError("an edit is open in this thread.", remedy="Make the change with it, or end it first.")
        self._editing.acquire()
        self._editor = threading.get_ident()

    def end(self) -> None:
        """Let others edit."""
        self._editor = None
        self._editing.release()

    def commit(self, draft: Draft) -> None:
        """Check a draft and let it answer from now on; the caller edits.

        Raises:
            SardonyxError: It cannot be run; all is as it was.
        """
        if not draft.said:
            return
        with collector_paused():
            draft.settle()
            before = self.version
            self._answer(draft.model, None if draft.structural else before.native)
            self.history.add(before.model, draft.model, tuple(draft.said))

    def reload(self, given: Given) -> None:
        """Let another model answer; the one before does until it is ready.

        Raises:
            SardonyxError: It cannot be loaded or run; all is as it was.
        """
        self.begin()
        try:
            when = "wait" if self.options.compiles else self.options.compile
            version = Version(given, dataclasses.replace(self.options, compile=when))
            before, self.version = self.version, version
            name = given if isinstance(given, str) else type(given).__name__
            self.history.add(_model_of(before), _model_of(version), (f"reload {name}",))
        finally:
            self.end()

    def undo(self) -> Commit:
        """Take the latest edit back.

        Raises:
            EditError: There is none that can be undone.
        """
        self.begin()
        try:
            model, commit = self.history.undo()
            self._answer(model)
            return commit
        finally:
            self.end()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until compiling is over; whether compiled code answers from now on."""
        while True:
            version = self.version
            found = version.wait(timeout)
            if version is self.version or timeout is not None:
                return found

    def shrink(self) -> None:
        """Let go of memory that no call uses, and of compiled models before."""
        self._known = Known()
        self.version.shrink()

    def _answer(self, model: ir.Model, like: NativeModel | None = None) -> None:
        """Let a model answer that was checked.

        Args:
            model: The model.
            like: The same with other weights, compiled.
        """
        version = Version.edited(model, self.options)
        if self.options.compiles:
            self._compile(version, like)
        self.version = version
        if not version.compiled:
            self._recompiler.compile_soon()

    def _compile(self, version: Version, like: NativeModel | None) -> None:
        """Compile a version before it answers, where that is soon done: from one like it, or because it is small."""
        self._known.add(self.version)
        if self._known.compile(version):
            return
        if like is not None or version.options.strict or len(version.model.graph) <= _AT_ONCE:
            version.compile(like)
            version.require_what_is_strict()


def _model_of(version: Version) -> ir.Model | None:
    try:
        return version.model
    except UnsupportedError:  # A compiled file has none.
        return None
