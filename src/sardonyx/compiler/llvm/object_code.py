"""From LLVM IR to machine code: assemble, optimize, emit an object, load it, find its functions.

An object is position-independent bytes that any process on the same kind of machine can load; making one is slow
(LLVM works behind one lock a process), loading one takes under a millisecond.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Iterable

import llvmlite
import llvmlite.binding as llvm

from sardonyx.compiler.target.description import Target
from sardonyx.errors import SardonyxError

_lock = threading.RLock()
_ready = False

if hasattr(os, "register_at_fork"):
    # A process that is forked while another thread is in LLVM would find it locked for ever.
    os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)


def _initialize() -> None:
    global _ready
    with _lock:
        if not _ready:
            llvm.initialize_all_targets()
            llvm.initialize_all_asmprinters()
            llvm.initialize_native_asmparser()
            _ready = True


class CodeGenerationError(SardonyxError):
    """LLVM refuses what was generated: a fault of this package, with the text that shows it."""


def _machine(target: Target, jit: bool) -> llvm.TargetMachine:
    _initialize()
    return llvm.Target.from_triple(target.triple).create_target_machine(
        cpu=target.cpu, features=target.features, opt=2, reloc="pic", codemodel="default", jit=jit
    )


def module_text(target: Target, definitions: Iterable[str], declarations: Iterable[str] = ()) -> str:
    """The text of a module for a target."""
    return "\n".join([f'target triple = "{target.triple}"', *dict.fromkeys(declarations), *definitions, ""])


def compiled(text: str, target: Target) -> bytes:
    """Compile a module to object code.

    Raises:
        CodeGenerationError: LLVM does not accept the text.
    """
    with _lock:
        machine = _machine(target, jit=False)
        module = _verified(text)
        _optimize(module, machine)
        return bytes(machine.emit_object(module))


def assembly(text: str, target: Target) -> str:
    """The optimized module as assembly language, for people and for tests of what instructions were chosen."""
    with _lock:
        machine = _machine(target, jit=False)
        module = _verified(text)
        _optimize(module, machine)
        return str(machine.emit_assembly(module))


def _verified(text: str) -> llvm.ModuleRef:
    try:
        module = llvm.parse_assembly(text)
        module.verify()
    except RuntimeError as error:
        raise CodeGenerationError(f"LLVM refuses a generated module: {str(error)[:2000]}") from error
    return module


def _optimize(module: llvm.ModuleRef, machine: llvm.TargetMachine) -> None:
    """What turns slots into registers and shares address arithmetic; kernels are vectors and tiles as written."""
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
    passes.add_new_gvn_pass()
    passes.add_loop_rotate_pass()
    passes.add_simplify_cfg_pass()
    passes.add_instruction_combine_pass()
    passes.add_dead_code_elimination_pass()
    passes.run(module, builder)


@functools.cache
def toolchain() -> str:
    """Names what compiles: with another LLVM, or other passes, a text may become other code."""
    ours = [(code.co_code.hex(), code.co_names, code.co_consts) for code in (_machine.__code__, _optimize.__code__)]
    return f"{llvmlite.__version__} {llvm.llvm_version_info} {ours}"


class LoadedCode:
    """Object code in memory, ready to be called; it stays as long as this lives.

    Args:
        objects: The object code, one or more; functions of one may be called by another.
        target: What it was made for.
    """

    def __init__(self, objects: Iterable[bytes], target: Target) -> None:
        with _lock:
            machine = _machine(target, jit=True)
            # The engine owns the target machine.
            empty = llvm.parse_assembly(f'target triple = "{target.triple}"')
            self._engine = llvm.create_mcjit_compiler(empty, machine)
            for code in objects:
                self._engine.add_object_file(llvm.object_file.ObjectFileRef.from_data(code))
            self._engine.finalize_object()

    def address(self, name: str) -> int:
        """The address of a function.

        Raises:
            CodeGenerationError: There is none of that name.
        """
        with _lock:
            found = int(self._engine.get_function_address(name))
        if not found:
            raise CodeGenerationError(f"there is no compiled function {name}.")
        return found
