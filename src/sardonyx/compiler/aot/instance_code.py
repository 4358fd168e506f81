"""The code of a C library around its kernels: instances, their threads, and the call.

An instance is its state, the pool of its threads, its tape, and what planning writes; the arena is memory of its own.
The tape is copied from the library's, and words that are places in the instance have its address added. Then it is made
ready for sizes as a session's is, by the functions of :mod:`.planning`: once, or, where sizes are open, whenever the
caller gives others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from sardonyx.compiler.aot.c_interface import MESSAGES, Status, Tensor
from sardonyx.compiler.aot.cpu_check import lacks, needs
from sardonyx.compiler.aot.instance_layout import COUNTS, POOL, TRUE, Address, InTape, Parts, State, planning_rows
from sardonyx.compiler.executor.fork_join import MASK_BYTES, Field
from sardonyx.compiler.executor.tape_planner import FAULT, PlanWord
from sardonyx.compiler.executor.thread_pool import PATIENCE_SECONDS, SPIN_SECONDS
from sardonyx.compiler.llvm.ir_builder import Emitter, Variable
from sardonyx.compiler.llvm.object_code import module_text
from sardonyx.compiler.target.alignment import ALIGNMENT
from sardonyx.compiler.target.description import Target

_GET_THREAD_ID = {"x86_64": 186, "aarch64": 178}
"""Linux's numbers of the system call, by architecture."""
_MONOTONIC = 1
_PAUSES = 500


def module(parts: Parts) -> tuple[str, Target]:
    """The module's text, and what to compile it for.

    That is every processor of the architecture, so that the library can tell on which its kernels run.
    """
    least = {"x86_64": "x86-64"}.get(parts.target.architecture, "generic")
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
    target = replace(parts.target, cpu=least, features="")
    return module_text(target, [*tables.definitions, *definitions], writing.declarations), target


