"""Size tables: all sizes that a plan needs, as one list of instructions in which nothing is computed twice.

A size is the number of a *register*, a place in an array of 64-bit numbers. Registers of constants and symbols are
filled by whoever has their numbers; each other is computed by the instruction at its place from registers before it.
:mod:`.planning` has the machine code that does so.
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
"""Words of an instruction: what it does, and the registers of its operands."""

_LEAST, _GREATEST = -(1 << 63), (1 << 63) - 1


class Operation(IntEnum):
    """What an instruction does."""

    KEEP = 0  # what stands in the register stays
    ADD = 1
    MULTIPLY = 2
    DIVIDE = 3  # rounded down; by 0 is a fault
    LEAST = 4
    GREATEST = 5
    BROADCAST = 6  # the one that is not 1; a fault where neither is and they differ
    EQUAL = 7  # the first; a fault where they differ
    DIFFER = 8  # 1 where they do, 0 where not


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
    """Gives sizes their registers.

    Attributes:
        symbols: The registers of symbols, by name.
        dims: The expressions that were asked for: who evaluates them finds what is wrong where instructions fail.
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
        """The register of a size.

        Raises:
            UnsupportedError: A factor in it has more than 64 bits.
        """
        if not isinstance(size, Dim):
            return self._constant(int(size))
        if size not in self.dims:
            self.dims[size] = self.sum(
                self.product([self._constant(factor), *map(self._atom, atoms)]) for _, atoms, factor in size.terms
            )
        return self.dims[size]

    def reserved(self) -> int:
        """A register whose number comes from elsewhere."""
        return self._append((Operation.KEEP, 0, 0), 0)

    def sum(self, registers: Iterable[int]) -> int:
        """The register of a sum."""
        return self._folded(Operation.ADD, registers, 0)

    def product(self, registers: Iterable[int]) -> int:
        """The register of a product."""
        return self._folded(Operation.MULTIPLY, registers, 1)

    def up(self, register: int, step: int) -> int:
        """The register of a number rounded up to a multiple of a step."""
        whole = self.operation(Operation.DIVIDE, self.sum([register, self._constant(step - 1)]), self._constant(step))
        return self.product([whole, self._constant(step)])

    def operation(self, operation: Operation, a: int, b: int) -> int:
        """The register of what an instruction computes."""
        numbers = self.number(a), self.number(b)
        fold = _FOLDS.get(operation)
        if fold is not None and numbers[0] is not None and numbers[1]:
            return self._constant(fold(*numbers))
        row = operation, a, b
        if row not in self._computed:
            self._computed[row] = self._append(row, 0)
        return self._computed[row]

    def require_equal(self, a: Size, b: Size) -> None:
        """Have it found where two sizes differ."""
        self.operation(Operation.EQUAL, self.register(a), self.register(b))

    def misfits(self, pairs: Iterable[tuple[Size, Size]]) -> int:
        """The register of how many of the pairs are of sizes that differ."""
        return self.sum([self.operation(Operation.DIFFER, self.register(a), self.register(b)) for a, b in pairs])

    def number(self, register: int) -> int | None:
        """The number in a register, where it is a constant."""
        number = self._start[register]
        return number if self._constants.get(number) == register else None

    def rows(self) -> np.ndarray:
        """The instructions, ``[registers, ROW_WORDS]``."""
        return np.array(self._rows, np.int64).reshape(-1, ROW_WORDS)

    def start(self) -> np.ndarray:
        """The registers before any is computed: constants are in their places."""
        return np.array(self._start, np.int64)

    def _append(self, row: tuple[Operation, int, int], number: int) -> int:
        self._rows.append(row)
        self._start.append(number)
        return len(self._rows) - 1

    def _constant(self, number: int) -> int:
        if number not in self._constants:
            if not _LEAST <= number <= _GREATEST:
                raise UnsupportedError(f"a size is computed with the number {number}, of more than 64 bits.")
            self._constants[number] = self._append((Operation.KEEP, 0, 0), number)
        return self._constants[number]

    def _atom(self, atom: Atom) -> int:
        found = self._atoms.get(atom)
        if found is None:
            if atom.kind == "symbol":
                found = self.symbols[atom.name] = self.reserved()
            else:
                first, *others = [self.register(arg) for arg in atom.args]
                for other in others:
                    first = self.operation(_OPERATIONS[atom.kind], first, other)
                found = first
            self._atoms[atom] = found
        return found

    def _folded(self, operation: Operation, registers: Iterable[int], neutral: int) -> int:
        """Constants are put together; what is neutral is left out."""
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
        found = others[0]
        for other in others[1:]:
            found = self.operation(operation, found, other)
        return found
