"""The cost of sharing work among threads: ``python benchmarks/fork_join.py``.

A job whose items wait for each other needs all threads at once: its time is the time of a fork and a join, while
workers spin and after they slept. A job of additions shows the gain of further threads by the length of the job.
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import time

import numpy as np
import numpy.typing as npt

from sardonyx.compiler.codegen.kernel_builder import Kernel
from sardonyx.compiler.executor.fork_join import call_parallel
from sardonyx.compiler.executor.thread_pool import Pool, pool
from sardonyx.compiler.llvm.ir_builder import Emitter
from sardonyx.compiler.llvm.object_code import LoadedCode, compiled, module_text
from sardonyx.compiler.target.description import host


def meeting(threads: int) -> str:
    """Return a kernel in which each item waits until the other items of its round have begun."""
    kernel = Kernel(host())
    arrived = kernel.buffer()
    e = kernel.emitter
    with e.loop("%first", "%last"):
        before = e.let(f"atomicrmw add ptr {arrived}, i64 1 seq_cst")
        rounds = e.add(e.div(before, threads), 1)
        look, on = e.fresh("look"), e.fresh("on")
        e.line(f"br label %{look}")
        e.label(look)
        here = e.let(f"load atomic i64, ptr {arrived} seq_cst, align 8")
        e.line(f"br i1 {e.let(f'icmp slt i64 {here}, {e.mul(rounds, threads)}')}, label %{look}, label %{on}")
        e.label(on)
    return kernel.definition("meeting")


def adding() -> str:
    """Return a kernel in which each item is a chain of 100 additions."""
    kernel = Kernel(host())
    sums = kernel.buffer()
    e = kernel.emitter
    with e.loop("%first", "%last") as item:
        at = e.address(sums, "double", item)
        total = e.variable("double", e.load("double", at, 8))
        with e.loop(0, 100):
            total.set(e.let(f"fadd double {total.get()}, 1.0"))
        e.store("double", total.get(), at, 8)
    return kernel.definition("adding")


def driver() -> tuple[str, list[str]]:
    e = Emitter()
    with e.loop(0, "%times"):
        call_parallel(e, "%pool", "%kernel", "%arguments", "%items", "%grain")
    signature = "ptr %pool, ptr %kernel, ptr %arguments, i64 %items, i64 %grain, i64 %times"
    return f"define void @driver({signature}) {{\n{e.text()}\n  ret void\n}}", list(e.declarations)


class Jobs:
    """The kernels, compiled, with their arguments.

    Args:
        threads: Number of threads.
    """

    def __init__(self, threads: int) -> None:
        text, declared = driver()
        definitions = [meeting(threads), adding(), text]
        self._code = LoadedCode([compiled(module_text(host(), definitions, declared), host())], host())
        words = [*[ctypes.c_void_p] * 3, *[ctypes.c_int64] * 3]
        self._run = ctypes.CFUNCTYPE(None, *words)(self._code.address("driver"))
        self._arrived = np.zeros(8, np.int64)
        self._sums = np.zeros(1 << 20)
        self.threads = threads

    def seconds(self, pool: Pool, kernel: str, items: int, grain: int, times: int) -> float:
        """Return the seconds of a job, averaged over consecutive runs."""
        data: npt.NDArray[np.generic] = self._arrived if kernel == "meeting" else self._sums
        arguments = np.array([data.ctypes.data])
        address = self._code.address(kernel)
        begin = time.perf_counter()
        self._run(pool.address, address, arguments.ctypes.data, items, grain, times)
        return (time.perf_counter() - begin) / times


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--threads", type=int, default=2, help="number of threads")
    threads = options.parse_args().threads
    jobs, several, one = Jobs(threads), pool(threads), pool(1)

    hot = [jobs.seconds(several, "meeting", threads, 1, 100) for _ in range(300)]
    least, median = min(hot) * 1e6, statistics.median(hot) * 1e6
    print(f"fork and join, workers spinning: {least:.2f} us minimum, {median:.2f} us median")
    for gap in (0.001, 0.02):
        cold = []
        for _ in range(60):
            time.sleep(gap)
            cold.append(jobs.seconds(several, "meeting", threads, 1, 1))
        name = f"after {gap * 1e3:.0f} ms of sleep"
        print(f"fork and join, {name}: {min(cold) * 1e6:.0f} us minimum, {statistics.median(cold) * 1e6:.0f} us median")
    for items in (8, 32, 128, 1024, 16384):
        grain = -(-items // (4 * threads))
        alone = min(jobs.seconds(one, "adding", items, grain, 20) for _ in range(50))
        shared = min(jobs.seconds(several, "adding", items, grain, 20) for _ in range(50))
        print(f"a job of {alone * 1e6:8.2f} us: {shared * 1e6:8.2f} us on {threads} threads, {alone / shared:.2f} x")


if __name__ == "__main__":
    main()
