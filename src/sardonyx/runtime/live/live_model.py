"""A live model: the version that answers, and how another takes its place."""

from __future__ import annotations

import dataclasses
import os
import threading
from collections.abc import Callable
from typing import Literal

import onnx_ir as ir

from sardonyx.base.gc_pause import collector_paused
from sardonyx.base.thread_priority import behind_calls
from sardonyx.errors import EditError, UnsupportedError
from sardonyx.model import Loadable
from sardonyx.runtime.compiled.compiled_model import NativeModel
from sardonyx.runtime.compiled.memory_usage import give_back
from sardonyx.runtime.editing.draft import Draft
from sardonyx.runtime.editing.history import Commit, History
from sardonyx.runtime.live.compiled_model_cache import Known
from sardonyx.runtime.live.model_version import Version
from sardonyx.runtime.live.recompiler import Recompiler
from sardonyx.runtime.options import SessionOptions

When = Literal["wait", "background"]
"""When an edited model is compiled: before it answers, or while numpy answers."""


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

    def __init__(self, given: Loadable, options: SessionOptions) -> None:
        self.version = Version(given, options)
        self.options = options
        self.history = History()
        self._editing = threading.Lock()
        self._editor: int | None = None
        self._known = Known()
        self._recompiler = Recompiler()

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

    def commit(self, draft: Draft, compile: When | None = None) -> None:
        """Check a draft and let it answer from now on; the caller edits.

        Args:
            draft: What is to answer.
            compile: When to compile it; None: see :meth:`Session.edit`.

        Raises:
            SardonyxError: It cannot be run; all is as it was.
        """
        if not draft.said:
            return
        before = self.version

        def settled() -> Version:
            draft.settle()
            return self._made(draft.model, compile, None if draft.structural else before.native)

        with collector_paused():
            self._answer(settled)
            self.history.add(before.model, draft.model, tuple(draft.said))

    def reload(self, given: Loadable) -> None:
        """Let another model answer; the one before does until it is ready.

        Raises:
            SardonyxError: It cannot be loaded or run; all is as it was.
        """
        self.begin()
        try:
            when = "wait" if self.options.compiles else self.options.compile
            options = dataclasses.replace(self.options, compile=when)
            version = behind_calls(lambda: Version(given, options))
            before, self.version = self.version, version
            name = os.fspath(given) if isinstance(given, (str, os.PathLike)) else type(given).__name__
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
            model = self.history.before()
            self._answer(lambda: self._made(model))
            return self.history.forget()
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
        give_back()

    def _made(self, model: ir.Model, compile: When | None = None, like: NativeModel | None = None) -> Version:
        """A version of a model that was checked.

        Args:
            model: The model.
            compile: When to compile it, where that takes long.
            like: The same with other weights, compiled.
        """
        version = Version.edited(model, self.options)
        if self.options.compiles:
            if not self._known.compile(version) and (like is not None or self._waits(compile)):
                version.compile(like)
            version.require_what_is_strict()
        return version

    def _answer(self, make: Callable[[], Version]) -> None:
        """Let a version answer that an edit makes."""
        if self.options.compiles:
            self._known.add(self.version)
        self.version = version = behind_calls(make)
        if not version.compiled:
            self._recompiler.compile_soon(lambda: self.version)

    def _waits(self, compile: When | None) -> bool:
        """Whether a model is compiled before it answers: nothing else keeps calls as fast as they are."""
        if self.options.strict:
            return True
        if compile is not None:
            return compile == "wait"
        return self.options.compile == "wait" or self.version.native is not None


def _model_of(version: Version) -> ir.Model | None:
    try:
        return version.model
    except UnsupportedError:  # A compiled file has none.
        return None
