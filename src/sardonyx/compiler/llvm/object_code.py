"""From LLVM IR to machine code: assemble, optimize, emit an object, load the object, find its functions.

An object is position-independent code that any process on the same kind of machine can load. Compilation is slow:
threads compile at the same time, each module in a context of its own, and the calls that take long are made without
llvmlite's lock. Loading takes less than a millisecond.
"""

from __future__ import annotations

import ctypes
import functools
import os
import re
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from sardonyx.compiler.target.description import Target
from sardonyx.errors import SardonyxError

if TYPE_CHECKING:
    import llvmlite.binding as llvm

_lock = threading.RLock()
"""Held while the context that all threads share is used."""

_ready = False


class _Compilations:
    """A context for compilations, which any number of threads enter, and during which the process does not fork.

    A child process has only the thread that forks: locks that others hold, of LLVM or of llvmlite, would stay locked.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._running = 0
        self._held = 0

    def __enter__(self) -> None:
        with self._changed:
            while self._held:
                self._changed.wait()
            self._running += 1

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with self._changed:
            self._running -= 1
            self._changed.notify_all()

    def hold(self) -> None:
        """Wait for the end of all compilations; none begins before :meth:`release`."""
        self._changed.acquire()
        self._held += 1
        while self._running:
            self._changed.wait()

    def release(self) -> None:
        """Let compilations begin again."""
        self._held -= 1
        self._changed.notify_all()
        self._changed.release()

    def renew(self) -> None:
        """Begin anew in a child process, in which nobody waits."""
        self._changed = threading.Condition()
        self._running = self._held = 0


_compilations = _Compilations()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)
    os.register_at_fork(
        before=_compilations.hold, after_in_parent=_compilations.release, after_in_child=_compilations.renew
    )


def _unlocked(name: str) -> Callable[..., Any]:
    """Return a function of llvmlite's library that other threads need not wait for.

    LLVM's functions may run in several threads if these share no context, module or target machine. A version of
    llvmlite that wraps its functions in another way gives the function with the lock.
    """
    import llvmlite.binding as llvm

    function = getattr(llvm.ffi.lib, name)
    return getattr(function, "_cfn", function)  # type: ignore[no-any-return]


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
    import llvmlite.binding as llvm

    # Closed here and not when the function ends: in a fork, no thread may be in a call of llvmlite.
    with _compilations, llvm.create_context() as context, _machine(target, jit=False) as machine:
        module = _optimized(text, machine, context)
        try:
            return _emitted(module, machine)
        finally:
            module.close()


def _emitted(module: llvm.ModuleRef, machine: llvm.TargetMachine) -> bytes:
    """Return the object code of a module; see :func:`_unlocked`."""
    from llvmlite.binding import ffi

    with ffi.OutputString() as error:
        buffer = _unlocked("LLVMPY_TargetMachineEmitToMemory")(machine, module, 1, error)
        if not buffer:
            raise CodeGenerationError(f"LLVM emits no code for a generated module: {error}")
    try:
        return ctypes.string_at(ffi.lib.LLVMPY_GetBufferStart(buffer), ffi.lib.LLVMPY_GetBufferSize(buffer))
    finally:
        ffi.lib.LLVMPY_DisposeMemoryBuffer(buffer)


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


def _verified(text: str, context: llvm.ContextRef | None = None) -> llvm.ModuleRef:
    import llvmlite.binding as llvm

    try:
        module = llvm.parse_assembly(text, context)
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
    _unlocked("LLVMPY_RunNewModulePassManager")(passes, module, builder)


def _optimized(text: str, machine: llvm.TargetMachine, context: llvm.ContextRef | None = None) -> llvm.ModuleRef:
    module = _verified(text, context)
    optimize(module, machine)
    if not _NARROW_STORE.search(text):
        return module
    changed = store_single_lanes(str(module))
    module.close()
    return _verified(changed, context)


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
        objects: Object code; functions of one may call functions of another. Without any, LLVM is not loaded.
        target: The target of the code.
    """

    def __init__(self, objects: Sequence[bytes], target: Target) -> None:
        self._engine: Any = None
        if not objects:
            return
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
            address = 0 if self._engine is None else int(self._engine.get_function_address(name))
        if not address:
            raise CodeGenerationError(f"unknown compiled function {name}.")
        return address
