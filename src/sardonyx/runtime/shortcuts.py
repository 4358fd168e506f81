"""Run, explain, profile or compile a model in one call, with a session made for the call."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sardonyx.compiler.explain import Explanation
from sardonyx.compiler.explain import explain as explain_program
from sardonyx.errors import OptionError, UnsupportedError
from sardonyx.model import Loadable
from sardonyx.runtime.compiled.compiled_file import is_compiled_file
from sardonyx.runtime.options import ProviderSpec
from sardonyx.runtime.profiling.profile import Profile, drawn_feeds
from sardonyx.runtime.session import Session


def run(
    model: Loadable,
    feeds: Mapping[str, Any] | None = None,
    *,
    sizes: Mapping[str, int] | None = None,
    threads: int | None = None,
    providers: Sequence[ProviderSpec] | None = None,
) -> dict[str, Any]:
    """Run a model once and return its outputs by name; a :class:`.Session` serves several runs.

    Args:
        model: The model, or the path of a compiled file.
        feeds: Inputs by name; random if None.
        sizes: Values of open sizes for random inputs, by name.
        threads: Number of threads; by default all processors of the process.
        providers: Providers in order of preference; see :class:`.SessionOptions`.

    Raises:
        OptionError: Both feeds and sizes.
        EvaluationError: The model runs on none of the random inputs.
        SardonyxError: The model cannot be loaded or run.
    """
    if feeds is not None and sizes:
        raise OptionError("the inputs determine the sizes.", where="sizes", remedy="Give sizes or feeds.")
    session = Session(model, providers=providers, compile="wait", threads=threads)
    if feeds is None:
        path_or_model = model if isinstance(model, (str, os.PathLike)) else session.model
        feeds, _ = drawn_feeds(path_or_model, session, sizes)
    return dict(zip((output.name for output in session.get_outputs()), session.run(None, feeds), strict=True))


def explain(
    model: Loadable | Session, sizes: Mapping[str, int] | None = None, *, threads: int | None = None
) -> Explanation:
    """Return the kernels of the compiled model, with their nodes, bytes, operations and boundaries.

    Args:
        model: The model, or a session that computes with native code.
        sizes: Values of open sizes, by name; costs that depend on other open sizes are None.
        threads: Threads to compile for; by default all processors of the process.

    Raises:
        UnsupportedError: The model is not compiled as a whole.
        SardonyxError: The model cannot be loaded.
    """
    session = model if isinstance(model, Session) else Session(model, compile="wait", threads=threads)
    session.wait()
    program = session.program
    if program is None:
        raise UnsupportedError(
            f"the model is not compiled: {session.not_compiled.removesuffix('.')}.",
            remedy="Use `sardonyx.profile` to measure it.",
        )
    return explain_program(program, sizes)


def profile(
    model: Loadable,
    feeds: Mapping[str, Any] | None = None,
    *,
    sizes: Mapping[str, int] | None = None,
    runs: int = 20,
    threads: int | None = None,
    providers: Sequence[ProviderSpec] | None = None,
) -> Profile:
    """Measure a model kernel by kernel; see :meth:`.Session.profile` for a session that runs already.

    Args:
        model: The model.
        feeds: Inputs by name; random if None.
        sizes: Values of open sizes for random inputs, by name.
        runs: Number of runs, for medians.
        threads: Number of threads; by default all processors of the process.
        providers: Providers in order of preference; see :class:`.SessionOptions`.

    Raises:
        OptionError: Both feeds and sizes, or no run to measure.
        EvaluationError: The model runs on none of the random inputs.
        SardonyxError: The model cannot be loaded or run.
    """
    if feeds is not None and sizes:
        raise OptionError("the inputs determine the sizes.", where="sizes", remedy="Give sizes or feeds.")
    session = Session(model, providers=providers, compile="wait", threads=threads)
    if feeds is None:
        feeds, _ = drawn_feeds(session.model, session, sizes)
    return session.profile(feeds, runs)


def compile(
    model: Loadable,
    path: str | os.PathLike[str],
    *,
    header: str | os.PathLike[str] | None = None,
    prefix: str | None = None,
    threads: int | None = None,
) -> None:
    """Compile a model ahead of time, with its weights, and write the machine code to a file.

    Args:
        model: The model.
        path: The file: a name that ends in ``.sdx`` is a file for sessions (:meth:`.Session.save_compiled`), any other
            name a shared library for C (:meth:`.Session.save_library`).
        header: The file of the library's C header; by default next to the library.
        prefix: The prefix of the library's names; by default the library's name.
        threads: Threads to compile for; by default all processors of the process.

    Raises:
        UnsupportedError: The model is not compiled as a whole.
        OptionError: A header or prefix for a file for sessions, or the prefix is not a C identifier.
        MissingDependencyError: A library needs a linker, and the system has none.
        ModelFileError: A file cannot be written.
    """
    is_library = not is_compiled_file(path)
    if not is_library and (header is not None or prefix is not None):
        raise OptionError("a compiled file has no header and no names.", where=str(path))
    session = Session(model, compile="wait", threads=threads)
    if is_library:
        session.save_library(path, Path(path).with_suffix(".h") if header is None else header, prefix)
    else:
        session.save_compiled(path)
