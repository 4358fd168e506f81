"""From LLVM IR to machine code: assemble, optimize, emit an object, load the object, find its functions.

An object is position-independent code that any process on the same kind of machine can load. Compilation is slow, and
serialized by one lock in a process; loading takes less than a millisecond.
"""

from __future__ import annotations

import functools
import os
import re
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from sardonyx.compiler.target.description import Target
from sardonyx.errors import SardonyxError

if TYPE_CHECKING:
    import llvmlite.binding as llvm

_lock = threading.RLock()
_ready = False

if hasattr(os, "register_at_fork"):
    # In a process forked while another thread holds the lock, the lock would never be released.
    os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)


def _initialize() -> None:
    import llvmlite.binding as llvm

    global _ready
    with _lock:
        if not _ready:
            llvm.initialize_all_targets()
            llvm.initialize_all_asmprinters()
            llvm.initialize_native_asmparser()
            _ready = True


class CodeGenerationError(SardonyxError):
    """LLVM refuses a generated module: a defect of this package; the message quotes LLVM."""


def _machine(target: Target, jit: bool) -> llvm.TargetMachine:
    import llvmlite.binding as llvm

    _initialize()
    return llvm.Target.from_triple(target.triple).create_target_machine(
        cpu=target.cpu, features=target.features, opt=2, reloc="pic", codemodel="default", jit=jit
    )


def module_text(target: Target, definitions: Iterable[str], declarations: Iterable[str] = ()) -> str:
    """Return the text of a module for a target."""
    return "\n".join([f'target triple = "{target.triple}"', *dict.fromkeys(declarations), *definitions, ""])


def compiled(text: str, target: Target) -> bytes:
    """Compile a module to object code.

    Raises:
        CodeGenerationError: LLVM does not accept the text.
    """
    with _lock:
        machine = _machine(target, jit=False)
        return bytes(machine.emit_object(_optimized(text, machine)))


def assembly(text: str, target: Target) -> str:
    """Return the optimized module as assembly language, for people and for performance guards."""
    with _lock:
        machine = _machine(target, jit=False)
        return str(machine.emit_assembly(_optimized(text, machine)))


def is_valid(text: str) -> bool:
    """Return True if LLVM accepts the text of a module."""
    with _lock:
        try:
            _verified(text)
        except CodeGenerationError:
            return False
    return True


def _verified(text: str) -> llvm.ModuleRef:
    import llvmlite.binding as llvm

    try:
        module = llvm.parse_assembly(text)
        module.verify()
    except RuntimeError as error:
        raise CodeGenerationError(f"LLVM refuses a generated module: {str(error)[:2000]}") from error
    return module


def optimize(module: llvm.ModuleRef, machine: llvm.TargetMachine) -> None:
    """Promote stack slots to registers and simplify address arithmetic; kernels are vectorized and tiled already.

    Global value numbering would find nothing: the builder of the IR does not write an available result again. Without
    the second combination of instructions, products of Winograd spill a vector.
    """
    import llvmlite.binding as llvm

    options = llvm.create_pipeline_tuning_options(speed_level=2)
    options.loop_vectorization = False
    options.slp_vectorization = False
    options.loop_unrolling = False
    options.loop_interleaving = False
    builder = llvm.create_pass_builder(machine, options)
    passes = llvm.create_new_module_pass_manager()
    passes.add_sroa_pass()
    passes.add_simplify_cfg_pass()
    passes.add_instruction_combine_pass()
    passes.add_loop_rotate_pass()
    passes.add_simplify_cfg_pass()
    passes.add_instruction_combine_pass()
    passes.add_dead_code_elimination_pass()
    passes.run(module, builder)


def _optimized(text: str, machine: llvm.TargetMachine) -> llvm.ModuleRef:
    module = _verified(text)
    optimize(module, machine)
    return _verified(store_single_lanes(str(module))) if _NARROW_STORE.search(text) else module


_NARROW_STORE = re.compile(r"@llvm\.masked\.store\.v\d+i(?:8|16|32)\.")
_MASKED_STORE = re.compile(
    r"(?:tail )?call void @llvm\.masked\.store\.v(?P<lanes>\d+)(?P<element>i8|i16|i32)\.p0"
    r"\(<\d+ x i\d+> (?P<value>%[^,]+), ptr [^%@]*(?P<pointer>[%@][^,]+),(?: i32 immarg \d+,| i32 \d+,)?"
    r" <\d+ x i1> <(?P<mask>[^>]*)>\)[^\n]*"
)


def store_single_lanes(text: str) -> str:
    """Return a module with masked stores of one constant lane replaced by stores of this lane.

    With AVX-512, LLVM 22 stores a truncated lane in its width before the truncation: a store of one byte of a vector
    <16 x i32> writes four. `tests/compiler/llvm/test_object_code.py` shows whether an LLVM needs this function.
    """
    return _MASKED_STORE.sub(_stored_lane, text)


def _stored_lane(match: re.Match[str]) -> str:
    mask, element, number = match["mask"], match["element"], match.start()
    if mask.count("true") != 1:
        return match[0]
    lane = mask[: mask.index("true")].count(",")
    return (
        f'%"lane {number}" = extractelement <{match["lanes"]} x {element}> {match["value"]}, i64 {lane}\n'
        f'  %"address {number}" = getelementptr {element}, ptr {match["pointer"]}, i64 {lane}\n'
        f'  store {element} %"lane {number}", ptr %"address {number}", align 1'
    )


@functools.cache
def toolchain() -> str:
    """Return an identification of the compiler: another LLVM version or pass list may give other code.

    The library that contains LLVM is identified by its size and time, since loading the library takes long.
    """
    import llvmlite

    libraries = sorted((Path(llvmlite.__file__).parent / "binding").glob("*llvmlite.*[!y]"))
    states = [(library.name, library.stat().st_size, library.stat().st_mtime_ns) for library in libraries]
    functions = (_machine, optimize, store_single_lanes, _stored_lane)
    ours = [(code.co_code.hex(), code.co_names, code.co_consts) for code in (f.__code__ for f in functions)]
    return f"{llvmlite.__version__} {states} {ours}"


class LoadedCode:
    """Object code in memory, callable while this object lives.

    Args:
        objects: Object code, one or more; functions of one may call functions of another.
        target: The target of the code.
    """

    def __init__(self, objects: Iterable[bytes], target: Target) -> None:
        import llvmlite.binding as llvm

        with _lock:
            machine = _machine(target, jit=True)
            # The engine owns the target machine.
            empty = llvm.parse_assembly(f'target triple = "{target.triple}"')
            self._engine = llvm.create_mcjit_compiler(empty, machine)
            for code in objects:
                self._engine.add_object_file(llvm.object_file.ObjectFileRef.from_data(code))
            self._engine.finalize_object()

    def address(self, name: str) -> int:
        """Return the address of a function.

        Raises:
            CodeGenerationError: Unknown name.
        """
        with _lock:
            address = int(self._engine.get_function_address(name))
        if not address:
            raise CodeGenerationError(f"unknown compiled function {name}.")
        return address
