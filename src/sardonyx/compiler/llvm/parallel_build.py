"""Parallel compilation of modules: from the store if present, otherwise on several cores while further modules are
written.
"""

from __future__ import annotations

import heapq
import logging
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from sardonyx.base.artifact_store import Store, digest
from sardonyx.base.cancellation import raise_if_cancelled
from sardonyx.base.cpu_count import thread_count
from sardonyx.compiler.llvm.object_code import compiled, toolchain
from sardonyx.compiler.target.description import Target

_log = logging.getLogger(__name__)


def objects(texts: Sequence[str], target: Target, store: Store, jobs: int | None = None) -> list[bytes]:
    """Return the object code of modules, in order; see :class:`Build`.

    Raises:
        CodeGenerationError: LLVM does not accept a text.
    """
    with Build(target, store, jobs) as build:
        return build.objects([*map(Module.of, texts)])


@dataclass(frozen=True)
class Module:
    """A module whose text is computed only if the module must be compiled.

    Attributes:
        identity: Equal for equal texts alone.
        length: The approximate length of the text.
        text: Returns the text.
    """

    identity: str
    length: int
    text: Callable[[], str]

    @staticmethod
    def of(text: str) -> Module:
        """Return the module of a text."""
        return Module(text, len(text), lambda: text)


def _name(module: Module, target: Target) -> str:
    version = sys.modules["sardonyx"].__version__
    return digest(module.identity, target.triple, target.cpu, target.features, version, toolchain())


class Build:
    """A context that compiles modules as they are added, the longest first, on all available cores.

    Other threads start with the first modules; this thread takes part once it waits for object code. Compiled modules
    are put into the store.

    Args:
        target: The target of the modules.
        store: The store of object code.
        jobs: Number of cores; None for the number of threads to work with.
    """

    def __init__(self, target: Target, store: Store, jobs: int | None = None) -> None:
        self._target = target
        self._store = store
        self._jobs = thread_count(jobs) if jobs else thread_count()
        self._names: dict[str, str] = {}
        self._missing = 0
        self._workers: list[threading.Thread] = []
        self._changed = threading.Condition()  # Guards the following fields.
        self._left: list[tuple[int, str, Module]] = []
        self._running = 0
        self._done: dict[str, bytes] = {}
        self._failed: list[Exception] = []
        self._ended = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        for thread in self._workers:
            thread.join()

    def add(self, module: Module) -> None:
        """Add a module to compile, unless it is compiled already."""
        if module.identity in self._names:
            return
        name = self._names[module.identity] = _name(module, self._target)
        code = self._store.get("object", name)
        with self._changed:
            if code is not None:
                self._done[name] = code
                return
            heapq.heappush(self._left, (-module.length, name, module))
            self._changed.notify()
        self._missing += 1
        if len(self._workers) < min(self._jobs - 1, self._missing - 1):
            thread = threading.Thread(target=self._compile_beside, name="sardonyx-llvm")
            try:
                thread.start()
            except RuntimeError as error:
                _log.info("this thread compiles the modules: %s", error)  # The system permits no further thread.
                self._jobs = 1
            else:
                self._workers.append(thread)

    def objects(self, modules: Sequence[Module]) -> list[bytes]:
        """Return the object code of modules, in order.

        Raises:
            CodeGenerationError: LLVM does not accept a text.
        """
        for module in modules:
            self.add(module)
        while waiting := self._next_here():
            raise_if_cancelled()
            self._finish(waiting[0], compiled(waiting[1].text(), self._target))
        if self._failed:
            raise self._failed[0]
        return [self._done[self._names[module.identity]] for module in modules]

    def _next_here(self) -> tuple[str, Module] | None:
        """Return the next module for this thread; None if all are compiled."""
        with self._changed:
            while self._running and not self._left and not self._failed:
                self._changed.wait()
            return heapq.heappop(self._left)[1:] if self._left and not self._failed else None

    def _next_beside(self) -> tuple[str, Module] | None:
        """Return the next module for another thread; None if no more will come."""
        with self._changed:
            while not (self._left or self._failed or self._ended):
                self._changed.wait()
            if self._failed or self._ended:
                return None
            self._running += 1
            return heapq.heappop(self._left)[1:]

    def _compile_beside(self) -> None:
        while waiting := self._next_beside():
            name, module = waiting
            try:
                self._finish(name, compiled(module.text(), self._target))
            except Exception as error:
                self._failed.append(error)
                return
            finally:
                with self._changed:
                    self._running -= 1
                    self._changed.notify_all()

    def _finish(self, name: str, code: bytes) -> None:
        self._store.put("object", name, code)
        with self._changed:
            self._done[name] = code
