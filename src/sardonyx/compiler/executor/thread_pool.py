"""Thread pools shared by sessions: Python threads that wait inside generated code.

A pool starts its threads with its first job, and again in a forked process. Sessions with equal numbers of threads
share a pool.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import logging
import os
import threading
import time
from dataclasses import dataclass

from sardonyx.base.artifact_store import store
from sardonyx.base.call_once import once
from sardonyx.base.cpu_count import allowed, thread_count
from sardonyx.compiler.executor import fork_join
from sardonyx.compiler.executor.fork_join import MASK_BYTES, Field
from sardonyx.compiler.llvm.elf_loader import Code, loaded
from sardonyx.compiler.llvm.parallel_build import objects
from sardonyx.compiler.target.description import host

_log = logging.getLogger(__name__)

SPIN_SECONDS = 100e-6
"""Time in seconds that a worker spins before it sleeps: about the cost of waking a thread."""

PATIENCE_SECONDS = 1e-3
"""Time in seconds that a caller spins for the end of its job before it sleeps.

Workers avoid the caller's processor, and the awaited chunks are in progress: to be woken late costs more than to spin.
If threads must share processors, callers use ``SPIN_SECONDS`` too.
"""

_FAREWELL_SECONDS = 1.0
"""Time in seconds that the end of the process waits for a worker in the middle of a chunk."""


@dataclass(frozen=True)
class Functions:
    """The addresses of the generated functions.

    Attributes:
        parallel: ``void (ptr pool, ptr kernel, ptr arguments, i64 items, i64 grain)``.
        worker: ``void (ptr pool, i64 worker)``; returns when the pool is dismissed.
        dismiss: ``void (ptr pool)``.
        pauses: ``void (i64 count)``.
        futex: True if threads wait on futexes; False for pthread's conditions.
    """

    parallel: int
    worker: int
    dismiss: int
    pauses: int
    futex: bool


@once
def functions(futex: bool) -> Functions:
    """Compile or load the generated functions, until the end of the process."""
    target = host()
    code = loaded(Code(objects([fork_join.text(target, futex=futex)], target, store(), jobs=1)), target)
    # Daemon threads may still execute the code when the interpreter destroys its objects.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(code))
    parallel, worker, dismiss, pauses = (
        code.address(f"sardonyx_{name}") for name in ("parallel", "worker", "dismiss", "pauses")
    )
    return Functions(parallel, worker, dismiss, pauses, futex)


@functools.cache
def _pause_seconds(pauses: int) -> float:
    """Measure the time of one test and one pause: processors differ a hundredfold."""
    count = 500
    call = ctypes.CFUNCTYPE(None, ctypes.c_int64)(pauses)
    seconds = []
    for _ in range(4):
        start = time.perf_counter()
        call(count)
        seconds.append(time.perf_counter() - start)
    return max(min(seconds) / count, 1e-10)


_PARALLEL = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64
)  # fmt: skip
"""Pool, kernel, arguments, items and grain."""


class Pool:
    """Worker threads, and the memory through which generated code gives them jobs.

    Args:
        threads: Number of threads, including the caller.
        code: The generated functions.

    Attributes:
        threads: Number of threads, including the caller.
        address: Address of the memory, see :func:`sardonyx.compiler.executor.fork_join.call_parallel`.
    """

    def __init__(self, threads: int, code: Functions) -> None:
        self.threads = threads
        self._code = code
        self._parallel = _PARALLEL(code.parallel)
        self._workers: list[threading.Thread] = []
        size = Field.THREAD_IDS + 4 * threads
        self._memory = ctypes.create_string_buffer(size + 64)
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._memory))  # Never freed, for the same reason as the code.
        self.address = (ctypes.addressof(self._memory) + 63) // 64 * 64
        self._size = size
        self._start_call = ctypes.CFUNCTYPE(None)(self._start)
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._start_call))
        self._initialize()

    @property
    def workers(self) -> tuple[threading.Thread, ...]:
        """The worker threads that this process started; the caller is not among the workers."""
        return tuple(self._workers)

    def parallel(self, kernel: int, arguments: int, items: int, grain: int) -> None:
        """Execute the work items of a kernel on all threads, from Python.

        Args:
            kernel: Address of the kernel.
            arguments: Address of the kernel's arguments.
            items: Number of work items.
            grain: Items of a chunk, at least 1.
        """
        self._parallel(self.address, kernel, arguments, items, grain)

    def dismiss(self) -> None:
        """End the workers; later jobs are executed by their callers alone."""
        ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self._code.dismiss)(self.address)
        for worker in self._workers:
            worker.join(_FAREWELL_SECONDS)

    def forget(self) -> None:
        """Reset the pool in a forked process, which has no workers and continues no job of other threads."""
        self._workers = []
        self._initialize()

    def _initialize(self) -> None:
        """Write the initial state of the memory: no workers, no job."""
        ctypes.memset(self.address, 0, self._size)
        self._set(Field.PARALLEL, self._code.parallel)
        self._set(Field.THREADS, self.threads)
        self._set(Field.ALONE, self._code.parallel)
        self._set(Field.ALONE_THREADS, 1)
        processors = allowed()
        crowded = len(processors) < self.threads
        pause = _pause_seconds(self._code.pauses)
        self._set(Field.SPINS, int(SPIN_SECONDS / pause))
        self._set(Field.PATIENCE, int((SPIN_SECONDS if crowded else PATIENCE_SECONDS) / pause))
        self._set(Field.START, ctypes.cast(self._start_call, ctypes.c_void_p).value or 0)
        library = ctypes.CDLL(None)
        if self._code.futex:
            self._set_functions(library, {Field.SYSCALL: "syscall", Field.PROCESSOR: "sched_getcpu"})
        else:
            names = {Field.LOCK: "mutex_lock", Field.UNLOCK: "mutex_unlock"}
            names |= {Field.SLEEP: "cond_wait", Field.ROUSE: "cond_broadcast"}
            self._set_functions(library, {field: f"pthread_{name}" for field, name in names.items()})
            library.pthread_mutex_init(ctypes.c_void_p(self.address + Field.MUTEX), None)
            library.pthread_cond_init(ctypes.c_void_p(self.address + Field.CONDITION), None)
        mask = sum(1 << processor for processor in processors if processor < 8 * MASK_BYTES)
        ctypes.memmove(self.address + Field.ALLOWED, mask.to_bytes(MASK_BYTES, "little"), MASK_BYTES)
        self._set(Field.AVOIDED, -1, ctypes.c_int32)

    def _set(self, field: int, value: int, kind: type[ctypes.c_int32 | ctypes.c_int64] = ctypes.c_int64) -> None:
        kind.from_address(self.address + field).value = value

    def _set_functions(self, library: ctypes.CDLL, names: dict[Field, str]) -> None:
        for field, name in names.items():
            self._set(field, ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0)

    def _start(self) -> None:
        """Start the workers; generated code that has claimed the pool calls this before the first job."""
        enter = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(self._code.worker)
        try:
            for number in range(1, self.threads):
                name = f"sardonyx-{self.threads}-{number}"
                worker = threading.Thread(target=enter, args=(self.address, number), name=name, daemon=True)
                worker.start()
                self._workers.append(worker)
                self._set(Field.THREAD_IDS + 4 * number, worker.native_id or 0, ctypes.c_int32)
        except RuntimeError as error:
            # No job needs a particular worker: the started workers and the caller execute all chunks.
            _log.warning("only %d of %d threads could be started: %s", len(self._workers) + 1, self.threads, error)
        self._set(Field.STARTED, 1, ctypes.c_int32)


_pools: dict[int, Pool] = {}
_lock = threading.Lock()


def pool(threads: int | None = None) -> Pool:
    """Return the pool of a number of threads.

    Args:
        threads: Number of threads, including the caller; None for the default of
            :func:`sardonyx.base.cpu_count.thread_count`.

    Raises:
        OptionError: ``threads`` is invalid.
    """
    count = thread_count(threads)
    with _lock:
        if count not in _pools:
            _pools[count] = Pool(count, functions(fork_join.has_futex(host())))
        return _pools[count]


def _dismiss_all() -> None:
    for member in _pools.values():
        member.dismiss()


def _forget_all() -> None:
    for member in _pools.values():
        member.forget()
    _lock.release()


atexit.register(_dismiss_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_forget_all)
