"""A session: a model made ready, and run on feeds any number of times, from any thread."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import onnx_ir as ir

from sardonyx.base import background_threads
from sardonyx.base.span_recorder import Recorder
from sardonyx.compiler.program import Program
from sardonyx.compiler.target.denormals import Denormals
from sardonyx.core.eval.run_context import RunContext
from sardonyx.errors import OptionError
from sardonyx.model import Loadable, save
from sardonyx.runtime.compiled.compiled_model import NativeModel
from sardonyx.runtime.compiled.memory_usage import Memory
from sardonyx.runtime.editing.history import Commit
from sardonyx.runtime.io_binding import Binding
from sardonyx.runtime.live.file_watch import watch as watch_file
from sardonyx.runtime.live.live_model import EditCompile, LiveModel
from sardonyx.runtime.live.model_version import ModelVersion
from sardonyx.runtime.live.transaction import Edit, Edits
from sardonyx.runtime.model_info import Metadata, ValueInfo
from sardonyx.runtime.options import Compile, NodeSelector, ProviderSpec, SessionOptions
from sardonyx.runtime.placement import Placement
from sardonyx.runtime.profiling.profile import Nodes, Profile, drawn_feeds, profile
from sardonyx.runtime.profiling.timeline import Timeline
from sardonyx.runtime.providers.protocol import OptimizationLevel
from sardonyx.runtime.run_options import RunOptions


class Session(Edits):
    """A loaded model that can be run.

    Every field of :class:`SessionOptions` is also a keyword argument here.

    Args:
        model: A path, bytes, ``onnx.ModelProto`` or ``onnx_ir.Model``; or the path of a compiled file (``.sdx``, see
            :meth:`save_compiled`). A compiled file contains machine code: load only trusted files.
        options: The options of the session; the keyword arguments override its fields.
        providers: The engines that run the model, in order of preference.
        compile: When the model is compiled: ``"background"``, ``"wait"`` or ``"off"``.
        threads: Number of threads.
        optimization: The rewrites before the model runs: ``"none"``, ``"basic"`` or ``"all"``.
        profiling: If True, runs are recorded for a Chrome trace.
        profile_prefix: The prefix of the trace's file name.
        max_memory: Limit of the bytes of live values in a run.
        max_loop_iterations: Limit of the iterations of each loop.
        timeout: Limit of the seconds of a run.
        denormals: The treatment of denormal numbers in compiled code: ``"keep"``, ``"flush"`` or ``"auto"``.
        deterministic: If True, every provider must compute the same bits in every run.
        free_dimensions: Sizes of open dimensions of the inputs, by name.
        free_denotations: Sizes of open dimensions of the inputs, by denotation.
        log_severity: The lowest severity of logged messages, 0 to 4.
        pins: Nodes that must run on a provider.
        budgets: Limit of the bytes of weights of a provider, by its name.
        strict: If True, the session refuses a fallback to an engine that `providers` does not name.
        watch: If True, the session reloads the model when its file is replaced. A file that cannot be loaded is
            refused with a warning in the log.

    Raises:
        UnsupportedError: An operator has no definition: the message names all such operators and their nodes.
        InvalidModelError: The model violates the standard.
        OptionError: An option has an invalid value.

    Example:
        >>> session = Session("model.onnx")
        >>> (scores,) = session.run(None, {"image": image})
    """

    def __init__(
        self,
        model: Loadable,
        options: SessionOptions | None = None,
        *,
        providers: Sequence[ProviderSpec] | None = None,
        compile: Compile | None = None,
        threads: int | None = None,
        optimization: OptimizationLevel | None = None,
        profiling: bool | None = None,
        profile_prefix: str | None = None,
        max_memory: int | None = None,
        max_loop_iterations: int | None = None,
        timeout: float | None = None,
        denormals: Denormals | None = None,
        deterministic: bool | None = None,
        free_dimensions: Mapping[str, int] | None = None,
        free_denotations: Mapping[str, int] | None = None,
        log_severity: int | None = None,
        pins: Sequence[tuple[NodeSelector, str]] | None = None,
        budgets: Mapping[str, int] | None = None,
        strict: bool | None = None,
        watch: bool = False,
    ) -> None:
        overrides = {
            "providers": providers, "compile": compile, "threads": threads, "optimization": optimization,
            "profiling": profiling, "profile_prefix": profile_prefix, "max_memory": max_memory,
            "max_loop_iterations": max_loop_iterations, "timeout": timeout, "denormals": denormals,
            "deterministic": deterministic, "free_dimensions": free_dimensions, "free_denotations": free_denotations,
            "log_severity": log_severity, "pins": pins, "budgets": budgets, "strict": strict,
        }  # fmt: skip
        self._options = (options or SessionOptions()).override(overrides)
        self._limits = self._options.limits
        self._timeline = Timeline() if self._options.profiling else None
        self._nodes: Nodes | None = None
        self._runs = itertools.count()
        if watch and not isinstance(model, (str, os.PathLike)):
            raise OptionError("there is no file to watch.", where="watch", remedy="Give the path of the model.")
        self._unlimited = self._options.unlimited and self._timeline is None
        self._live = LiveModel(model, self._options)
        if self._timeline is not None:
            self._timeline.loaded()
        if isinstance(model, (str, os.PathLike)) and watch:
            watch_file(self._live, model)

    @property
    def options(self) -> SessionOptions:
        """What the session was told."""
        return self._options

    @property
    def providers(self) -> tuple[str, ...]:
        """The names of what runs the model, in order of preference."""
        return self._options.provider_names

    @property
    def model(self) -> ir.Model:
        """The model; it is not to be changed."""
        return self._live.version.model

    @property
    def metadata(self) -> Metadata:
        """What the model says of itself: names, versions, who made it, and what the maker added."""
        return Metadata.of(self.model)

    def save_compiled(self, path: str | os.PathLike[str]) -> None:
        """Write what the model is compiled to, and its weights, as one file that ``Session(path)`` maps.

        It runs on processors that have all that this one has, with the same version of Sardonyx.

        Args:
            path: Where to; the name must end in ``.sdx``.

        Raises:
            UnsupportedError: The model is not compiled as a whole.
            OptionError: The name ends in something else.
            ModelFileError: It cannot be written.
        """
        self._live.version.save_compiled(path)

    def save_library(
        self,
        path: str | os.PathLike[str],
        header: str | os.PathLike[str] | None = None,
        prefix: str | None = None,
    ) -> None:
        """Write what the model is compiled to, and its weights, as a shared library that C calls without Python.

        It computes on up to as many threads as the session, on processors that have all that this one has. The
        system's ``cc`` (or ``CC``) links it.

        Args:
            path: Where the library goes.
            header: Where the header goes that declares its functions; None: nowhere.
            prefix: What their names begin with; by default the name of the file, without ``lib`` and what follows a
                dot. Two libraries of one process need two.

        Raises:
            UnsupportedError: The model is not compiled as a whole, has open sizes, or what is no tensor of numbers.
            OptionError: The prefix is no name in C.
            MissingDependencyError: There is no linker.
            ModelFileError: A file cannot be written.
        """
        self._live.version.save_library(Path(path), None if header is None else Path(header), prefix)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until compiling is over; whether compiled code answers from now on.

        Args:
            timeout: Most seconds to wait.
        """
        return self._live.wait(timeout)

    @property
    def native(self) -> NativeModel | None:
        """The compiled model; None while there is none (``not_compiled`` says why)."""
        return self._live.version.native

    @property
    def not_compiled(self) -> str:
        """Why there is no compiled model; empty where there is one, or where compiling is under way."""
        return self._live.version.not_compiled

    @property
    def program(self) -> Program | None:
        """The compiled program; None while there is none (``not_compiled`` says why).

        It knows what it was made of: where compiled code came from the store, the model is compiled once more for it.
        """
        return self._live.version.program

    @property
    def placement(self) -> list[Placement]:
        """Where each node of the main graph runs, and why; while compiling is under way, all where calls then go."""
        return self._live.version.placement

    # Editing.

    def edit(self, *, compile: EditCompile | None = None) -> Edit:
        """Begin an edit of the model while it runs: a transaction, for a ``with`` statement.

        Calls that are under way end on the model that they began with; those that begin when the edit has ended see
        all of it. Every change is also a method of the session, as an edit of its own.

        Args:
            compile: ``"wait"`` ends the edit when compiled code of the new model is ready, and the old model answers
                until then; ``"background"`` ends it at once, and numpy computes the new model until its code is ready.
                None waits where compiled code answers now, and where the session was made with ``compile="wait"``. It
                says nothing where a session is strict (it waits), or does not compile.

        Returns:
            The edit: ``add_node``, ``remove_node``, ``replace_node``, ``rewire``, ``insert_after``, ``add_output``,
            ``remove_output``, ``add_input``, ``remove_input``, ``add_weight``, ``set_weight``, ``update_weights``,
            ``attach`` and ``detach`` change it.

        Raises:
            EditError: A change cannot be made: no such node, a name that is taken, a tensor that is still read.
            OptionError: There is no such time to compile.
            SardonyxError: What was made cannot be run. The session goes on as it was.

        Example:
            >>> with session.edit() as g:
            ...     g.add_node(Node("Relu", inputs=["h"], outputs=["positive"]))
            ...     g.add_output("positive")
        """
        return Edit(self._live, compile)

    @property
    def history(self) -> tuple[Commit, ...]:
        """The edits that were made and not undone, the latest last."""
        return self._live.history.commits

    def undo(self) -> Commit:
        """Take the latest edit back.

        Returns:
            What it was.

        Raises:
            EditError: There is none that can be undone; the last 32 can, as far as memory for their weights allows.
        """
        return self._live.undo()

    def reload(self, model: Loadable) -> None:
        """Let another model answer, as one edit; the one before answers until it is ready.

        Args:
            model: See the session's own.

        Raises:
            SardonyxError: It cannot be loaded. The session goes on as it was.
        """
        self._live.reload(model)

    def save(self, path: str | os.PathLike[str], **options: Any) -> None:
        """Write the model as it stands, with its edits, to a file of the standard.

        Args:
            path: Where to.
            options: See :func:`sardonyx.save`.

        Raises:
            ModelFileError: It cannot be written.
            UnsupportedError: There is no model in a compiled file.
        """
        save(self.model, path, **options)

    # Running.

    def profile(self, feeds: Mapping[str, Any] | None = None, runs: int = 20) -> Profile:
        """Where the time of a run goes: each kernel, against what the machine can do; what numpy and others compute.

        It waits until compiling is over. What runs with a clock alternates with what runs without one.

        Args:
            feeds: Inputs by name; drawn ones where there are none.
            runs: How many runs medians are taken of.

        Raises:
            OptionError: There is no run to take a median of.
            EvaluationError: The model runs on none of the inputs drawn.
            SardonyxError: What a run raises.
        """
        self.wait()
        given = drawn_feeds(self.model, self)[0] if feeds is None else feeds
        return profile(self._live.version, lambda: self.run(None, given), given, runs)

    def memory(self) -> Memory:
        """What the session holds of memory: weights, arenas, the most that a call took, and where values lie."""
        return self._live.version.memory()

    def shrink(self) -> None:
        """Let go of memory that no call uses: arenas, and what was compiled for models before edits.

        What is needed again is made again, when it is. Where the C library is glibc, what is free then goes back to the
        system, which takes some milliseconds.
        """
        self._live.shrink()

    def get_inputs(self) -> list[ValueInfo]:
        """The inputs that must be fed."""
        return list(self._live.version.inputs)

    def get_outputs(self) -> list[ValueInfo]:
        """The outputs."""
        return list(self._live.version.outputs)

    def get_overridable_initializers(self) -> list[ValueInfo]:
        """The inputs that may be fed, and have a value where they are not."""
        return [ValueInfo.of(value) for value in self.model.graph.inputs if value.is_initializer()]

    def __call__(self, **feeds: Any) -> Any:
        """Run on feeds by keyword; one output comes alone, several as a tuple."""
        found = self.run(None, feeds)
        return found[0] if len(found) == 1 else tuple(found)

    def bind(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any] | None = None) -> Binding:
        """Prepare calls over arrays that stay where they are: the fastest way to call small models.

        Args:
            inputs: All inputs by name, contiguous and of the declared types: arrays, or what has ``__dlpack__``. Each
                call reads what they hold then.
            outputs: Where outputs go, by name, in memory of their own; arrays are made for the others.

        Returns:
            The calls; ``binding()`` computes, ``binding.outputs`` holds the results.

        Raises:
            FeedError: An array is of another type or shape, not contiguous, or not to be written; or an output lies in
                the same memory as an input.

        Example:
            >>> binding = session.bind({"x": x})
            >>> x[...] = 1
            >>> binding()
            >>> binding.outputs["y"]
        """
        return Binding(self._live, inputs, outputs or {}, lambda feeds: self.run(None, feeds))

    def run(
        self, output_names: Sequence[str] | None, feeds: Mapping[str, Any], options: RunOptions | None = None
    ) -> list[Any]:
        """Run the model once.

        Args:
            output_names: What is asked for, any value of the main graph by name; None for all outputs.
            feeds: Arrays (lists for sequences, None for an empty optional) by input name. What has ``__dlpack__`` is
                taken as an array, without a copy.
            options: Of this run: a time limit, a tag, and a handle to end it from another thread.

        Returns:
            An array (list, dict, None) for each name.

        Raises:
            FeedError: An input is missing, unknown, or of another type or rank; an output is unknown.
            ShapeError: A size does not fit what is declared, or two inputs contradict each other.
            ExecutionError: A node has no result for these values.
            ResourceError: A limit is passed, or the run was terminated.
        """
        version = self._live.version
        native = version.native
        if (
            native is not None
            and output_names is None
            and options is None
            and self._unlimited
            and (call := native.call) is not None
        ):
            found = call(feeds)
            if found is not None:
                return found
        limits = self._limits
        if options is not None and options.timeout is not None:
            limits = {**limits, "timeout": options.timeout}
        context = RunContext(**limits, number=next(self._runs))
        if options is not None:
            options.begin(context)
        if self._timeline is None:
            return version.run(output_names, feeds, context)
        return self._run_recorded(self._timeline, version, output_names, feeds, context, options)

    def _run_recorded(
        self, timeline: Timeline, version: ModelVersion, output_names: Sequence[str] | None, feeds: Mapping[str, Any],
        context: RunContext, options: RunOptions | None,
    ) -> list[Any]:  # fmt: skip
        if not version.has_model:  # Of a compiled file the nodes are not known.
            with timeline.run(options.tag if options is not None else ""):
                return version.run(output_names, feeds, context)
        if self._nodes is None or self._nodes.version is not version:
            self._nodes = Nodes(version)
        context.recorder = Recorder()
        try:
            with timeline.run(options.tag if options is not None else ""):
                return version.run(output_names, feeds, context)
        finally:
            timeline.nodes(self._nodes.of(context.recorder))

    async def arun(
        self, output_names: Sequence[str] | None, feeds: Mapping[str, Any], options: RunOptions | None = None
    ) -> list[Any]:
        """Run the model once, without keeping the event loop; as :meth:`run`.

        A task that is cancelled ends the run.
        """
        own = options or RunOptions()
        try:
            return await asyncio.to_thread(self.run, output_names, feeds, own)
        except asyncio.CancelledError:
            if options is None:
                own.terminate()
            raise

    def run_async(
        self, output_names: Sequence[str] | None, feeds: Mapping[str, Any], options: RunOptions | None = None
    ) -> Future[list[Any]]:
        """Begin a run in another thread; as :meth:`run`.

        Returns:
            Where the outputs will be, or what the run raises.
        """
        future: Future[list[Any]] = Future()
        future.set_running_or_notify_cancel()

        def compute() -> None:
            try:
                future.set_result(self.run(output_names, feeds, options))
            except BaseException as error:
                future.set_exception(error)

        background_threads.start("sardonyx-run", compute)
        return future

    @property
    def profiling_start_ns(self) -> int:
        """The start of recording, as ``time.perf_counter_ns`` counts; 0 where the session does not record."""
        return 0 if self._timeline is None else self._timeline.start_ns

    def end_profiling(self) -> str:
        """Write what was recorded of the runs as a Chrome trace, and begin anew.

        Returns:
            The path of the file: the session's ``profile_prefix``, with the time.

        Raises:
            OptionError: The session does not record.
            ModelFileError: The file cannot be written.
        """
        if self._timeline is None:
            raise OptionError("the session does not record.", where="profiling", remedy="Make it with profiling=True.")
        return self._timeline.write(self._options.profile_prefix)
