"""Every work item is done once, whoever does it; forks, several callers and the end of the process change nothing."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import llvmlite.binding as llvm
import numpy as np
import pytest

from sardonyx.base.call_once import once
from sardonyx.compiler.codegen.kernel_builder import Kernel
from sardonyx.compiler.executor import fork_join
from sardonyx.compiler.executor.float_mode import flush_denormals, read_float_mode, set_float_mode
from sardonyx.compiler.executor.fork_join import call_parallel, has_futex
from sardonyx.compiler.executor.thread_pool import Pool, functions, pool
from sardonyx.compiler.llvm.ir_builder import Emitter
from sardonyx.compiler.llvm.object_code import LoadedCode, assembly, compiled, module_text
from sardonyx.compiler.target.description import NAMED, host
from sardonyx.errors import OptionError

WAITS = [True, False] if has_futex(host()) else [False]
"""The ways of waiting that this machine has: by futex, by condition."""


def counting() -> str:
    """Counts how often each item is done, and by which worker, in the array that it is given."""
    kernel = Kernel(host())
    counts, workers = kernel.buffer(), kernel.buffer()
    e = kernel.emitter
    with e.loop("%first", "%last") as item:
        e.let(f"atomicrmw add ptr {e.address(counts, 'i64', item)}, i64 1 monotonic")
        e.store("i64", "%worker", e.address(workers, "i64", item), 8)
    return kernel.definition("counting")


def meeting() -> str:
    """Waits until as many are in it as there are items: each needs a thread of its own."""
    kernel = Kernel(host())
    arrived = kernel.buffer()
    e = kernel.emitter
    with e.loop("%first", "%last"):
        e.let(f"atomicrmw add ptr {arrived}, i64 1 seq_cst")
        look, on = e.fresh("look"), e.fresh("on")
        e.line(f"br label %{look}")
        e.label(look)
        here = e.let(f"load atomic i64, ptr {arrived} seq_cst, align 8")
        goal = e.load("i64", e.address(arrived, "i64", 8), 8)
        e.line(f"br i1 {e.let(f'icmp slt i64 {here}, {goal}')}, label %{look}, label %{on}")
        e.label(on)
    return kernel.definition("meeting")


def halving() -> str:
    """Halves each float."""
    kernel = Kernel(host())
    numbers = kernel.buffer()
    e = kernel.emitter
    with e.loop("%first", "%last") as item:
        at = e.address(numbers, "float", item)
        e.store("float", e.let(f"fmul float {e.load('float', at, 4)}, 0.5"), at, 4)
    return kernel.definition("halving")


def driver() -> tuple[str, list[str]]:
    """A driver of many jobs: ``void (pool, kernel, arguments, items, grain, times, flush)``, and what it declares."""
    e = Emitter()
    mode = read_float_mode(e, host())
    with e.when("%flush"):
        set_float_mode(e, host(), flush_denormals(e, host(), mode))
    with e.loop(0, "%times"):
        call_parallel(e, "%pool", "%kernel", "%arguments", "%items", "%grain")
    set_float_mode(e, host(), mode)
    signature = "ptr %pool, ptr %kernel, ptr %arguments, i64 %items, i64 %grain, i64 %times, i1 %flush"
    return f"define void @driver({signature}) {{\n{e.text()}\n  ret void\n}}", list(e.declarations)


@once
def code() -> LoadedCode:
    text, declared = driver()
    return LoadedCode(
        [compiled(module_text(host(), [counting(), meeting(), halving(), text], declared), host())], host()
    )


def run(pool: Pool, kernel: str, *buffers: np.ndarray, items: int, grain: int, times: int = 1, flush: int = 0) -> None:
    """Run a kernel through the driver."""
    arguments = (ctypes.c_void_p * len(buffers))(*(buffer.ctypes.data for buffer in buffers))
    types = [ctypes.c_void_p] * 3 + [ctypes.c_int64] * 3 + [ctypes.c_bool]
    ctypes.CFUNCTYPE(None, *types)(code().address("driver"))(
        pool.address, code().address(kernel), ctypes.addressof(arguments), items, grain, times, flush
    )


def counted(pool: Pool, items: int, grain: int, times: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """How often each item was done, and by whom last."""
    counts, workers = np.zeros(items, np.int64), np.full(items, -1)
    run(pool, "counting", counts, workers, items=items, grain=grain, times=times)
    return counts, workers


@pytest.fixture(params=WAITS, ids=lambda futex: "futex" if futex else "condition")
def wait(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture(params=[1, 2, 3])
def worker_pool(request: pytest.FixtureRequest, wait: bool) -> Iterator[Pool]:
    pool = Pool(request.param, functions(wait))
    yield pool
    pool.dismiss()


@pytest.mark.parametrize(("items", "grain"), [(0, 1), (1, 1), (1, 5), (2, 1), (7, 3), (8, 4), (97, 1), (1000, 7)])
def test_every_item_is_done_once(worker_pool: Pool, items: int, grain: int) -> None:
    counts, workers = counted(worker_pool, items, grain)
    assert (counts == 1).all()
    assert ((workers >= 0) & (workers < worker_pool.threads)).all()
    if items <= grain:
        assert (workers == 0).all()


def test_many_small_jobs_lose_and_double_nothing(worker_pool: Pool) -> None:
    counts, _ = counted(worker_pool, 16, 1, times=20_000)
    assert (counts == 20_000).all()


def test_workers_wake_from_sleep_for_every_job(worker_pool: Pool) -> None:
    """A job that needs all threads at once would hang if one did not come."""
    for _ in range(20):
        arrived = np.zeros(16, np.int64)
        arrived[8] = worker_pool.threads
        run(worker_pool, "meeting", arrived, items=worker_pool.threads, grain=1)
        assert arrived[0] == worker_pool.threads
        threading.Event().wait(0.002)


def test_the_caller_sleeps_until_a_long_chunk_is_done(wait: bool) -> None:
    """The worker's chunk ends only when Python lets it; the caller does not compute meanwhile."""
    pool = Pool(2, functions(wait))
    arrived = np.zeros(16, np.int64)
    arrived[8] = 3
    ended = threading.Event()

    def call() -> None:
        run(pool, "meeting", arrived, items=2, grain=1)
        ended.set()

    caller = threading.Thread(target=call)
    caller.start()
    assert not ended.wait(0.05)
    arrived[8] = 2
    assert ended.wait(300)
    caller.join()
    pool.dismiss()


