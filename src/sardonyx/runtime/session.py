"""Sessions: loaded models that run on feeds any number of times, from any thread."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sardonyx.base import background_threads
from sardonyx.base.hooks import hook
from sardonyx.base.span_recorder import Recorder
from sardonyx.core.eval.run_context import RunContext
from sardonyx.errors import OptionError, ResourceError
from sardonyx.runtime.live.edits import Edits
from sardonyx.runtime.live.live_model import LiveModel
from sardonyx.runtime.options import SessionOptions
from sardonyx.runtime.run_options import RunOptions

if TYPE_CHECKING:
    from concurrent.futures import Future

    import onnx_ir as ir

    from sardonyx.compiler.program import Program
    from sardonyx.compiler.target.denormals import Denormals
    from sardonyx.model import Loadable
    from sardonyx.runtime.compiled.compiled_model import NativeModel
    from sardonyx.runtime.compiled.memory_usage import Memory
    from sardonyx.runtime.editing.history import Commit
    from sardonyx.runtime.io_binding import Binding
    from sardonyx.runtime.live.answerers import AnswererNote
    from sardonyx.runtime.live.live_model import EditCompile
    from sardonyx.runtime.live.model_version import ModelVersion
    from sardonyx.runtime.live.transaction import Edit
    from sardonyx.runtime.model_info import Metadata, ValueInfo
    from sardonyx.runtime.options import Compile, NodeSelector, ProviderSpec
    from sardonyx.runtime.placement import Placement
    from sardonyx.runtime.precision import Precision, PrecisionReport
    from sardonyx.runtime.profiling.profile import Nodes, Profile
    from sardonyx.runtime.profiling.timeline import Timeline
    from sardonyx.runtime.providers.protocol import OptimizationLevel
    from sardonyx.runtime.snapshot import Snapshot


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
        precision: The numbers of products: ``"float32"``, ``"bf16"``, ``"int8"`` or ``"auto"``.
        precision_tolerance: Largest error of an output over its largest magnitude.
        precision_data: Samples of real inputs; None draws samples.
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
        precision: Precision | None = None,
        precision_tolerance: float | None = None,
        precision_data: Any = None,
        watch: bool = False,
    ) -> None:
        overrides = {
            "providers": providers, "compile": compile, "threads": threads, "optimization": optimization,
            "profiling": profiling, "profile_prefix": profile_prefix, "max_memory": max_memory,
            "max_loop_iterations": max_loop_iterations, "timeout": timeout, "denormals": denormals,
            "deterministic": deterministic, "free_dimensions": free_dimensions, "free_denotations": free_denotations,
            "log_severity": log_severity, "pins": pins, "budgets": budgets, "strict": strict,
            "precision": precision, "precision_tolerance": precision_tolerance, "precision_data": precision_data,
        }  # fmt: skip
        self._options = (options or SessionOptions()).override(overrides)
        self._limits = self._options.limits
        self._timeline = _new_timeline() if self._options.profiling else None
        self._nodes: Nodes | None = None
        self._runs = itertools.count()
        if watch and not isinstance(model, (str, os.PathLike)):
            raise OptionError(
                "expected the path of a file to watch.", where="watch", remedy="Give the path of the model."
            )
        self._unlimited = self._options.unlimited and self._timeline is None
        self._precision: PrecisionReport | None = None
        if self._options.precision != "float32":
            if watch:
                raise OptionError("a watched file is not compressed.", where="precision", remedy="Leave out watch.")
            model, self._precision = hook("compress_at_load")(model, self._options)
        self._learner: Any = None
        self._live = LiveModel(model, self._options)
        if self._timeline is not None:
            self._timeline.loaded()
        if isinstance(model, (str, os.PathLike)) and watch:
            from sardonyx.runtime.live.file_watch import watch as watch_file

            watch_file(self._live, model)

    @property
    def options(self) -> SessionOptions:
        """The options of the session."""
        return self._options

    @property
    def precision(self) -> PrecisionReport | None:
        """The form of the model chosen at load, with the errors and times measured; None for float32."""
        return self._precision

    @property
    def providers(self) -> tuple[str, ...]:
        """The names of the providers, in order of preference."""
        return self._options.provider_names

    @property
    def model(self) -> ir.Model:
        """The model; callers must not change it."""
        return self._live.version.model

    @property
    def metadata(self) -> Metadata:
        """The metadata of the model: names, versions, producer and custom texts."""
        from sardonyx.runtime.model_info import Metadata

        return Metadata.of(self.model)

    def save_compiled(self, path: str | os.PathLike[str]) -> None:
        """Write the compiled model, with its weights, to a file that ``Session(path)`` maps.

        The file runs on processors with all features of this one, and with the same version of Sardonyx.

        Args:
            path: The file; its name must end in ``.sdx``.

        Raises:
            UnsupportedError: The model is not compiled as a whole.
            OptionError: The name has another ending.
            ModelFileError: The file cannot be written.
        """
        self._live.version.save_compiled(path)

    def save_library(
        self,
        path: str | os.PathLike[str],
        header: str | os.PathLike[str] | None = None,
        prefix: str | None = None,
    ) -> None:
        """Write the compiled model, with its weights, as a shared library for C that needs no Python.

        The library computes with at most as many threads as the session, on processors with all features of this one.
        The system's ``cc`` (or ``CC``) links the library.

        Args:
            path: The library.
            header: The file of the C header; None for no header.
            prefix: The prefix of the library's functions; by default the file name without ``lib`` and without its
                ending. Two libraries in one process need two prefixes.

        Raises:
            UnsupportedError: The model is not compiled as a whole, has open sizes, or has inputs or outputs that are
                not numeric tensors.
            OptionError: The prefix is not a C identifier.
            MissingDependencyError: The system has no linker.
            ModelFileError: A file cannot be written.
        """
        self._live.version.save_library(Path(path), None if header is None else Path(header), prefix)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until compiling is over; return True if compiled code answers from now on.

        Args:
            timeout: Limit of the seconds to wait.
        """
        return self._live.wait(timeout)

    @property
    def native(self) -> NativeModel | None:
        """The compiled model; None while there is none (see ``not_compiled``)."""
        return self._live.version.native

    @property
    def not_compiled(self) -> str:
        """The reason why the model is not compiled; empty if it is compiled, or while it is being compiled."""
        return self._live.version.not_compiled

    @property
    def program(self) -> Program | None:
        """The compiled program; None while there is none (see ``not_compiled``).

        The program has its Core graph: a program from the store is compiled again for the graph.
        """
        return self._live.version.program

    @property
    def placement(self) -> list[Placement]:
        """The current provider of each node of the main graph, with the reason; while compiling, the interpreter."""
        return self._live.version.placement

    @property
    def answerers(self) -> tuple[AnswererNote, ...]:
        """The ways in which the session computes a call, in the order in which a call tries them."""
        return self._live.version.answerers

    # Editing.

    @property
    def revision(self) -> int:
        """The number of edits, reloads and undone edits so far."""
        return self._live.version.revision

    def snapshot(self) -> Snapshot:
        """Return the current version of the model, whose calls see no later edit."""
        from sardonyx.runtime.snapshot import Snapshot

        return Snapshot(self._live.version, self._run_version)

    def edit(self, *, compile: EditCompile | None = None) -> Edit:
        """Begin an edit of the running model: a transaction, for a ``with`` statement.

        Running calls finish on the model with which they began; calls that begin after the edit see all of its changes.
        Every change is also a method of the session, as a transaction of its own.

        Args:
            compile: ``"wait"`` ends the edit when the new model is compiled, and the old model answers until then;
                ``"background"`` ends the edit at once, and the interpreter answers until the new model is compiled.
                None waits if compiled code answers now, or if the session has ``compile="wait"``. A strict session
                always waits; a session that does not compile ignores the argument.

        Returns:
            The edit, with the methods ``add_node``, ``remove_node``, ``replace_node``, ``rewire``, ``insert_after``,
            ``add_output``, ``remove_output``, ``add_input``, ``remove_input``, ``add_weight``, ``set_weight``,
            ``update_weights``, ``attach`` and ``detach``.

        Raises:
            EditError: A change is impossible: an unknown node, a duplicate name, a tensor that is still read.
            OptionError: Unknown value of `compile`.
            SardonyxError: The edited model cannot be run. The session is unchanged.

        Example:
            >>> with session.edit() as g:
            ...     g.add_node(Node("Relu", inputs=["h"], outputs=["positive"]))
            ...     g.add_output("positive")
        """
        from sardonyx.runtime.live.transaction import Edit

        return Edit(self._live, compile)

    @property
    def history(self) -> tuple[Commit, ...]:
        """The committed edits that are not undone, oldest first."""
        return self._live.history.commits

    def undo(self) -> Commit:
        """Undo the latest edit.

        Returns:
            The undone edit.

        Raises:
            EditError: No edit can be undone; the last 32 edits can, within the memory limit for their weights.
        """
        return self._live.undo()

    def reload(self, model: Loadable) -> None:
        """Replace the model by another, as one edit; the current model answers until the other is ready.

        Args:
            model: The other model; see :class:`Session`.

        Raises:
            SardonyxError: The other model cannot be loaded. The session is unchanged.
        """
        self._live.reload(model)

    def renumber(self, revision: int) -> None:
        """Give the current revision the number that it has in another session with the same model.

        The edits before it are forgotten: they are not those of the other session, and cannot be undone.

        Args:
            revision: The number; later edits count from it.
        """
        self._live.renumber(revision)

    def save(self, path: str | os.PathLike[str], **options: Any) -> None:
        """Write the model, with its edits, to an ONNX file.

        Args:
            path: The file.
            options: See :func:`sardonyx.save`.

        Raises:
            ModelFileError: The file cannot be written.
            UnsupportedError: A compiled file holds no model.
        """
        from sardonyx.model import save

        save(self.model, path, **options)

    # Running.

    def learn(self, feeds: Mapping[str, Any] | None = None, labels: Any = None, **options: Any) -> Any:
        """Learn from samples in the background while the session answers.

        The first call makes the :class:`sardonyx.train.Learner` of the session; later calls queue samples.

        Args:
            feeds: A batch of inputs by name; None makes the learner alone.
            labels: The labels of the batch.
            options: Options of the learner, in the first call.

        Returns:
            The learner: ``report``, ``flush``, ``freeze``, ``rollback``, ``close``.

        Raises:
            OptionError: An option is impossible, or the session has a learner already.
            SardonyxError: The samples do not fit the model, or the model cannot be trained.

        Example:
            >>> session.learn(loss="cross-entropy", guard=Guard())
            >>> session.learn({"x": x}, y)
        """
        self._learner = hook("learner")(self, self._learner, options)
        if feeds is not None:
            self._learner.learn(feeds, labels)
        return self._learner

    def profile(self, feeds: Mapping[str, Any] | None = None, runs: int = 20) -> Profile:
        """Measure runs kernel by kernel, against the peak of the machine, with the parts of interpreter and providers.

        The method waits until compiling is over. Runs with a clock between kernels alternate with runs without one.

        Args:
            feeds: Inputs by name; random if None.
            runs: Number of runs, for medians.

        Raises:
            OptionError: `runs` is less than 1.
            EvaluationError: The model runs on none of the random inputs.
            SardonyxError: A run fails.
        """
        from sardonyx.runtime.profiling.profile import drawn_feeds, profile

        self.wait()
        inputs = drawn_feeds(self.model, self)[0] if feeds is None else feeds
        return profile(self._live.version, lambda: self.run(None, inputs), inputs, runs)

    def memory(self) -> Memory:
        """Return the memory of the session: weights, arenas, the peak of a call, and the offset of each value."""
        return self._live.version.memory()

    def shrink(self) -> None:
        """Free memory that no call uses: arenas, and compiled models of earlier versions.

        Later calls allocate again. With glibc, free memory is then returned to the system, which takes milliseconds.
        """
        self._live.shrink()

    def get_inputs(self) -> list[ValueInfo]:
        """Return the inputs that a call must feed."""
        return list(self._live.version.inputs)

    def get_outputs(self) -> list[ValueInfo]:
        """Return the outputs."""
        return list(self._live.version.outputs)

    def get_overridable_initializers(self) -> list[ValueInfo]:
        """Return the inputs with a default value, which a call may feed; none for a compiled file."""
        return list(self._live.version.defaults)

    def __call__(self, **feeds: Any) -> Any:
        """Run on feeds by keyword; return one output as it is, and several as a tuple."""
        results = self.run(None, feeds)
        return results[0] if len(results) == 1 else tuple(results)

    def bind(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any] | None = None) -> Binding:
        """Prepare repeated calls over fixed arrays: the fastest way to call small models.

        Args:
            inputs: All inputs by name, contiguous and of the declared types: arrays, or objects with ``__dlpack__``.
                Each call reads their current contents.
            outputs: Arrays for outputs, by name, in separate memory; the binding allocates the others.

        Returns:
            The binding: ``binding()`` computes, ``binding.outputs`` holds the results.

        Raises:
            FeedError: An array differs in type or shape, is not contiguous or not writable, or an output shares memory
                with an input.

        Example:
            >>> binding = session.bind({"x": x})
            >>> x[...] = 1
            >>> binding()
            >>> binding.outputs["y"]
        """
        from sardonyx.runtime.io_binding import Binding

        return Binding(self._live, inputs, outputs or {}, lambda feeds: self.run(None, feeds))

    def run(
        self, output_names: Sequence[str] | None, feeds: Mapping[str, Any], options: RunOptions | None = None
    ) -> list[Any]:
        """Run the model once.

        Args:
            output_names: Names of the requested values of the main graph; None for all outputs.
            feeds: Arrays (lists for sequences, None for an empty optional) by input name. Objects with ``__dlpack__``
                are read without a copy.
            options: Options of this run: a time limit, a tag, and a handle to terminate the run from another thread.

        Returns:
            An array (list, dict, None) for each name.

        Raises:
            FeedError: An input is missing, unknown, or of another type or rank; an output is unknown.
            ShapeError: A size contradicts the declaration, or another input.
            ExecutionError: A node has no result for these values.
            ResourceError: A limit is exceeded, or the run was terminated.
        """
        version = self._live.version
        native = version.native
        if native is not None and options is None and self._unlimited and (call := native.call) is not None:
            try:
                results = call(feeds) if output_names is None else version.run_directly(output_names, feeds)
            except MemoryError as error:
                raise ResourceError("the machine has too little memory for the call.") from error
            if results is not None:
                return results
        return self._run_version(version, output_names, feeds, options)

    def _run_version(
        self, version: ModelVersion, output_names: Sequence[str] | None, feeds: Mapping[str, Any],
        options: RunOptions | None,
    ) -> list[Any]:  # fmt: skip
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
        if not version.has_model:  # A compiled file holds no nodes.
            with timeline.run(options.tag if options is not None else ""):
                return version.run(output_names, feeds, context)
        from sardonyx.runtime.profiling.profile import Nodes

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
        """Run the model once without blocking the event loop; as :meth:`run`.

        Cancelling the task terminates the run.
        """
        import asyncio

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
        """Start a run in another thread; as :meth:`run`.

        Returns:
            A future of the outputs, or of the error of the run.
        """
        from concurrent.futures import Future

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
        """Write the recorded runs as a Chrome trace, and start a new record.

        Returns:
            The path of the file: the session's ``profile_prefix``, followed by the time.

        Raises:
            OptionError: The session does not record.
            ModelFileError: The file cannot be written.
        """
        if self._timeline is None:
            raise OptionError(
                "the session does not record.", where="profiling", remedy="Create the session with profiling=True."
            )
        return self._timeline.write(self._options.profile_prefix)


def _new_timeline() -> Timeline:
    from sardonyx.runtime.profiling.timeline import Timeline

    return Timeline()
