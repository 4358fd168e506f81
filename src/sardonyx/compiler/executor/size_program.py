"""Size tables: the sizes that a plan needs, as instructions without common subexpressions.

A size is the index of a *register*, an entry of an array of 64-bit integers. The caller fills the registers of
constants and symbols; every other register is computed by the instruction with its index from earlier registers.
:mod:`.tape_planner` has the machine code that executes the instructions.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from enum import IntEnum

import numpy as np

from sardonyx.core.dim import Dim, Size
from sardonyx.core.dim.polynomial import Atom
from sardonyx.errors import UnsupportedError

ROW_WORDS = 3
"""Words of an instruction: the operation and the registers of its operands."""

_LEAST, _GREATEST = -(1 << 63), (1 << 63) - 1


class Operation(IntEnum):
    """Operation of an instruction."""

    KEEP = 0  # the register is unchanged
    ADD = 1
    MULTIPLY = 2
    DIVIDE = 3  # rounded down; a fault if the divisor is 0
    LEAST = 4
    GREATEST = 5
    BROADCAST = 6  # the operand that is not 1; a fault if both are not 1 and differ
    EQUAL = 7  # the first operand; a fault if the operands differ
    DIFFER = 8  # 1 if the operands differ, else 0


_OPERATIONS = {
    "//": Operation.DIVIDE,
    "min": Operation.LEAST,
    "max": Operation.GREATEST,
    "broadcast": Operation.BROADCAST,
}

_FOLDS: dict[Operation, Callable[..., int]] = {
    Operation.DIVIDE: operator.floordiv,
    Operation.LEAST: min,
    Operation.GREATEST: max,
    Operation.DIFFER: lambda a, b: int(a != b),
}


class SizeTable:
    """Registers of sizes, and the instructions that compute them.

    Attributes:
        symbols: The registers of symbols, by name.
        dims: The registers of size expressions; after a fault, evaluating the expressions gives the error.
    """

    def __init__(self) -> None:
        self.symbols: dict[str, int] = {}
        self.dims: dict[Dim, int] = {}
        self._rows: list[tuple[Operation, int, int]] = []
        self._start: list[int] = []
        self._constants: dict[int, int] = {}
        self._computed: dict[tuple[Operation, int, int], int] = {}
        self._atoms: dict[Atom, int] = {}

    def register(self, size: Size) -> int:
        """Return the register of a size.

        Raises:
            UnsupportedError: A constant factor has more than 64 bits.
        """
        if not isinstance(size, Dim):
            return self._constant(int(size))
        if size not in self.dims:
            self.dims[size] = self.sum(
                self.product([self._constant(factor), *map(self._atom, atoms)]) for _, atoms, factor in size.terms
            )
        return self.dims[size]

    def reserve(self) -> int:
        """Add a register that no instruction computes."""
        return self._append((Operation.KEEP, 0, 0), 0)

    def sum(self, registers: Iterable[int]) -> int:
        """Return the register of a sum."""
        return self._fold(Operation.ADD, registers, 0)

    def product(self, registers: Iterable[int]) -> int:
        """Return the register of a product."""
        return self._fold(Operation.MULTIPLY, registers, 1)

    def round_up(self, register: int, step: int) -> int:
        """Return the register of a number rounded up to a multiple of ``step``."""
        whole = self.operation(Operation.DIVIDE, self.sum([register, self._constant(step - 1)]), self._constant(step))
        return self.product([whole, self._constant(step)])

    def operation(self, operation: Operation, a: int, b: int) -> int:
        """Return the register of an operation's result."""
        numbers = self.number(a), self.number(b)
        fold = _FOLDS.get(operation)
        if fold is not None and numbers[0] is not None and numbers[1]:
            return self._constant(fold(*numbers))
        row = operation, a, b
        if row not in self._computed:
            self._computed[row] = self._append(row, 0)
        return self._computed[row]

    def require_equal(self, a: Size, b: Size) -> None:
        """Add an instruction that faults if two sizes differ."""
        self.operation(Operation.EQUAL, self.register(a), self.register(b))

    def misfits(self, pairs: Iterable[tuple[Size, Size]]) -> int:
        """Return the register of the number of pairs whose sizes differ."""
        return self.sum([self.operation(Operation.DIFFER, self.register(a), self.register(b)) for a, b in pairs])

    def number(self, register: int) -> int | None:
        """Return the number in a register if it is a constant, else None."""
        number = self._start[register]
        return number if self._constants.get(number) == register else None

    def rows(self) -> np.ndarray:
        """Return the instructions, ``[registers, ROW_WORDS]``."""
        return np.array(self._rows, np.int64).reshape(-1, ROW_WORDS)

    def start(self) -> np.ndarray:
        """Return the initial registers: constants are set, others are 0."""
        return np.array(self._start, np.int64)

    def _append(self, row: tuple[Operation, int, int], number: int) -> int:
        self._rows.append(row)
        self._start.append(number)
        return len(self._rows) - 1

    def _constant(self, number: int) -> int:
        if number not in self._constants:
            if not _LEAST <= number <= _GREATEST:
                raise UnsupportedError(f"a size expression has the factor {number}; expected at most 64 bits.")
            self._constants[number] = self._append((Operation.KEEP, 0, 0), number)
        return self._constants[number]

    def _atom(self, atom: Atom) -> int:
        register = self._atoms.get(atom)
        if register is None:
            if atom.kind == "symbol":
                register = self.symbols[atom.name] = self.reserve()
            else:
                first, *others = [self.register(arg) for arg in atom.args]
                for other in others:
                    first = self.operation(_OPERATIONS[atom.kind], first, other)
                register = first
            self._atoms[atom] = register
        return register

    def _fold(self, operation: Operation, registers: Iterable[int], neutral: int) -> int:
        """Chain a sum or product of registers; constants are folded, and the neutral element is omitted."""
        constant, others = neutral, []
        for register in registers:
            number = self.number(register)
            if number is None:
                others.append(register)
            else:
                constant = constant + number if operation == Operation.ADD else constant * number
        if not others or (operation == Operation.MULTIPLY and constant == 0):
            return self._constant(constant)
        if constant != neutral:
            others.append(self._constant(constant))
        result = others[0]
        for other in others[1:]:
            result = self.operation(operation, result, other)
        return result