def test_several_callers_share_a_pool_and_none_waits_for_another() -> None:
    shared = Pool(2, functions(WAITS[0]))
    results: list[np.ndarray] = []
    callers = [
        threading.Thread(target=lambda: results.append(counted(shared, 64, 1, times=3_000)[0])) for _ in range(4)
    ]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert len(results) == 4
    assert all((counts == 3_000).all() for counts in results)
    shared.dismiss()


def test_a_second_caller_works_alone_while_the_pool_is_taken() -> None:
    shared = Pool(2, functions(WAITS[0]))
    held = np.zeros(16, np.int64)
    held[8] = 3
    holder = threading.Thread(target=lambda: run(shared, "meeting", held, items=2, grain=1))
    holder.start()
    while held[0] < 2:
        threading.Event().wait(0.001)
    counts, workers = counted(shared, 50, 1)
    assert (counts == 1).all() and (workers == 0).all()
    held[8] = 2
    holder.join()
    shared.dismiss()


def test_workers_compute_in_the_callers_mode() -> None:
    """With denormals flushed, half of the smallest normal number is 0 for whoever computes it; then not any more."""
    shared = Pool(2, functions(WAITS[0]))
    smallest = np.finfo(np.float32).smallest_normal
    for flush, expected in ((1, np.float32(0)), (0, smallest / 2), (1, np.float32(0))):
        for _ in range(50):
            numbers = np.full(4096, smallest, np.float32)
            run(shared, "halving", numbers, items=4096, grain=64, flush=flush)
            assert (numbers == expected).all()
    assert np.float32(smallest) * np.float32(0.5) == smallest / 2, "the caller's own mode is as it was"
    shared.dismiss()


def test_a_dismissed_pool_leaves_the_work_to_the_caller(worker_pool: Pool) -> None:
    counted(worker_pool, 64, 1)
    worker_pool.dismiss()
    counts, workers = counted(worker_pool, 64, 1)
    assert (counts == 1).all() and (workers == 0).all()
    assert not [worker for worker in worker_pool.workers if worker.is_alive()]


def test_no_thread_before_there_is_work() -> None:
    lazy = Pool(3, functions(WAITS[0]))
    counted(lazy, 5, 5)
    assert lazy.workers == ()
    counted(lazy, 5, 1)
    assert len(lazy.workers) == 2
    lazy.dismiss()


def test_threads_that_cannot_be_started_are_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    lonely = Pool(2, functions(WAITS[0]))
    monkeypatch.setattr(threading.Thread, "start", refuse)
    counts, workers = counted(lonely, 64, 1)
    assert (counts == 1).all() and (workers == 0).all()


