"""The code of a C library around its kernels: instances, threads, and the call.

The memory of an instance holds its state, thread pool and tape, and the arrays that planning writes; the arena is
allocated separately. The tape is a copy of the library's tape, with the address of the instance added to words that
point into the instance. The functions of :mod:`sardonyx.compiler.executor.tape_planner` prepare the tape for sizes, as
in a session: once, or, with open sizes, whenever the caller sets other sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from sardonyx.compiler.aot.c_interface import MESSAGES, Status, Tensor
from sardonyx.compiler.aot.cpu_check import emit_check, needs
from sardonyx.compiler.aot.instance_layout import COUNTS, POOL, TRUE, Address, InTape, Parts, State, planning_rows
from sardonyx.compiler.executor.fork_join import MASK_BYTES, Field
from sardonyx.compiler.executor.tape_planner import FAULT, PlanWord
from sardonyx.compiler.executor.thread_pool import PATIENCE_SECONDS, SPIN_SECONDS
from sardonyx.compiler.llvm.ir_builder import Emitter, Variable
from sardonyx.compiler.llvm.object_code import module_text
from sardonyx.compiler.target.alignment import ALIGNMENT
from sardonyx.compiler.target.description import Target

_GET_THREAD_ID = {"x86_64": 186, "aarch64": 178}
"""Numbers of the Linux system call ``gettid``, by architecture."""

_MONOTONIC = 1
"""``CLOCK_MONOTONIC``."""

_PAUSES = 500
"""Pauses of a time measurement."""


def module(parts: Parts) -> tuple[str, Target]:
    """Return the text of the module and its target.

    The target is every processor of the architecture: this code checks whether the processor can run the kernels.
    """
    baseline = {"x86_64": "x86-64"}.get(parts.target.architecture, "generic")
    tables = _Tables(parts)
    writing = _Functions(parts, tables)
    definitions = [
        writing.function("ptr", "input", "i32 %number", lambda e: writing.tensor(e, "inputs", len(parts.inputs))),
        writing.function("ptr", "output", "i32 %number", lambda e: writing.tensor(e, "outputs", len(parts.outputs))),
        writing.function("i32", "create", "i32 %threads, ptr %out", writing.create),
        writing.function("i32", "run", "ptr %instance, ptr %inputs, ptr %outputs", writing.run),
        writing.function("void", "destroy", "ptr %instance", writing.destroy),
        writing.function("ptr", "message", "i32 %status", writing.message),
        writing.worker(),
        writing.prepare(),
    ]
    if parts.sizes:
        shape = "ptr %instance, i32 %number, ptr %shape, ptr %bytes"
        first = len(parts.inputs)
        definitions += [
            writing.function("i32", "resize", "ptr %instance, ptr %sizes", writing.resize),
            writing.function("i32", "input_shape", shape, lambda e: writing.shape(e, range(first))),
            writing.function("i32", "output_shape", shape, lambda e: writing.shape(e, range(first, len(parts.shapes)))),
        ]
    target = replace(parts.target, cpu=baseline, features="")
    return module_text(target, [*tables.definitions, *definitions], writing.declarations), target


class _Tables:
    """The constants of the module.

    Args:
        parts: The contents of the library.

    Attributes:
        definitions: LLVM definitions of the constants.
        bases: Number of words to which the address of the instance is added.
        feeds: Number of words for addresses of inputs and outputs.
    """

    def __init__(self, parts: Parts) -> None:
        self.definitions = [f"@{TRUE} = internal constant i8 1"]
        self._tensors("inputs", parts.inputs)
        self._tensors("outputs", parts.outputs)
        plan = parts.plan
        words = [f"i64 {word}" for word in plan.words.tolist()]
        symbols: dict[str, None] = {}
        bases: list[tuple[int, int]] = []
        for word, address in parts.links:
            if address.symbol == POOL:
                bases.append((word, parts.pool_offset + address.offset))
            else:
                words[word] = f"i64 {_address_text(address)}"
                symbols[address.symbol] = None
        bases += [(word, parts.tape_offset + 8 * other) for word, other in plan.tape_words.tolist()]
        self._list("tape", "i64", words)
        self.bases = self._rows("bases", bases)
        self.feeds = self._rows("feeds", parts.feeds)
        symbols.update((copy.source.symbol, None) for copy in parts.copies if isinstance(copy.source, Address))
        self._list("start", "i64", [f"i64 {number}" for number in plan.start.tolist()])
        for name, array in planning_rows(plan).items():
            self._rows(f"plan.{name.name}", array.tolist())
        messages = [self._text(f"message.{status.name}", MESSAGES[status]) for status in Status]
        self._list("messages", "ptr", messages)
        self.definitions += [f"@{name} = external hidden global i8" for name in symbols if name != TRUE]

    def _list(self, name: str, type: str, items: Sequence[str]) -> int:
        self.definitions.append(f"@{name} = internal constant [{len(items)} x {type}] [{', '.join(items)}], align 64")
        return len(items)

    def _rows(self, name: str, rows: Sequence[Sequence[int | str]]) -> int:
        self._list(name, "i64", [f"i64 {number}" for row in rows for number in row])
        return len(rows)

    def _text(self, name: str, text: str) -> str:
        data = text.encode()
        escaped = "".join(f"\\{byte:02X}" for byte in data)
        self.definitions.append(f'@{name} = internal constant [{len(data) + 1} x i8] c"{escaped}\\00"')
        return f"ptr @{name}"

    def _tensors(self, name: str, tensors: Sequence[Tensor]) -> None:
        rows = []
        for number, tensor in enumerate(tensors):
            title = self._text(f"{name}.{number}.name", tensor.name)
            shape = [size if isinstance(size, int) else -1 for size in tensor.shape]
            self._list(f"{name}.{number}.shape", "i64", [f"i64 {size}" for size in shape])
            rows.append(
                f"%tensor {{ {title}, i32 {tensor.dtype.value}, i32 {len(tensor.shape)}, ptr @{name}.{number}.shape, "
                f"i64 {tensor.bytes or 0} }}"
            )
        if name == "inputs":
            self.definitions.insert(0, "%tensor = type { ptr, i32, i32, ptr, i64 }")
        self._list(name, "%tensor", rows)


def _address_text(address: Address) -> str:
    return f"ptrtoint (ptr getelementptr (i8, ptr @{address.symbol}, i64 {address.offset}) to i64)"


class _Functions:
    """Writer of the functions of the module.

    Args:
        parts: The contents of the library.
        tables: The constants of the module.

    Attributes:
        declarations: LLVM declarations of called functions.
    """

    def __init__(self, parts: Parts, tables: _Tables) -> None:
        self._parts = parts
        self._tables = tables
        self.declarations: dict[str, None] = {
            "declare i64 @syscall(i64, ...)": None,
            "declare i32 @sched_getcpu()": None,
            "declare void @sardonyx_parallel(ptr, ptr, ptr, i64, i64)": None,
            "declare i64 @measure(ptr)": None,
            "declare void @fill(ptr)": None,
        }

    def function(self, result: str, name: str, parameters: str, write: Callable[[Emitter], None]) -> str:
        """Return the definition of a function declared in the header."""
        e = Emitter()
        write(e)
        self.declarations.update(e.declarations)
        return f"define {result} @{self._parts.prefix}_{name}({parameters}) nounwind {{\n{e.text()}\n}}"

    def tensor(self, e: Emitter, table: str, count: int) -> None:
        """Write ``input`` or ``output``."""
        with e.when(e.let(f"icmp uge i32 %number, {count}")):
            _return(e, "ptr null")
        wide = e.let("zext i32 %number to i64")
        e.line(f"ret ptr {e.address(f'@{table}', '%tensor', wide)}")

    def message(self, e: Emitter) -> None:
        """Write ``message``."""
        known = e.let(f"icmp ult i32 %status, {len(Status)}")
        wide = e.let(f"zext i32 {e.let(f'select i1 {known}, i32 %status, i32 {Status.BAD_ARGUMENT}')} to i64")
        e.line(f"ret ptr {e.load('ptr', e.address('@messages', 'ptr', wide), 8)}")

    # Instances.

    def create(self, e: Emitter) -> None:
        """Write ``create``."""
        parts = self._parts
        _status_when(e, e.let("icmp eq ptr %out, null"), Status.BAD_ARGUMENT)
        e.store("ptr", "null", "%out", 8)
        _status_when(e, e.let(f"icmp ugt i32 %threads, {parts.threads}"), Status.BAD_ARGUMENT)
        if parts.target.architecture == "x86_64":
            _status_when(e, emit_check(e, needs(parts.target)), Status.WRONG_PROCESSOR)
        instance = e.call("ptr", "aligned_alloc", [("i64", str(ALIGNMENT)), ("i64", str(parts.bytes))])
        _status_when(e, e.let(f"icmp eq ptr {instance}, null"), Status.NO_MEMORY)
        e.call("ptr", "memset", [("ptr", instance), ("i32", "0"), ("i64", str(parts.tape_offset))])
        tape = e.address(instance, "i8", parts.tape_offset)
        e.call("ptr", "memcpy", [("ptr", tape), ("ptr", "@tape"), ("i64", str(8 * len(parts.plan.words)))])
        base = e.let(f"ptrtoint ptr {instance} to i64")
        with e.loop(0, self._tables.bases) as i:
            row = e.address("@bases", "i64", e.mul(i, 2))
            word, offset = (e.load("i64", e.address(row, "i64", at), 8) for at in (0, 1))
            e.store("i64", str(e.add(base, offset)), e.address(tape, "i64", word), 8)
        self._initialize_planning(e, instance)
        pool = e.address(instance, "i8", parts.pool_offset)
        self._initialize_pool(e, pool)
        started = self._start_threads(e, instance, pool)
        with e.when(e.let(f"xor i1 {started}, true")):
            e.line(f"call void @{parts.prefix}_destroy(ptr {instance})")
            _return(e, f"i32 {Status.NO_THREADS}")
        if not parts.sizes:
            status = e.let(f"call i32 @prepare(ptr {instance})")
            with e.when(e.let(f"icmp ne i32 {status}, {Status.OK}")):
                e.line(f"call void @{parts.prefix}_destroy(ptr {instance})")
                _return(e, f"i32 {status}")
        e.store("ptr", instance, "%out", 8)
        e.line(f"ret i32 {Status.OK}")

    def _initialize_planning(self, e: Emitter, instance: str) -> None:
        """Initialize the table and the arrays of planning."""
        parts, plan = self._parts, self._parts.plan
        table = e.address(instance, "i8", parts.table_offset)
        e.call("ptr", "memset", [("ptr", table), ("i32", "0"), ("i64", str(8 * len(PlanWord)))])
        for word, rows in planning_rows(plan).items():
            e.store("ptr", f"@plan.{word.name}", e.address(table, "i64", int(word)), 8)
            if word in COUNTS:
                e.store("i64", str(len(rows)), e.address(table, "i64", int(COUNTS[word])), 8)
        for word, at in {**parts.planner_offsets, PlanWord.TAPE: parts.tape_offset}.items():
            e.store("ptr", e.address(instance, "i8", at), e.address(table, "i64", int(word)), 8)
        registers = e.address(instance, "i8", parts.planner_offsets[PlanWord.REGISTERS])
        e.call("ptr", "memcpy", [("ptr", registers), ("ptr", "@start"), ("i64", str(8 * len(plan.start)))])
        order = e.address(instance, "i8", parts.planner_offsets[PlanWord.ORDER])
        with e.loop(0, len(plan.buffers)) as i:
            e.store("i64", i, e.address(order, "i64", i), 8)

    def _initialize_pool(self, e: Emitter, pool: str) -> None:
        """Initialize the thread pool, except the number of threads."""

        def put(field: Field, type: str, value: str) -> None:
            e.store(type, value, e.address(pool, "i8", field), 4 if type == "i32" else 8)

        put(Field.PARALLEL, "ptr", "@sardonyx_parallel")
        put(Field.ALONE, "ptr", "@sardonyx_parallel")
        put(Field.ALONE_THREADS, "i64", "1")
        put(Field.SYSCALL, "ptr", "@syscall")
        put(Field.PROCESSOR, "ptr", "@sched_getcpu")
        put(Field.STARTED, "i32", "1")
        put(Field.AVOIDED, "i32", "-1")
        mask = e.address(pool, "i8", Field.ALLOWED)
        e.call("i32", "sched_getaffinity", [("i32", "0"), ("i64", str(MASK_BYTES)), ("ptr", mask)])
        nanoseconds = self._measure_pauses(e)
        for field, seconds in ((Field.SPINS, SPIN_SECONDS), (Field.PATIENCE, PATIENCE_SECONDS)):
            put(field, "i64", e.let(f"udiv i64 {round(seconds * 1e9) * _PAUSES}, {nanoseconds}"))

    def _measure_pauses(self, e: Emitter) -> str:
        """Measure ``_PAUSES`` pauses in nanoseconds, at least 1: processors differ by a factor of a hundred."""
        least = e.variable("i64", str(1 << 40))
        stamps = e.array("i64", 4, 8)

        def clock(at: int) -> str:
            stamp = e.address(stamps, "i64", at)
            e.call("i32", "clock_gettime", [("i32", str(_MONOTONIC)), ("ptr", stamp)])
            seconds, rest = (e.load("i64", e.address(stamp, "i64", word), 8) for word in (0, 1))
            return str(e.add(e.mul(seconds, 1_000_000_000), rest))

        with e.loop(0, 4):
            before = clock(0)
            e.call("void", "sardonyx_pauses", [("i64", str(_PAUSES))])
            least.set(str(e.least(least.get(), e.sub(clock(2), before))))
        return str(e.most(least.get(), 1))

    def _start_threads(self, e: Emitter, instance: str, pool: str) -> str:
        """Start the threads; return an ``i1`` that is true on success."""
        threads = e.variable("i64", e.let("zext i32 %threads to i64"))
        with e.when(e.let("icmp eq i32 %threads, 0")):
            threads.set(str(e.most(1, e.least(self._parts.threads, self._count_processors(e, pool)))))
        count = threads.get()
        started = e.address(instance, "i8", State.STARTED)
        e.store("i64", "1", started, 8)
        e.store("i64", count, e.address(pool, "i8", Field.THREADS), 8)
        # Workers block all signals: the threads of the program handle signals.
        blocked, before = e.array("i8", 128), e.array("i8", 128)
        e.call("i32", "sigfillset", [("ptr", blocked)])
        e.call("i32", "pthread_sigmask", [("i32", "2"), ("ptr", blocked), ("ptr", before)])
        with e.loop(1, count) as number:
            words = e.address(instance, "i8", e.add(State.THREADS + 8 * self._parts.threads, e.mul(number, 16)))
            e.store("ptr", pool, words, 8)
            e.store("i64", number, e.address(words, "i64", 1), 8)
            thread = e.address(e.address(instance, "i8", State.THREADS), "i64", number)
            previous_started = e.let(f"icmp eq i64 {e.load('i64', started, 8)}, {number}")
            with e.when(previous_started):
                arguments = [("ptr", pointer) for pointer in (thread, "null", "@worker", words)]
                failed = e.call("i32", "pthread_create", arguments)
                with e.when(e.let(f"icmp eq i32 {failed}, 0")):
                    e.store("i64", str(e.add(number, 1)), started, 8)
        e.call("i32", "pthread_sigmask", [("i32", "2"), ("ptr", before), ("ptr", "null")])
        running = e.load("i64", started, 8)
        with e.loop(1, running) as number:
            # Wait for the thread's id: the pool needs it to set the affinity of the thread.
            thread_id = e.address(e.address(pool, "i8", Field.THREAD_IDS), "i32", number)

            def absent(thread_id: str = thread_id) -> str:
                return e.let(f"icmp eq i32 {e.let(f'load atomic i32, ptr {thread_id} acquire, align 4')}, 0")

            with e.repeat(absent):
                e.call("i32", "sched_yield", [])
        return e.let(f"icmp eq i64 {running}, {count}")

    def _count_processors(self, e: Emitter, pool: str) -> str:
        """Return the number of processors that the process may use."""
        total = e.variable("i64", "0")
        with e.loop(0, MASK_BYTES // 8) as i:
            word = e.load("i64", e.address(e.address(pool, "i8", Field.ALLOWED), "i64", i), 8)
            total.set(str(e.add(total.get(), e.call("i64", "llvm.ctpop.i64", [("i64", word)]))))
        return total.get()

    def worker(self) -> str:
        """Return the definition of the function of worker threads."""
        e = Emitter()
        pool, number = e.load("ptr", "%words", 8), e.load("i64", e.address("%words", "i64", 1), 8)
        wide = e.let(f"call i64 (i64, ...) @syscall(i64 {_GET_THREAD_ID[self._parts.target.architecture]})")
        thread_id = e.address(e.address(pool, "i8", Field.THREAD_IDS), "i32", number)
        e.line(f"store atomic i32 {e.let(f'trunc i64 {wide} to i32')}, ptr {thread_id} release, align 4")
        e.call("void", "sardonyx_worker", [("ptr", pool), ("i64", number)])
        self.declarations.update(e.declarations)
        return f"define internal ptr @worker(ptr %words) nounwind {{\n{e.text()}\n  ret ptr null\n}}"

    def destroy(self, e: Emitter) -> None:
        """Write ``destroy``."""
        with e.when(e.let("icmp eq ptr %instance, null")):
            _return(e, "void")
        e.call("void", "sardonyx_dismiss", [("ptr", e.address("%instance", "i8", self._parts.pool_offset))])
        with e.loop(1, e.load("i64", e.address("%instance", "i8", State.STARTED), 8)) as number:
            thread = e.address(e.address("%instance", "i8", State.THREADS), "i64", number)
            e.call("i32", "pthread_join", [("i64", e.load("i64", thread, 8)), ("ptr", "null")])
        e.call("void", "free", [("ptr", self._arena(e, "%instance"))])
        e.call("void", "free", [("ptr", "%instance")])
        e.line("ret void")

    # Sizes.

    def prepare(self) -> str:
        """Return the definition of a function to prepare the tape for the sizes in the registers."""
        e, parts = Emitter(), self._parts
        table = e.address("%instance", "i8", parts.table_offset)
        ready = e.address("%instance", "i8", State.READY)
        e.store("i32", "0", ready, 4)
        needed = e.let(f"call i64 @measure(ptr {table})")
        _status_when(e, e.let(f"icmp eq i64 {needed}, {FAULT}"), Status.BAD_SIZES)
        for register in sorted({register for shape in parts.shapes for register in shape}):
            _status_when(e, e.let(f"icmp slt i64 {self._register(e, register)}, 0"), Status.BAD_SIZES)
        capacity = e.address(table, "i64", int(PlanWord.CAPACITY))
        with e.when(e.let(f"icmp sgt i64 {needed}, {e.load('i64', capacity, 8)}")):
            e.call("void", "free", [("ptr", self._arena(e, "%instance"))])
            arena = e.address(table, "i64", int(PlanWord.ARENA))
            e.store("ptr", "null", arena, 8)
            e.store("i64", "0", capacity, 8)
            room = e.let(f"and i64 {e.add(needed, ALIGNMENT - 1)}, {-ALIGNMENT}")
            memory = e.call("ptr", "aligned_alloc", [("i64", str(ALIGNMENT)), ("i64", room)])
            _status_when(e, e.let(f"icmp eq ptr {memory}, null"), Status.NO_MEMORY)
            e.store("ptr", memory, arena, 8)
            e.store("i64", room, capacity, 8)
        e.line(f"call void @fill(ptr {table})")
        e.store("i32", "1", ready, 4)
        e.line(f"ret i32 {Status.OK}")
        self.declarations.update(e.declarations)
        return f"define internal i32 @prepare(ptr %instance) nounwind {{\n{e.text()}\n}}"

    def resize(self, e: Emitter) -> None:
        """Write ``resize``."""
        for argument in ("%instance", "%sizes"):
            _status_when(e, e.let(f"icmp eq ptr {argument}, null"), Status.BAD_ARGUMENT)
        self._claim(e)
        registers = self._parts.planner_offsets[PlanWord.REGISTERS]
        for number, register in enumerate(self._parts.sizes.values()):
            size = e.load("i64", e.address("%sizes", "i64", number), 8)
            e.store("i64", size, e.address("%instance", "i8", registers + 8 * register), 8)
        status = e.let("call i32 @prepare(ptr %instance)")
        self._release(e)
        e.line(f"ret i32 {status}")

    def shape(self, e: Emitter, numbers: range) -> None:
        """Write ``input_shape`` or ``output_shape``."""
        _status_when(e, e.let("icmp eq ptr %instance, null"), Status.BAD_ARGUMENT)
        ready = e.load("i32", e.address("%instance", "i8", State.READY), 4)
        _status_when(e, e.let(f"icmp eq i32 {ready}, 0"), Status.BAD_SIZES)
        for at, number in enumerate(numbers):
            with e.when(e.let(f"icmp eq i32 %number, {at}")):
                with e.when(e.let("icmp ne ptr %shape, null")):
                    for axis, register in enumerate(self._parts.shapes[number]):
                        e.store("i64", self._register(e, register), e.address("%shape", "i64", axis), 8)
                with e.when(e.let("icmp ne ptr %bytes, null")):
                    e.store("i64", self._bytes(e, number), "%bytes", 8)
                _return(e, f"i32 {Status.OK}")
        e.line(f"ret i32 {Status.BAD_ARGUMENT}")

    def _register(self, e: Emitter, register: int) -> str:
        at = self._parts.planner_offsets[PlanWord.REGISTERS] + 8 * register
        return e.load("i64", e.address("%instance", "i8", at), 8)

    def _bytes(self, e: Emitter, number: int) -> str:
        """Return the bytes of an input or output; outputs are counted after inputs."""
        tensor = self._parts.tensor(number)
        if tensor.bytes is not None:
            return str(tensor.bytes)
        bytes_: str | int = tensor.itemsize
        for register in self._parts.shapes[number]:
            bytes_ = e.mul(bytes_, self._register(e, register))
        return str(bytes_)

    def _arena(self, e: Emitter, instance: str) -> str:
        return e.load("ptr", e.address(instance, "i8", self._parts.table_offset + 8 * PlanWord.ARENA), 8)

    # The call.

    def run(self, e: Emitter) -> None:
        """Write ``run``."""
        parts = self._parts
        for argument, tensors in (("%instance", ()), ("%inputs", parts.inputs), ("%outputs", parts.outputs)):
            if argument == "%instance" or tensors:
                _status_when(e, e.let(f"icmp eq ptr {argument}, null"), Status.BAD_ARGUMENT)
        self._claim(e)
        status = e.variable("i32", str(int(Status.OK)))
        ready = e.load("i32", e.address("%instance", "i8", State.READY), 4)
        with e.when(e.let(f"icmp eq i32 {ready}, 0")):
            status.set(str(int(Status.BAD_SIZES)))
        with e.when(e.let(f"icmp eq i32 {status.get()}, {Status.OK}")):
            for number in range(len(parts.shapes)):
                missing = e.let(f"icmp eq ptr {self._address(e, str(number))}, null")
                filled = e.let(f"icmp ne i64 {self._bytes(e, number)}, 0")
                with e.when(e.let(f"and i1 {missing}, {filled}")):
                    status.set(str(int(Status.BAD_ARGUMENT)))
        with e.when(e.let(f"icmp eq i32 {status.get()}, {Status.OK}")):
            self._compute(e, status)
        self._release(e)
        e.line(f"ret i32 {status.get()}")

    def _claim(self, e: Emitter) -> None:
        """Claim the instance; return from the function if another thread has it."""
        pair = e.let(f"cmpxchg ptr {e.address('%instance', 'i8', State.BUSY)}, i32 0, i32 1 acquire monotonic")
        claimed = e.let(f"extractvalue {{ i32, i1 }} {pair}, 1")
        _status_when(e, e.let(f"xor i1 {claimed}, true"), Status.BUSY)

    def _release(self, e: Emitter) -> None:
        e.line(f"store atomic i32 0, ptr {e.address('%instance', 'i8', State.BUSY)} release, align 4")

    def _compute(self, e: Emitter, status: Variable) -> None:
        parts = self._parts
        tape = e.address("%instance", "i8", parts.tape_offset)
        fault = e.address("%instance", "i8", parts.tape_offset + 8 * parts.plan.fault)
        e.store("i32", "0", fault, 4)
        with e.loop(0, self._tables.feeds) as i:
            row = e.address("@feeds", "i64", e.mul(i, 2))
            word, number = (e.load("i64", e.address(row, "i64", at), 8) for at in (0, 1))
            e.store("ptr", self._address(e, number), e.address(tape, "i64", word), 8)
        pool = e.address("%instance", "i8", parts.pool_offset)
        play = "play_flushing" if parts.flushes else "play"
        e.call("void", play, [("ptr", tape), ("i64", str(parts.plan.kernels)), ("ptr", pool)])
        for copy in parts.copies:
            match copy.source:
                case Address():
                    source = e.let(f"inttoptr i64 {_address_text(copy.source)} to ptr")
                case InTape():
                    source = e.address(tape, "i64", copy.source.word)
                case tensor:
                    source = self._address(e, str(tensor))
            output = len(parts.inputs) + copy.output
            destination = self._address(e, str(output))
            e.call("ptr", "memmove", [("ptr", destination), ("ptr", source), ("i64", self._bytes(e, output))])
        with e.when(e.let(f"icmp ne i32 {e.load('i32', fault, 4)}, 0")):
            status.set(str(int(Status.NO_RESULT)))

    def _address(self, e: Emitter, number: str) -> str:
        """Return the address of an input or output; outputs are counted after inputs."""
        count = len(self._parts.inputs)
        is_input = e.let(f"icmp slt i64 {number}, {count}")
        table = e.let(f"select i1 {is_input}, ptr %inputs, ptr %outputs")
        index = e.let(f"select i1 {is_input}, i64 {number}, i64 {e.sub(number, count)}")
        return e.load("ptr", e.address(table, "ptr", index), 8)


def _return(e: Emitter, value: str) -> None:
    e.line(f"ret {value}")
    e.label(e.fresh("unreached"))


def _status_when(e: Emitter, condition: str, status: Status) -> None:
    with e.when(condition):
        _return(e, f"i32 {int(status)}")