class _Tables:
    """The constants of the module.

    Args:
        parts: What the library is made of.

    Attributes:
        definitions: Their text.
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
                bases.append((word, parts.pool_at + address.offset))
            else:
                words[word] = f"i64 {_number(address)}"
                symbols[address.symbol] = None
        bases += [(word, parts.tape_at + 8 * other) for word, other in plan.tape_words.tolist()]
        self._list("tape", "i64", words)
        self.bases = self._rows("bases", bases)
        self.feeds = self._rows("feeds", parts.feeds)
        symbols.update((copy.source.symbol, None) for copy in parts.copies if isinstance(copy.source, Address))
        self._list("start", "i64", [f"i64 {number}" for number in plan.start.tolist()])
        for name, array in planning_rows(plan).items():
            self._rows(f"plan.{name.name}", array.tolist())
        messages = [self._text(f"message.{each.name}", MESSAGES[each]) for each in Status]
        self._list("messages", "ptr", messages)
        self.definitions += [f"@{name} = external hidden global i8" for name in symbols if name != TRUE]

    def _list(self, name: str, type: str, items: Sequence[str]) -> int:
        self.definitions.append(f"@{name} = internal constant [{len(items)} x {type}] [{', '.join(items)}], align 64")
        return len(items)

    def _rows(self, name: str, rows: Sequence[Sequence[int | str]]) -> int:
        self._list(name, "i64", [f"i64 {each}" for row in rows for each in row])
        return len(rows)

    def _text(self, name: str, text: str) -> str:
        data = text.encode()
        escaped = "".join(f"\\{byte:02X}" for byte in data)
        self.definitions.append(f'@{name} = internal constant [{len(data) + 1} x i8] c"{escaped}\\00"')
        return f"ptr @{name}"

    def _tensors(self, name: str, tensors: Sequence[Tensor]) -> None:
        rows = []
        for number, each in enumerate(tensors):
            named = self._text(f"{name}.{number}.name", each.name)
            shape = [size if isinstance(size, int) else -1 for size in each.shape]
            self._list(f"{name}.{number}.shape", "i64", [f"i64 {size}" for size in shape])
            rows.append(
                f"%tensor {{ {named}, i32 {each.dtype.value}, i32 {len(each.shape)}, ptr @{name}.{number}.shape, "
                f"i64 {each.bytes or 0} }}"
            )
        if name == "inputs":
            self.definitions.insert(0, "%tensor = type { ptr, i32, i32, ptr, i64 }")
        self._list(name, "%tensor", rows)


def _number(address: Address) -> str:
    return f"ptrtoint (ptr getelementptr (i8, ptr @{address.symbol}, i64 {address.offset}) to i64)"


class _Functions:
    """Writes the functions.

    Args:
        parts: What the library is made of.
        tables: Its constants.

    Attributes:
        declarations: What they call.
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
        """The definition of a function that the header declares."""
        e = Emitter()
        write(e)
        self.declarations.update(e.declarations)
        return f"define {result} @{self._parts.prefix}_{name}({parameters}) nounwind {{\n{e.text()}\n}}"

    def tensor(self, e: Emitter, table: str, count: int) -> None:
        """``input`` and ``output``."""
        with e.when(e.let(f"icmp uge i32 %number, {count}")):
            _return(e, "ptr null")
        wide = e.let("zext i32 %number to i64")
        e.line(f"ret ptr {e.address(f'@{table}', '%tensor', wide)}")

    def message(self, e: Emitter) -> None:
        """``message``."""
        known = e.let(f"icmp ult i32 %status, {len(Status)}")
        wide = e.let(f"zext i32 {e.let(f'select i1 {known}, i32 %status, i32 {Status.BAD_ARGUMENT}')} to i64")
        e.line(f"ret ptr {e.load('ptr', e.address('@messages', 'ptr', wide), 8)}")

    # Instances.

    def create(self, e: Emitter) -> None:
        """``create``."""
        parts = self._parts
        _status_when(e, e.let("icmp eq ptr %out, null"), Status.BAD_ARGUMENT)
        e.store("ptr", "null", "%out", 8)
        _status_when(e, e.let(f"icmp ugt i32 %threads, {parts.threads}"), Status.BAD_ARGUMENT)
        if parts.target.architecture == "x86_64":
            _status_when(e, lacks(e, needs(parts.target)), Status.WRONG_PROCESSOR)
        made = e.call("ptr", "aligned_alloc", [("i64", str(ALIGNMENT)), ("i64", str(parts.bytes))])
        _status_when(e, e.let(f"icmp eq ptr {made}, null"), Status.NO_MEMORY)
        e.call("ptr", "memset", [("ptr", made), ("i32", "0"), ("i64", str(parts.tape_at))])
        tape = e.address(made, "i8", parts.tape_at)
        e.call("ptr", "memcpy", [("ptr", tape), ("ptr", "@tape"), ("i64", str(8 * len(parts.plan.words)))])
        base = e.let(f"ptrtoint ptr {made} to i64")
        with e.loop(0, self._tables.bases) as i:
            row = e.address("@bases", "i64", e.mul(i, 2))
            word, offset = (e.load("i64", e.address(row, "i64", at), 8) for at in (0, 1))
            e.store("i64", str(e.add(base, offset)), e.address(tape, "i64", word), 8)
        self._begin_planning(e, made)
        pool = e.address(made, "i8", parts.pool_at)
        self._begin_pool(e, pool)
        started = self._start(e, made, pool)
        with e.when(e.let(f"xor i1 {started}, true")):
            e.line(f"call void @{parts.prefix}_destroy(ptr {made})")
            _return(e, f"i32 {Status.NO_THREADS}")
        if not parts.sizes:
            status = e.let(f"call i32 @prepare(ptr {made})")
            with e.when(e.let(f"icmp ne i32 {status}, {Status.OK}")):
                e.line(f"call void @{parts.prefix}_destroy(ptr {made})")
                _return(e, f"i32 {status}")
        e.store("ptr", made, "%out", 8)
        e.line(f"ret i32 {Status.OK}")

    def _begin_planning(self, e: Emitter, made: str) -> None:
        """Write the table of planning, and what it begins with."""
        parts, plan = self._parts, self._parts.plan
        table = e.address(made, "i8", parts.table_at)
        e.call("ptr", "memset", [("ptr", table), ("i32", "0"), ("i64", str(8 * len(PlanWord)))])
        for word, rows in planning_rows(plan).items():
            e.store("ptr", f"@plan.{word.name}", e.address(table, "i64", int(word)), 8)
            if word in COUNTS:
                e.store("i64", str(len(rows)), e.address(table, "i64", int(COUNTS[word])), 8)
        for word, at in {**parts.planned_at, PlanWord.TAPE: parts.tape_at}.items():
            e.store("ptr", e.address(made, "i8", at), e.address(table, "i64", int(word)), 8)
        registers = e.address(made, "i8", parts.planned_at[PlanWord.REGISTERS])
        e.call("ptr", "memcpy", [("ptr", registers), ("ptr", "@start"), ("i64", str(8 * len(plan.start)))])
        order = e.address(made, "i8", parts.planned_at[PlanWord.ORDER])
        with e.loop(0, len(plan.buffers)) as i:
            e.store("i64", i, e.address(order, "i64", i), 8)

    def _begin_pool(self, e: Emitter, pool: str) -> None:
        """Write the first state of the pool, all but how many threads it has."""

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
        nanoseconds = self._pause_time(e)
        for field, seconds in ((Field.SPINS, SPIN_SECONDS), (Field.PATIENCE, PATIENCE_SECONDS)):
            put(field, "i64", e.let(f"udiv i64 {round(seconds * 1e9) * _PAUSES}, {nanoseconds}"))

    def _pause_time(self, e: Emitter) -> str:
        """Nanoseconds that some looks and pauses take, at least 1: processors differ a hundredfold."""
        least = e.variable("i64", str(1 << 40))
        stamps = e.array("i64", 4, 8)

        def clock(at: int) -> str:
            place = e.address(stamps, "i64", at)
            e.call("i32", "clock_gettime", [("i32", str(_MONOTONIC)), ("ptr", place)])
            seconds, rest = (e.load("i64", e.address(place, "i64", word), 8) for word in (0, 1))
            return str(e.add(e.mul(seconds, 1_000_000_000), rest))

        with e.loop(0, 4):
            before = clock(0)
            e.call("void", "sardonyx_pauses", [("i64", str(_PAUSES))])
            least.set(str(e.least(least.get(), e.sub(clock(2), before))))
        return str(e.most(least.get(), 1))

    def _start(self, e: Emitter, made: str, pool: str) -> str:
        """Start the threads; whether that could be done."""
        wanted = e.variable("i64", e.let("zext i32 %threads to i64"))
        with e.when(e.let("icmp eq i32 %threads, 0")):
            wanted.set(str(e.most(1, e.least(self._parts.threads, self._processors(e, pool)))))
        count = wanted.get()
        begun = e.address(made, "i8", State.STARTED)
        e.store("i64", "1", begun, 8)
        e.store("i64", count, e.address(pool, "i8", Field.THREADS), 8)
        # Signals are for the threads of the program.
        every, had = e.array("i8", 128), e.array("i8", 128)
        e.call("i32", "sigfillset", [("ptr", every)])
        e.call("i32", "pthread_sigmask", [("i32", "2"), ("ptr", every), ("ptr", had)])
        with e.loop(1, count) as number:
            words = e.address(made, "i8", e.add(State.THREADS + 8 * self._parts.threads, e.mul(number, 16)))
            e.store("ptr", pool, words, 8)
            e.store("i64", number, e.address(words, "i64", 1), 8)
            thread = e.address(e.address(made, "i8", State.THREADS), "i64", number)
            more = e.let(f"icmp eq i64 {e.load('i64', begun, 8)}, {number}")
            with e.when(more):
                given = [("ptr", each) for each in (thread, "null", "@worker", words)]
                failed = e.call("i32", "pthread_create", given)
                with e.when(e.let(f"icmp eq i32 {failed}, 0")):
                    e.store("i64", str(e.add(number, 1)), begun, 8)
        e.call("i32", "pthread_sigmask", [("i32", "2"), ("ptr", had), ("ptr", "null")])
        there = e.load("i64", begun, 8)
        with e.loop(1, there) as number:
            # By its number the system is told where it may run.
            place = e.address(e.address(pool, "i8", Field.THREAD_IDS), "i32", number)

            def absent(place: str = place) -> str:
                return e.let(f"icmp eq i32 {e.let(f'load atomic i32, ptr {place} acquire, align 4')}, 0")

            with e.repeat(absent):
                e.call("i32", "sched_yield", [])
        return e.let(f"icmp eq i64 {there}, {count}")

    def _processors(self, e: Emitter, pool: str) -> str:
        """How many processors the process may use."""
        total = e.variable("i64", "0")
        with e.loop(0, MASK_BYTES // 8) as i:
            word = e.load("i64", e.address(e.address(pool, "i8", Field.ALLOWED), "i64", i), 8)
            total.set(str(e.add(total.get(), e.call("i64", "llvm.ctpop.i64", [("i64", word)]))))
        return total.get()

    def worker(self) -> str:
        """The function that threads run."""
        e = Emitter()
        pool, number = e.load("ptr", "%words", 8), e.load("i64", e.address("%words", "i64", 1), 8)
        wide = e.let(f"call i64 (i64, ...) @syscall(i64 {_GET_THREAD_ID[self._parts.target.architecture]})")
        place = e.address(e.address(pool, "i8", Field.THREAD_IDS), "i32", number)
        e.line(f"store atomic i32 {e.let(f'trunc i64 {wide} to i32')}, ptr {place} release, align 4")
        e.call("void", "sardonyx_worker", [("ptr", pool), ("i64", number)])
        self.declarations.update(e.declarations)
        return f"define internal ptr @worker(ptr %words) nounwind {{\n{e.text()}\n  ret ptr null\n}}"

    def destroy(self, e: Emitter) -> None:
        """``destroy``."""
        with e.when(e.let("icmp eq ptr %instance, null")):
            _return(e, "void")
        e.call("void", "sardonyx_dismiss", [("ptr", e.address("%instance", "i8", self._parts.pool_at))])
        with e.loop(1, e.load("i64", e.address("%instance", "i8", State.STARTED), 8)) as number:
            thread = e.address(e.address("%instance", "i8", State.THREADS), "i64", number)
            e.call("i32", "pthread_join", [("i64", e.load("i64", thread, 8)), ("ptr", "null")])
        e.call("void", "free", [("ptr", self._arena(e, "%instance"))])
        e.call("void", "free", [("ptr", "%instance")])
        e.line("ret void")

    # Sizes.

    def prepare(self) -> str:
        """The function that makes the tape of an instance ready for the sizes in its registers."""
        e, parts = Emitter(), self._parts
        table = e.address("%instance", "i8", parts.table_at)
        ready = e.address("%instance", "i8", State.READY)
        e.store("i32", "0", ready, 4)
        wanted = e.let(f"call i64 @measure(ptr {table})")
        _status_when(e, e.let(f"icmp eq i64 {wanted}, {FAULT}"), Status.BAD_SIZES)
        for register in sorted({register for shape in parts.shapes for register in shape}):
            _status_when(e, e.let(f"icmp slt i64 {self._register(e, register)}, 0"), Status.BAD_SIZES)
        capacity = e.address(table, "i64", int(PlanWord.CAPACITY))
        with e.when(e.let(f"icmp sgt i64 {wanted}, {e.load('i64', capacity, 8)}")):
            e.call("void", "free", [("ptr", self._arena(e, "%instance"))])
            arena = e.address(table, "i64", int(PlanWord.ARENA))
            e.store("ptr", "null", arena, 8)
            e.store("i64", "0", capacity, 8)
            room = e.let(f"and i64 {e.add(wanted, ALIGNMENT - 1)}, {-ALIGNMENT}")
            made = e.call("ptr", "aligned_alloc", [("i64", str(ALIGNMENT)), ("i64", room)])
            _status_when(e, e.let(f"icmp eq ptr {made}, null"), Status.NO_MEMORY)
            e.store("ptr", made, arena, 8)
            e.store("i64", room, capacity, 8)
        e.line(f"call void @fill(ptr {table})")
        e.store("i32", "1", ready, 4)
        e.line(f"ret i32 {Status.OK}")
        self.declarations.update(e.declarations)
        return f"define internal i32 @prepare(ptr %instance) nounwind {{\n{e.text()}\n}}"

    def resize(self, e: Emitter) -> None:
        """``resize``."""
        for given in ("%instance", "%sizes"):
            _status_when(e, e.let(f"icmp eq ptr {given}, null"), Status.BAD_ARGUMENT)
        self._take(e)
        registers = self._parts.planned_at[PlanWord.REGISTERS]
        for number, register in enumerate(self._parts.sizes.values()):
            size = e.load("i64", e.address("%sizes", "i64", number), 8)
            e.store("i64", size, e.address("%instance", "i8", registers + 8 * register), 8)
        status = e.let("call i32 @prepare(ptr %instance)")
        self._leave(e)
        e.line(f"ret i32 {status}")

    def shape(self, e: Emitter, numbers: range) -> None:
        """``input_shape`` and ``output_shape``."""
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
        at = self._parts.planned_at[PlanWord.REGISTERS] + 8 * register
        return e.load("i64", e.address("%instance", "i8", at), 8)

    def _bytes(self, e: Emitter, number: int) -> str:
        """How much an input or output fills."""
        tensor = self._parts.of_tensor(number)
        if tensor.bytes is not None:
            return str(tensor.bytes)
        found: str | int = tensor.itemsize
        for register in self._parts.shapes[number]:
            found = e.mul(found, self._register(e, register))
        return str(found)

    def _arena(self, e: Emitter, instance: str) -> str:
        return e.load("ptr", e.address(instance, "i8", self._parts.table_at + 8 * PlanWord.ARENA), 8)

    # The call.

    def run(self, e: Emitter) -> None:
        """``run``."""
        parts = self._parts
        for given, tensors in (("%instance", ()), ("%inputs", parts.inputs), ("%outputs", parts.outputs)):
            if given == "%instance" or tensors:
                _status_when(e, e.let(f"icmp eq ptr {given}, null"), Status.BAD_ARGUMENT)
        self._take(e)
        status = e.variable("i32", str(int(Status.OK)))
        ready = e.load("i32", e.address("%instance", "i8", State.READY), 4)
        with e.when(e.let(f"icmp eq i32 {ready}, 0")):
            status.set(str(int(Status.BAD_SIZES)))
        with e.when(e.let(f"icmp eq i32 {status.get()}, {Status.OK}")):
            for number in range(len(parts.shapes)):
                missing = e.let(f"icmp eq ptr {self._given(e, str(number))}, null")
                filled = e.let(f"icmp ne i64 {self._bytes(e, number)}, 0")
                with e.when(e.let(f"and i1 {missing}, {filled}")):
                    status.set(str(int(Status.BAD_ARGUMENT)))
        with e.when(e.let(f"icmp eq i32 {status.get()}, {Status.OK}")):
            self._compute(e, status)
        self._leave(e)
        e.line(f"ret i32 {status.get()}")

    def _take(self, e: Emitter) -> None:
        """Return where another thread has the instance."""
        pair = e.let(f"cmpxchg ptr {e.address('%instance', 'i8', State.BUSY)}, i32 0, i32 1 acquire monotonic")
        taken = e.let(f"extractvalue {{ i32, i1 }} {pair}, 1")
        _status_when(e, e.let(f"xor i1 {taken}, true"), Status.BUSY)

    def _leave(self, e: Emitter) -> None:
        e.line(f"store atomic i32 0, ptr {e.address('%instance', 'i8', State.BUSY)} release, align 4")

    def _compute(self, e: Emitter, status: Variable) -> None:
        parts = self._parts
        tape = e.address("%instance", "i8", parts.tape_at)
        fault = e.address("%instance", "i8", parts.tape_at + 8 * parts.plan.fault)
        e.store("i32", "0", fault, 4)
        with e.loop(0, self._tables.feeds) as i:
            row = e.address("@feeds", "i64", e.mul(i, 2))
            word, number = (e.load("i64", e.address(row, "i64", at), 8) for at in (0, 1))
            e.store("ptr", self._given(e, number), e.address(tape, "i64", word), 8)
        pool = e.address("%instance", "i8", parts.pool_at)
        play = "play_flushing" if parts.flushes else "play"
        e.call("void", play, [("ptr", tape), ("i64", str(parts.plan.kernels)), ("ptr", pool)])
        for copy in parts.copies:
            match copy.source:
                case Address():
                    source = e.let(f"inttoptr i64 {_number(copy.source)} to ptr")
                case InTape():
                    source = e.address(tape, "i64", copy.source.word)
                case same:
                    source = self._given(e, str(same))
            output = len(parts.inputs) + copy.output
            to = self._given(e, str(output))
            e.call("ptr", "memmove", [("ptr", to), ("ptr", source), ("i64", self._bytes(e, output))])
        with e.when(e.let(f"icmp ne i32 {e.load('i32', fault, 4)}, 0")):
            status.set(str(int(Status.NO_RESULT)))

    def _given(self, e: Emitter, number: str) -> str:
        """The address of an input, or, behind the inputs, of an output."""
        count = len(self._parts.inputs)
        is_input = e.let(f"icmp slt i64 {number}, {count}")
        table = e.let(f"select i1 {is_input}, ptr %inputs, ptr %outputs")
        place = e.let(f"select i1 {is_input}, i64 {number}, i64 {e.sub(number, count)}")
        return e.load("ptr", e.address(table, "ptr", place), 8)


def _return(e: Emitter, value: str) -> None:
    e.line(f"ret {value}")
    e.label(e.fresh("unreached"))


def _status_when(e: Emitter, condition: str, status: Status) -> None:
    with e.when(condition):
        _return(e, f"i32 {int(status)}")