def test_sessions_with_equally_many_threads_share() -> None:
    assert pool(2) is pool(2)
    assert pool(2) is not pool(1)
    assert pool(1).threads == 1
    with pytest.raises(OptionError, match="number of threads"):
        pool(0)


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="the system does not place threads")
def test_the_callers_affinity_is_left_alone_and_workers_leave_its_core() -> None:
    before = os.sched_getaffinity(0)
    placed = Pool(2, functions(WAITS[0]))
    for _ in range(5):
        counted(placed, 64, 1)
        threading.Event().wait(0.01)
    assert os.sched_getaffinity(0) == before
    (worker,) = placed.workers
    if WAITS[0] and len(before) > 1:
        assert worker.native_id is not None
        assert len(before - os.sched_getaffinity(worker.native_id)) == 1
    placed.dismiss()


CHILD = """
import sys, threading
sys.path.insert(0, sys.argv[1])
from test_thread_pool import counted, pool
shared = pool(2)
assert (counted(shared, 64, 1)[0] == 1).all()
"""


def in_process(script: str, *options: str) -> subprocess.CompletedProcess[str]:
    """A script that uses this file, in a process of its own; it must come to its end."""
    here = str(Path(__file__).parent)
    return subprocess.run(
        [sys.executable, *options, "-c", CHILD + script, here], capture_output=True, text=True, timeout=600, check=False
    )


@pytest.mark.parametrize(
    "script",
    [
        "",
        "raise SystemExit(0)",
        "import atexit; atexit.register(lambda: print(counted(shared, 64, 1)[0].sum()))",
        # A thread of the user's goes on calling while the interpreter ends.
        "threading.Thread(target=lambda: [counted(shared, 64, 1) for _ in iter(int, 1)], daemon=True).start()",
    ],
)
def test_the_interpreter_ends_with_workers_waiting(script: str) -> None:
    ended = in_process(script)
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr == ""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system does not fork")
def test_a_forked_process_gets_workers_of_its_own() -> None:
    forked = """
import os, numpy as np
from test_thread_pool import run
for busy in (False, True):
    stop = threading.Event()
    def work():
        while not stop.is_set():
            counted(shared, 64, 1, times=100)
    if busy:
        other = threading.Thread(target=work); other.start()
    for _ in range(5):
        child = os.fork()
        if child == 0:
            assert shared.workers == ()
            arrived = np.zeros(16, np.int64)
            arrived[8] = 2
            run(shared, "meeting", arrived, items=2, grain=1)
            assert (counted(shared, 64, 1)[0] == 1).all()
            os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    if busy:
        stop.set(); other.join()
assert (counted(shared, 64, 1)[0] == 1).all()
"""
    ended = in_process(forked, "-W", "ignore::DeprecationWarning")
    assert ended.returncode == 0, ended.stderr


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="the system does not fork")
def test_a_pool_of_forked_processes() -> None:
    script = """
import multiprocessing
def work(seed):
    return int(counted(shared, 64, 1, times=50)[0].sum())
with multiprocessing.get_context("fork").Pool(3) as processes:
    assert processes.map(work, range(12)) == [64 * 50] * 12
"""
    ended = in_process(script, "-W", "ignore::DeprecationWarning")
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("name", sorted(NAMED))
@pytest.mark.parametrize("futex", [True, False])
def test_the_code_can_be_generated_for_every_target(name: str, futex: bool) -> None:
    written = assembly(fork_join.text(NAMED[name], futex=futex), NAMED[name])
    assert "sardonyx_parallel:" in written
    spin = {"neon": "yield"}.get(name, "pause")
    assert spin in written
    modes = {"neon": ("fpcr",)}.get(name, ("stmxcsr", "ldmxcsr"))
    assert all(mode in written.lower() for mode in modes)


def test_the_code_needs_nothing_from_outside() -> None:
    """So it can be loaded without a linker: what it calls, the pool points to."""
    for futex in (True, False):
        object_code = compiled(fork_join.text(host(), futex=futex), host())
        sections = {
            section.name() or b"" for section in llvm.object_file.ObjectFileRef.from_data(object_code).sections()
        }
        assert b".text" in sections
        assert not {name for name in sections if name.startswith((b".data", b".bss", b".rela.text", b".rodata"))}


def test_idle_workers_cost_no_processor_time() -> None:
    """Workers that have nothing to do sleep."""
    idle = Pool(2, functions(WAITS[0]))
    counted(idle, 64, 1)
    threading.Event().wait(0.05)
    before = time.process_time()
    threading.Event().wait(0.5)
    assert time.process_time() - before < 0.1
    idle.dismiss()
