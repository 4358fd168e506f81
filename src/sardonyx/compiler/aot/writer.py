"""Writing a C library: a program's plan as data, its weights as an object, and what links them."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from sardonyx.base.artifact_store import store
from sardonyx.compiler.analysis.strided_views import shape_of
from sardonyx.compiler.aot import instance_code, weights_object
from sardonyx.compiler.aot.c_interface import Tensor, header, identifier
from sardonyx.compiler.aot.instance_layout import POOL, TRUE, Address, Copy, InTape, Parts
from sardonyx.compiler.executor import fork_join, tape_player
from sardonyx.compiler.executor.fork_join import Field
from sardonyx.compiler.llvm.object_code import compiled
from sardonyx.compiler.llvm.parallel_build import objects
from sardonyx.compiler.plan.tape import Kernel, Link, Part
from sardonyx.compiler.program import Program
from sardonyx.core.dim import Dim, symbols
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Function, Value
from sardonyx.core.ir.types import TensorType
from sardonyx.errors import MissingDependencyError, ModelFileError, OptionError, SardonyxError, UnsupportedError


class LinkError(SardonyxError):
    """The linker refuses what was compiled; holds what it says."""


def write_library(
    program: Program,
    inputs: Sequence[str],
    outputs: Sequence[str],
    path: Path,
    header_path: Path | None = None,
    prefix: str | None = None,
) -> None:
    """Write a program as a shared library of C functions, each file as a whole or not at all.

    Args:
        program: The program, with its graph.
        inputs: The names of its inputs.
        outputs: The names of its results.
        path: Where the library goes.
        header_path: Where its header goes, if anywhere.
        prefix: What its names begin with; by default the name of its file, without ``lib`` and what follows a dot.

    Raises:
        OptionError: The prefix is no name in C.
        UnsupportedError: Data decide its sizes, or no kernel computes a part, or the system is another than Linux.
        MissingDependencyError: There is no linker.
        LinkError: The linker refuses it.
        ModelFileError: A file cannot be written.
    """
    prefix = _prefix(path) if prefix is None else prefix
    if prefix != identifier(prefix):
        raise OptionError(
            f"{prefix!r} is no name in C.", where="prefix", remedy="Take letters, digits and _; a letter first."
        )
    linker = _linker()
    if not fork_join.has_futex(program.target):
        raise UnsupportedError("C libraries are written on Linux for x86-64 and AArch64 only.", where=str(path))
    _check(program, inputs)
    given = [_tensor(name, value) for name, value in zip(inputs, program.function.inputs, strict=True)]
    made = [_tensor(name, value) for name, value in zip(outputs, program.function.results, strict=True)]
    weights = _Weights()
    parts = _parts(program, prefix, given, made, weights)
    try:
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".sardonyx-") as folder:
            linked = _linked(linker, Path(folder), parts, program, weights.arrays, path.name)
            if header_path is not None:
                made_by = f"{prefix}: compiled for {program.target.name} by Sardonyx {_version()}."
                with tempfile.TemporaryDirectory(dir=header_path.parent, prefix=".sardonyx-") as beside:
                    text = Path(beside) / header_path.name
                    text.write_text(
                        header(prefix, parts.threads, given, made, list(parts.sizes), made_by), encoding="utf-8"
                    )
                    text.replace(header_path)
            linked.replace(path)
    except OSError as error:
        raise ModelFileError(f"cannot be written: {error.strerror}.", where=str(error.filename or path)) from error


def _prefix(path: Path) -> str:
    return identifier(path.name.removeprefix("lib").partition(".")[0])


def _linker() -> list[str]:
    words = shlex.split(os.environ.get("CC", "cc"))
    found = shutil.which(words[0]) if words else None
    if found is None:
        raise MissingDependencyError(
            f"there is no linker `{' '.join(words)}`.",
            where="C library",
            remedy="Install a C compiler (on Debian `apt install gcc`), or name one in CC.",
        )
    return [found, *words[1:]]


def _version() -> str:
    return str(sys.modules["sardonyx"].__version__)


def _check(program: Program, inputs: Sequence[str]) -> None:
    for name, value in zip(inputs, program.function.inputs, strict=True):
        if not isinstance(value.type, TensorType) or value.type.dtype == t.STRING:
            raise UnsupportedError(f"is {value.type}, and C libraries take tensors of numbers.", where=name)
    if program.needs_graph:
        raise UnsupportedError(f"the model is not compiled as a whole: {'; '.join(program.needs_graph)}.")


def _tensor(name: str, value: Value) -> Tensor:
    assert isinstance(value.type, TensorType)
    return Tensor(name, value.type.dtype, shape_of(value))


class _Weights:
    """The constants of a library.

    Attributes:
        arrays: Those that were asked for, in the order in which they lie.
    """

    def __init__(self) -> None:
        self._places: dict[object, Address] = {}
        self._bytes = 0
        self.arrays: list[np.ndarray] = []

    def place(self, key: object, array: np.ndarray) -> Address:
        """Where an array lies: behind those that there are, where it is new."""
        if key not in self._places:
            self._places[key] = Address(weights_object.SYMBOL, self._bytes)
            self.arrays.append(array)
            self._bytes += weights_object.room(array)
        return self._places[key]


def _parts(program: Program, prefix: str, inputs: list[Tensor], outputs: list[Tensor], weights: _Weights) -> Parts:
    """The tape and what surrounds it."""
    function = program.function
    numbers: dict[Value, int] = {value: number for number, value in enumerate(function.inputs)}
    written = {value for launch in program.launches for value in launch.makes}
    told = [value for value in dict.fromkeys(function.results) if value.op == "dims" and value not in numbers]
    plan = program.whole(told)
    sizes = {name: plan.symbols[name] for name in _open_sizes(function)}
    unknown = plan.symbols.keys() - sizes.keys()
    if unknown:
        raise UnsupportedError(f"the sizes {', '.join(sorted(unknown))} are none of the inputs'.", where=prefix)
    copies = []
    for number, value in enumerate(function.results):
        if value in numbers:
            copies.append(Copy(number, numbers[value]))
        elif value in written:
            numbers[value] = len(inputs) + number
        elif value in plan.size_tensors:
            copies.append(Copy(number, InTape(plan.size_tensors[value])))
        else:
            copies.append(Copy(number, weights.place(value, program.known_result(value))))
    links = [(word, _address(link, program, weights)) for word, link in plan.links]
    feeds = [(int(word), numbers[value]) for word, value in zip(*plan.value_words, strict=True)]
    shapes = [plan.shapes[value] for value in (*function.inputs, *function.results)]
    return Parts(
        prefix, program.target, program.pool.threads, inputs, outputs, plan, sizes, shapes, links, feeds, copies,
        program.flushes,
    )  # fmt: skip


def _open_sizes(function: Function) -> list[str]:
    """The names of the sizes of inputs that are open, as they come."""
    sizes = [size for value in function.inputs for size in shape_of(value) if isinstance(size, Dim)]
    return list(dict.fromkeys(name for size in sizes for name in sorted(symbols(size))))


def _address(link: Link, program: Program, weights: _Weights) -> Address:
    """What the linker knows a part of the tape by."""
    if isinstance(link, Part):
        named = {Part.POOL: Address(POOL), Part.ALONE: Address(POOL, Field.ALONE), Part.TRUE: Address(TRUE)}
        return named.get(link) or Address(link.value)
    if isinstance(link, Kernel):
        return Address(program.kernel_names[link.text])
    return weights.place(link.buffer, program.prepared[link.buffer])


def _linked(
    linker: list[str], folder: Path, parts: Parts, program: Program, arrays: list[np.ndarray], name: str
) -> Path:
    """The library, linked in a folder."""
    target = program.target
    own = objects([tape_player.text(target), fork_join.text(target, futex=True)], target, store(), jobs=1)
    files = []
    for number, each in enumerate([compiled(*instance_code.module(parts)), *own, *program.objects]):
        files.append(folder / f"{number}.o")
        files[-1].write_bytes(each)
    files.append(folder / "weights.o")
    with files[-1].open("wb") as file:
        weights_object.write_object(file, arrays, target.architecture)
    exports = folder / "exports"
    exports.write_text("{ global: " + " ".join(f"{name};" for name in parts.functions) + " local: *; };")
    arguments = folder / "arguments"
    arguments.write_text("\n".join(f'"{file}"' for file in files))
    linked = folder / name
    options = [f"-Wl,{option}" for option in (f"-soname,{name}", f"--version-script={exports}", "-z,defs")]
    command = [*linker, "-shared", "-o", str(linked), f"@{arguments}", *options, "-lm", "-lpthread"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise LinkError(f"the linker says: {ended.stderr.strip()[:2000]}", where=" ".join(linker))
    return linked
