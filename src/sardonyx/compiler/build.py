"""Many modules to object code: from the store where it has them, else on several cores."""

from __future__ import annotations

import collections
import logging
import sys
import threading
from collections.abc import Sequence

from sardonyx.compiler.cache import Store, digest
from sardonyx.compiler.compile_process import CompileProcess, ProcessEnded
from sardonyx.compiler.machine_code import compiled, toolchain
from sardonyx.compiler.processors import thread_count
from sardonyx.compiler.target import Target
from sardonyx.core.abandonment import require_somebody

_log = logging.getLogger(__name__)

WORTH_A_PROCESS = 100_000
"""Characters of text that take as long to compile as a process takes to start, about."""


def objects(texts: Sequence[str], target: Target, store: Store, jobs: int | None = None) -> list[bytes]:
    """The object code of modules, in their order; what had to be compiled is put into the store.

    Args:
        texts: The modules.
        target: What they are for.
        store: Where object code is kept.
        jobs: On how many cores to compile; None for as many as there are threads to work with.

    Raises:
        CodeGenerationError: LLVM does not accept a text.
    """
    names = [_name(text, target) for text in texts]
    done: dict[str, bytes] = {}
    missing: dict[str, str] = {}
    for name, text in zip(names, texts, strict=True):
        if name not in done and name not in missing:
            found = store.get("object", name)
            if found is None:
                missing[name] = text
            else:
                done[name] = found
    if missing:
        done |= _Build(missing, target, store).run(thread_count(jobs) if jobs else thread_count())
    return [done[name] for name in names]


def _name(text: str, target: Target) -> str:
    return digest(text, target.triple, target.cpu, target.features, sys.modules["sardonyx"].__version__, toolchain())


class _Build:
    """Modules that are compiled by this process and others, each by whoever is free, the longest first.

    Args:
        missing: The texts, by name.
        target: What they are for.
        store: Where the object code is put.
    """

    def __init__(self, missing: dict[str, str], target: Target, store: Store) -> None:
        self._target = target
        self._store = store
        self._left = collections.deque(sorted(missing.items(), key=lambda each: len(each[1]), reverse=True))
        self._characters = sum(map(len, missing.values()))
        self._done: dict[str, bytes] = {}
        self._failed: list[Exception] = []

    def run(self, jobs: int) -> dict[str, bytes]:
        others = min(jobs - 1, len(self._left) - 1, self._characters // WORTH_A_PROCESS)
        processes = self._started(others) if others > 0 and sys.executable else []
        threads = [threading.Thread(target=self._compile_by, args=(process,)) for process in processes]
        try:
            for thread in threads:
                thread.start()
            self._compile_here()
            for thread in threads:
                thread.join()
            self._compile_here()  # What a process that ended had been given.
        finally:
            for process in processes:
                process.end()
        if self._failed:
            raise self._failed[0]
        return self._done

    def _started(self, count: int) -> list[CompileProcess]:
        processes: list[CompileProcess] = []
        try:
            for _ in range(count):
                processes.append(CompileProcess(self._target))
        except OSError as error:
            _log.warning("compiling on one core: no process can be started: %s", error)
        return processes

    def _next(self) -> tuple[str, str] | None:
        try:
            return None if self._failed else self._left.popleft()
        except IndexError:
            return None

    def _compile_here(self) -> None:
        while each := self._next():
            require_somebody()
            self._finish(each[0], compiled(each[1], self._target))

    def _compile_by(self, process: CompileProcess) -> None:
        while each := self._next():
            try:
                self._finish(each[0], process.compiled(each[1]))
            except ProcessEnded as error:
                self._left.append(each)
                _log.info("a compiling process ended: %s", error)
                return
            except Exception as error:
                self._failed.append(error)
                return

    def _finish(self, name: str, code: bytes) -> None:
        self._store.put("object", name, code)
        self._done[name] = code
