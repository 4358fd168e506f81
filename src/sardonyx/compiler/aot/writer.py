"""Writer of C libraries: the plan as data, the weights as an object file, and the call of the linker."""

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
    """The linker failed; the message contains the linker's output."""


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
        inputs: Names of the inputs.
        outputs: Names of the results.
        path: The library file.
        header_path: The header file; None writes no header.
        prefix: Prefix of all names; by default the file name, without ``lib`` and without everything after a dot.

    Raises:
        OptionError: The prefix is not a C identifier.
        UnsupportedError: Data decide sizes, a part has no kernel, or the system is not Linux.
        MissingDependencyError: The linker is not installed.
        LinkError: The linker failed.
        ModelFileError: A file cannot be written.
    """
    prefix = _prefix(path) if prefix is None else prefix
    if prefix != identifier(prefix):
        raise OptionError(
            f"expected a C identifier, got {prefix!r}.",
            where="prefix",
            remedy="Use letters, digits and _, starting with a letter.",
        )
    linker = _linker()
    if not fork_join.has_futex(program.target):
        raise UnsupportedError("C libraries are written on Linux for x86-64 and AArch64 only.", where=str(path))
    _check(program, inputs)
    input_tensors = [_tensor(name, value) for name, value in zip(inputs, program.function.inputs, strict=True)]
    output_tensors = [_tensor(name, value) for name, value in zip(outputs, program.function.results, strict=True)]
    weights = _Weights()
    parts = _parts(program, prefix, input_tensors, output_tensors, weights)
    try:
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".sardonyx-") as folder:
            linked = _link(linker, Path(folder), parts, program, weights.arrays, path.name)
            if header_path is not None:
                producer = f"{prefix}: compiled for {program.target.name} by Sardonyx {_version()}."
                with tempfile.TemporaryDirectory(dir=header_path.parent, prefix=".sardonyx-") as header_folder:
                    text = Path(header_folder) / header_path.name
                    text.write_text(
                        header(prefix, parts.threads, input_tensors, output_tensors, list(parts.sizes), producer),
                        encoding="utf-8",
                    )
                    text.replace(header_path)
            linked.replace(path)
    except OSError as error:
        raise ModelFileError(f"cannot be written: {error.strerror}.", where=str(error.filename or path)) from error


def _prefix(path: Path) -> str:
    return identifier(path.name.removeprefix("lib").partition(".")[0])


def _linker() -> list[str]:
    words = shlex.split(os.environ.get("CC", "cc"))
    program = shutil.which(words[0]) if words else None
    if program is None:
        raise MissingDependencyError(
            f"the linker `{' '.join(words)}` was not found.",
            where="C library",
            remedy="Install a C compiler (on Debian `apt install gcc`), or name one in CC.",
        )
    return [program, *words[1:]]


def _version() -> str:
    return str(sys.modules["sardonyx"].__version__)


def _check(program: Program, inputs: Sequence[str]) -> None:
    for name, value in zip(inputs, program.function.inputs, strict=True):
        if not isinstance(value.type, TensorType) or value.type.dtype == t.STRING:
            raise UnsupportedError(
                f"expected a tensor of numbers, got {value.type}; C libraries accept no other type.", where=name
            )
    if program.needs_graph:
        raise UnsupportedError(f"the model is not compiled as a whole: {'; '.join(program.needs_graph)}.")


def _tensor(name: str, value: Value) -> Tensor:
    assert isinstance(value.type, TensorType)
    return Tensor(name, value.type.dtype, shape_of(value))


class _Weights:
    """The constants of a library.

    Attributes:
        arrays: The constants with an address, in storage order.
    """

    def __init__(self) -> None:
        self._addresses: dict[object, Address] = {}
        self._bytes = 0
        self.arrays: list[np.ndarray] = []

    def address(self, key: object, array: np.ndarray) -> Address:
        """Return the address of an array; a new array is stored after the others."""
        if key not in self._addresses:
            self._addresses[key] = Address(weights_object.SYMBOL, self._bytes)
            self.arrays.append(array)
            self._bytes += weights_object.padded_bytes(array)
        return self._addresses[key]


def _parts(program: Program, prefix: str, inputs: list[Tensor], outputs: list[Tensor], weights: _Weights) -> Parts:
    """Return the contents of the library."""
    function = program.function
    numbers: dict[Value, int] = {value: number for number, value in enumerate(function.inputs)}
    written = {value for launch in program.launches for value in launch.all_writes}
    size_tensors = [value for value in dict.fromkeys(function.results) if value.op == "dims" and value not in numbers]
    plan = program.plan_whole(size_tensors)
    sizes = {name: plan.symbols[name] for name in _open_sizes(function)}
    unknown = plan.symbols.keys() - sizes.keys()
    if unknown:
        raise UnsupportedError(f"the sizes {', '.join(sorted(unknown))} are not sizes of inputs.", where=prefix)
    copies = []
    for number, value in enumerate(function.results):
        if value in numbers:
            copies.append(Copy(number, numbers[value]))
        elif value in written:
            numbers[value] = len(inputs) + number
        elif value in plan.size_tensors:
            copies.append(Copy(number, InTape(plan.size_tensors[value])))
        else:
            copies.append(Copy(number, weights.address(value, program.known_result(value))))
    links = [(word, _address(link, program, weights)) for word, link in plan.links]
    feeds = [(int(word), numbers[value]) for word, value in zip(*plan.value_words, strict=True)]
    shapes = [plan.shapes[value] for value in (*function.inputs, *function.results)]
    return Parts(
        prefix, program.target, program.pool.threads, inputs, outputs, plan, sizes, shapes, links, feeds, copies,
        program.flushes,
    )  # fmt: skip


def _open_sizes(function: Function) -> list[str]:
    """Return the names of the open sizes of inputs, in order of appearance."""
    sizes = [size for value in function.inputs for size in shape_of(value) if isinstance(size, Dim)]
    return list(dict.fromkeys(name for size in sizes for name in sorted(symbols(size))))


def _address(link: Link, program: Program, weights: _Weights) -> Address:
    """Return the address of a link of the tape."""
    if isinstance(link, Part):
        addresses = {Part.POOL: Address(POOL), Part.ALONE: Address(POOL, Field.ALONE), Part.TRUE: Address(TRUE)}
        return addresses.get(link) or Address(link.value)
    if isinstance(link, Kernel):
        return Address(program.kernel_names[link.text])
    return weights.address(link.buffer, program.prepared[link.buffer])


def _link(linker: list[str], folder: Path, parts: Parts, program: Program, arrays: list[np.ndarray], name: str) -> Path:
    """Link the library in a folder; return its path."""
    target = program.target
    runtime = objects([tape_player.text(target), fork_join.text(target, futex=True)], target, store(), jobs=1)
    files = []
    for number, code in enumerate([compiled(*instance_code.module(parts)), *runtime, *program.objects]):
        files.append(folder / f"{number}.o")
        files[-1].write_bytes(code)
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
        raise LinkError(f"the linker failed: {ended.stderr.strip()[:2000]}", where=" ".join(linker))
    return linked
