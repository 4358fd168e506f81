"""Builder of LLVM IR as text, one function at a time.

Names are SSA values with their ``%``, or constants; types are in LLVM's syntax. Variables are stack slots, which LLVM
promotes to registers: phi nodes are never written.

An instruction whose result is available is not written again (local value numbering): readers and templates request the
same addresses many times, and LLVM's own search for duplicates would dominate the time before code generation.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

_PURE = {
    "add", "sub", "mul", "udiv", "urem", "sdiv", "srem", "shl", "lshr", "ashr", "and", "or", "xor", "icmp", "select",
    "zext", "sext", "trunc", "bitcast", "getelementptr", "insertelement", "extractelement", "shufflevector",
}  # fmt: skip
"""Instructions whose result depends on the operands alone."""


@functools.cache
def vector(lanes: int, element: str) -> str:
    """Return the type of a vector of so many elements; the element type for 1."""
    return f"<{lanes} x {element}>" if lanes > 1 else element


def float_literal(value: float, element: str) -> str:
    """Return a floating-point constant in LLVM's syntax, by its bits, so that rounding happens once.

    Args:
        value: The number, rounded to the element type.
        element: ``half``, ``float`` or ``double``.
    """
    if element == "half":
        return f"0xH{struct.unpack('<H', struct.pack('<e', value))[0]:04X}"
    if element == "float":
        value = struct.unpack("<f", struct.pack("<f", value))[0]
    return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"


def splat(literal: str, lanes: int, element: str) -> str:
    """Return a constant vector of equal elements."""
    return f"splat ({element} {literal})" if lanes > 1 else literal


def elements_of(constant: str) -> list[str]:
    """Return the literals in a constant vector, one for a vector of equal elements."""
    return [word.split()[-1] for word in constant.removeprefix("splat (").strip("<>)").split(",")]


class Variable:
    """A variable of the function being written: a stack slot that becomes a register."""

    __slots__ = ("_emitter", "_slot", "type")

    def __init__(self, emitter: Emitter, type: str, slot: str) -> None:
        self._emitter = emitter
        self._slot = slot
        self.type = type

    def get(self) -> str:
        """Return the current value."""
        return self._emitter.let(f"load {self.type}, ptr {self._slot}")

    def set(self, value: str) -> None:
        """Assign a value."""
        self._emitter.line(f"store {self.type} {value}, ptr {self._slot}")


class Emitter:
    """Builder of the body of one LLVM function.

    Args:
        converts_halves: True if the processor converts between ``half`` and ``float``. Otherwise LLVM would call
            undefined functions.

    Attributes:
        converts_halves: See above.
        flushes_bfloat16: True if conversions to bfloat16 may replace denormal numbers by 0, as the products of the
            kernel do; the processor then has an instruction for them.
        where: Names of the enclosing blocks, from outermost to innermost.
        declarations: External functions that the body calls, as ``declare`` lines.
        globals: Definitions of module-level constants that the body reads, by name.
    """

    def __init__(self, *, converts_halves: bool = True) -> None:
        self.converts_halves = converts_halves
        self.flushes_bfloat16 = False
        self._lines: list[str] = []
        self._slots: list[str] = []
        self._count = 0
        self._known: dict[str, str] = {}
        """Available results by instruction: those computed on every path to the next line."""
        self.where: tuple[str, ...] = ()
        self.declarations: dict[str, None] = {}
        self.globals: dict[str, str] = {}

    # Instructions.

    def fresh(self, stem: str = "v") -> str:
        """Return an unused name, without ``%``."""
        self._count += 1
        return f"{stem}{self._count}"

    def line(self, text: str) -> None:
        """Write an instruction without a result."""
        self._lines.append(f"  {text}")

    def let(self, text: str) -> str:
        """Write an instruction, unless its result is available, and return the name of the result."""
        name = self._known.get(text)
        if name is None:
            self._count += 1  # Inlined `fresh`: most instructions are written here.
            name = f"%v{self._count}"
            self._lines.append(f"  {name} = {text}")
            if text.partition(" ")[0] in _PURE:
                self._known[text] = name
        return name

    def label(self, name: str) -> None:
        """Begin a block with unknown predecessors."""
        self._known, self.where = {}, (name,)
        self._block(name)

    def is_known(self, where: tuple[str, ...]) -> bool:
        """Return True if results computed in these blocks are available to the next line."""
        return self.where[: len(where)] == where

    def _block(self, name: str) -> None:
        """Begin a block in which available results remain available."""
        self._lines.append(f"{name}:")

    @contextmanager
    def _inside(self, name: str) -> Iterator[None]:
        """Begin a block that may be skipped: results computed inside are unavailable after the block."""
        outer, around = self._known, self.where
        self._known, self.where = dict(outer), (*around, name)
        self._block(name)
        yield
        self._known, self.where = outer, around

    def variable(self, type: str, value: str | None = None) -> Variable:
        """Return a new variable, with an initial value if given."""
        slot = f"%{self.fresh('slot')}"
        self._slots.append(f"  {slot} = alloca {type}")
        variable = Variable(self, type, slot)
        if value is not None:
            variable.set(value)
        return variable

    def array(self, type: str, count: int, align: int = 64) -> str:
        """Reserve stack memory for so many elements in the function's frame; return the pointer."""
        slot = f"%{self.fresh('room')}"
        self._slots.append(f"  {slot} = alloca [{count} x {type}], align {align}")
        return slot

    def text(self) -> str:
        """Return the body: stack slots, then instructions."""
        return "\n".join(["entry:", *self._slots, *self._lines])

    # Control flow.

    @contextmanager
    def loop(self, start: str | int, end: str | int, step: str | int = 1, *, opaque: bool = False) -> Iterator[str]:
        """Write ``for (i = start; i < end; i += step)`` over i64; yield ``i``.

        Args:
            start: First value of the counter.
            end: Exclusive limit of the counter.
            step: Increment of the counter.
            opaque: Hide the counter from LLVM by :meth:`opaque`.
        """
        head, body, done = (self.fresh(stem) for stem in ("head", "body", "done"))
        counter = self.variable("i64", str(start))
        self.line(f"br label %{head}")
        self._block(head)
        index = counter.get()
        self.line(f"br i1 {self.let(f'icmp slt i64 {index}, {end}')}, label %{body}, label %{done}")
        with self._inside(body):
            yield index
            following = self.let(f"add nsw i64 {index}, {step}")
            counter.set(self.opaque("i64", following) if opaque else following)
            self.line(f"br label %{head}")
        self._block(done)

    @contextmanager
    def repeat(self, condition: Callable[[], str]) -> Iterator[None]:
        """Write ``while condition: …``; the condition is written before each round and returns an ``i1``."""
        head, body, done = (self.fresh(stem) for stem in ("head", "body", "done"))
        self.line(f"br label %{head}")
        self._block(head)
        self.line(f"br i1 {condition()}, label %{body}, label %{done}")
        with self._inside(body):
            yield
            self.line(f"br label %{head}")
        self._block(done)

    @contextmanager
    def when(self, condition: str) -> Iterator[None]:
        """Write a block that is executed if the ``i1`` holds."""
        inside, after = self.fresh("then"), self.fresh("after")
        self.line(f"br i1 {condition}, label %{inside}, label %{after}")
        with self._inside(inside):
            yield
            self.line(f"br label %{after}")
        self._block(after)

    @contextmanager
    def either(self, condition: str) -> Iterator[Iterator[None]]:
        """Write two alternatives: ``with e.either(c) as branches: for _ in branches: …`` writes the first, then the
        second.
        """
        first, second, after = (self.fresh(stem) for stem in ("then", "else", "after"))

        def branches() -> Iterator[None]:
            self.line(f"br i1 {condition}, label %{first}, label %{second}")
            for name in (first, second):
                with self._inside(name):
                    yield
                    self.line(f"br label %{after}")
            self._block(after)

        yield branches()

    # Integers (i64), folded if both operands are constants.

    def add(self, a: str | int, b: str | int) -> str | int:
        """Return ``a + b``."""
        if isinstance(a, int) and isinstance(b, int):
            return a + b
        if a == 0:
            return b
        return a if b == 0 else self.let(f"add nsw i64 {a}, {b}")

    def sub(self, a: str | int, b: str | int) -> str | int:
        """Return ``a - b``."""
        if isinstance(a, int) and isinstance(b, int):
            return a - b
        return a if b == 0 else self.let(f"sub nsw i64 {a}, {b}")

    def mul(self, a: str | int, b: str | int) -> str | int:
        """Return ``a * b``."""
        if isinstance(a, int) and isinstance(b, int):
            return a * b
        if a == 0 or b == 0:
            return 0
        if a == 1:
            return b
        return a if b == 1 else self.let(f"mul nsw i64 {a}, {b}")

    def div(self, a: str | int, b: str | int) -> str | int:
        """Return ``a / b`` of non-negative numbers."""
        if isinstance(a, int) and isinstance(b, int):
            return a // b
        return a if b == 1 else self.let(f"udiv i64 {a}, {b}")

    def rem(self, a: str | int, b: str | int) -> str | int:
        """Return ``a % b`` of non-negative numbers."""
        if isinstance(a, int) and isinstance(b, int):
            return a % b
        return 0 if b == 1 else self.let(f"urem i64 {a}, {b}")

    def least(self, a: str | int, b: str | int) -> str | int:
        """Return ``min(a, b)`` of signed numbers."""
        if isinstance(a, int) and isinstance(b, int):
            return min(a, b)
        return self.call("i64", "llvm.smin.i64", [("i64", str(a)), ("i64", str(b))])

    def most(self, a: str | int, b: str | int) -> str | int:
        """Return ``max(a, b)`` of signed numbers."""
        if isinstance(a, int) and isinstance(b, int):
            return max(a, b)
        return self.call("i64", "llvm.smax.i64", [("i64", str(a)), ("i64", str(b))])

    # Memory and vectors.

    def address(self, pointer: str, element: str, index: str | int) -> str:
        """Return the address of an element."""
        return pointer if index == 0 else self.let(f"getelementptr {element}, ptr {pointer}, i64 {index}")

    def load(self, type: str, pointer: str, align: int) -> str:
        """Load a value or a vector."""
        return self.let(f"load {type}, ptr {pointer}, align {align}")

    def store(self, type: str, value: str, pointer: str, align: int) -> None:
        """Store a value or a vector."""
        self.line(f"store {type} {value}, ptr {pointer}, align {align}")

    def call(self, result: str, name: str, arguments: Sequence[tuple[str, str]]) -> str:
        """Call an external function (an intrinsic)."""
        self.declarations[f"declare {result} @{name}({', '.join(type for type, _ in arguments)})"] = None
        operands = ", ".join(f"{type} {value}" for type, value in arguments)
        if result == "void":
            self.line(f"call void @{name}({operands})")
            return ""
        return self.let(f"call {result} @{name}({operands})")

    def multiply_add(self, type: str, a: str, b: str, c: str) -> str:
        """Return ``a * b + c``, rounded once if the processor has an FMA instruction; otherwise with two roundings."""
        return self.call(type, f"llvm.fmuladd.{suffix(type)}", [(type, a), (type, b), (type, c)])

    def spread(self, value: str, lanes: int, element: str) -> str:
        """Return a vector with a scalar in every lane."""
        if lanes == 1:
            return value
        if not value.startswith("%"):
            return splat(value, lanes, element)
        type = vector(lanes, element)
        first = self.let(f"insertelement {type} poison, {element} {value}, i64 0")
        return self.let(f"shufflevector {type} {first}, {type} poison, <{lanes} x i32> zeroinitializer")

    def lane_numbers(self, lanes: int, element: str = "i64") -> str:
        """Return the constant vector 0, 1, 2, …"""
        return "<" + ", ".join(f"{element} {lane}" for lane in range(lanes)) + ">" if lanes > 1 else "0"

    def lanes_below(self, count: str | int, lanes: int) -> str:
        """Return the mask of the first ``count`` lanes."""
        limit = self.spread(str(count), lanes, "i64")
        return self.let(f"icmp ult {vector(lanes, 'i64')} {self.lane_numbers(lanes)}, {limit}")

    def masked_load(self, type: str, pointer: str, align: int, mask: str, lanes: int) -> str:
        """Load the lanes of a mask; other lanes are zero, and their memory is not accessed."""
        name = f"llvm.masked.load.{suffix(type)}.p0"
        self.declarations[f"declare {type} @{name}(ptr, i32, <{lanes} x i1>, {type})"] = None
        return self.let(
            f"call {type} @{name}(ptr {pointer}, i32 {align}, <{lanes} x i1> {mask}, {type} zeroinitializer)"
        )

    def masked_store(self, type: str, value: str, pointer: str, align: int, mask: str, lanes: int) -> None:
        """Store the lanes of a mask; the memory of other lanes is not accessed."""
        name = f"llvm.masked.store.{suffix(type)}.p0"
        self.declarations[f"declare void @{name}({type}, ptr, i32, <{lanes} x i1>)"] = None
        self.line(f"call void @{name}({type} {value}, ptr {pointer}, i32 {align}, <{lanes} x i1> {mask})")

    def opaque(self, type: str, value: str | int) -> str:
        """Return the same value, hidden from LLVM's optimizer.

        Loop strength reduction takes most of the time of code generation in loops with many addresses; addresses that
        depend on an opaque value are left as written.
        """
        register = "v" if type.startswith("<") else "r"
        return self.let(f'call {type} asm "", "={register},0"({type} {value}) nounwind willreturn memory(none)')

    def prefetch(self, pointer: str, level: int = 1) -> None:
        """Prefetch a cache line for reading, into the cache of a level."""
        self.call("void", "llvm.prefetch.p0", [("ptr", pointer), ("i32", "0"), ("i32", str(4 - level)), ("i32", "1")])


@functools.cache
def suffix(type: str) -> str:
    """Return the suffix of intrinsics for a type: ``<8 x float>`` gives ``v8f32``."""
    names = {"float": "f32", "double": "f64", "half": "f16", "bfloat": "bf16"}
    if type.startswith("<"):
        lanes, element = type[1:-1].split(" x ")
        return f"v{lanes}{names.get(element, element)}"
    return names.get(type, type)
