"""Many modules to object code: from the store where it has them, else on several cores, while others are written."""

from __future__ import annotations

import heapq
import logging
import sys
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from sardonyx.base.artifact_store import Store, digest
from sardonyx.base.cancellation import raise_if_cancelled
from sardonyx.base.cpu_count import thread_count
from sardonyx.compiler.llvm.compile_worker import CompileProcess, ProcessEnded
from sardonyx.compiler.llvm.object_code import compiled, toolchain
from sardonyx.compiler.target.description import Target

_log = logging.getLogger(__name__)

WORTH_A_PROCESS = 100_000
"""Characters of text that take as long to compile as a process takes to start, about."""


def objects(texts: Sequence[str], target: Target, store: Store, jobs: int | None = None) -> list[bytes]:
    """The object code of modules, in their order; see :class:`Build`.

    Raises:
        CodeGenerationError: LLVM does not accept a text.
    """
    with Build(target, store, jobs) as build:
        return build.objects(texts)


def _name(text: str, target: Target) -> str:
    return digest(text, target.triple, target.cpu, target.features, sys.modules["sardonyx"].__version__, toolchain())


class Build:
    """Modules that are compiled as they come, the longest first, by whoever is free; it is a context.

    Other processes begin with what is added; this one takes its share when it has nothing else to do, which is when it
    asks for object code. What had to be compiled is put into the store.

    Args:
        target: What the modules are for.
        store: Where object code is kept.
        jobs: On how many cores to compile; None for as many as there are threads to work with.
    """

    def __init__(self, target: Target, store: Store, jobs: int | None = None) -> None:
        self._target = target
        self._store = store
        self._jobs = thread_count(jobs) if jobs else thread_count()
        self._names: dict[str, str] = {}
        self._missing = self._characters = 0
        self._others: list[tuple[CompileProcess, threading.Thread]] = []
        self._changed = threading.Condition()  # Of what follows, which threads share.
        self._left: list[tuple[int, str, str]] = []
        self._under_way = 0
        self._done: dict[str, bytes] = {}
        self._failed: list[Exception] = []
        self._ended = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        for process, _ in self._others:
            process.end()
        for _, thread in self._others:
            thread.join()

    def add(self, text: str) -> None:
        """Have a module compiled, if it is not already."""
        if text in self._names:
            return
        name = self._names[text] = _name(text, self._target)
        found = self._store.get("object", name)
        with self._changed:
            if found is not None:
                self._done[name] = found
                return
            heapq.heappush(self._left, (-len(text), name, text))
            self._changed.notify()
        self._missing += 1
        self._characters += len(text)
        if len(self._others) < min(self._jobs - 1, self._missing - 1, self._characters // WORTH_A_PROCESS):
            self._start_another()

    def objects(self, texts: Sequence[str]) -> list[bytes]:
        """The object code of modules, in their order.

        Raises:
            CodeGenerationError: LLVM does not accept a text.
        """
        for text in texts:
            self.add(text)
        while each := self._next_here():
            raise_if_cancelled()
            self._finish(each[0], compiled(each[1], self._target))
        if self._failed:
            raise self._failed[0]
        return [self._done[self._names[text]] for text in texts]

    def _start_another(self) -> None:
        if not sys.executable:
            return
        try:
            process = CompileProcess(self._target)
        except OSError as error:
            _log.warning("compiling on fewer cores: no process can be started: %s", error)
            self._jobs = 1
            return
        thread = threading.Thread(target=self._compile_by, args=(process,))
        self._others.append((process, thread))
        thread.start()

    def _next_here(self) -> tuple[str, str] | None:
        """What this process compiles next; None when all is done: what a process that ended had comes back."""
        with self._changed:
            while self._under_way and not self._left and not self._failed:
                self._changed.wait()
            return heapq.heappop(self._left)[1:] if self._left and not self._failed else None

    def _next_elsewhere(self) -> tuple[str, str] | None:
        """What another process compiles next; None when nothing more comes."""
        with self._changed:
            while not (self._left or self._failed or self._ended):
                self._changed.wait()
            if self._failed or self._ended:
                return None
            self._under_way += 1
            return heapq.heappop(self._left)[1:]

    def _compile_by(self, process: CompileProcess) -> None:
        while each := self._next_elsewhere():
            name, text = each
            try:
                self._finish(name, process.compiled(text))
            except ProcessEnded as error:
                _log.info("a compiling process ended: %s", error)
                with self._changed:
                    heapq.heappush(self._left, (-len(text), name, text))
                return
            except Exception as error:
                self._failed.append(error)
                return
            finally:
                with self._changed:
                    self._under_way -= 1
                    self._changed.notify_all()

    def _finish(self, name: str, code: bytes) -> None:
        self._store.put("object", name, code)
        with self._changed:
            self._done[name] = code
