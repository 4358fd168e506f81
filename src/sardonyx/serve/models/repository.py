"""The repository: models on disk, loaded into sessions, replaced in place when their files change."""

from __future__ import annotations

import dataclasses
import functools
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from sardonyx.errors import ModelFileError, OptionError, RequestError, SardonyxError, UnsupportedError
from sardonyx.runtime.session import Session
from sardonyx.serve.models.agreement import require_agreement
from sardonyx.serve.models.batching import Batching
from sardonyx.serve.models.ensemble import Ensemble, EnsembleStep, ServedEnsemble, cycle, loading_order
from sardonyx.serve.models.layout import ModelFiles, model_files, model_names, read_labels
from sardonyx.serve.models.model import Model, ServedModel
from sardonyx.serve.models.override import Override
from sardonyx.serve.models.served import Served
from sardonyx.serve.protocol.limits import Limits


@dataclass(frozen=True)
class LoadOptions:
    """Options of sessions that a repository makes; an unknown `batch` is an ``OptionError``.

    Attributes:
        threads: Number of threads of a session; None for all processors.
        batch: ``"auto"``, ``"off"`` or ``"force"``, for models whose configuration does not say otherwise.
        allow_compiled: True if compiled files (``.sdx``) are loaded, which contain machine code.
        cached: True if answers of all models are remembered.
    """

    threads: int | None = None
    batch: str = "auto"
    allow_compiled: bool = False
    cached: bool = False

    def __post_init__(self) -> None:
        Batching(mode=self.batch)  # type: ignore[arg-type]


@dataclass
class IndexEntry:
    """The state of a version in the repository.

    Attributes:
        name: The name of the model.
        version: The number of the version; empty if no version is known.
        state: ``READY``, ``UNAVAILABLE`` or ``LOADING``.
        reason: The reason of the state; empty if ready.
    """

    name: str
    version: str = ""
    state: str = "UNAVAILABLE"
    reason: str = ""


class _Overridden(NamedTuple):
    """An override, and the folder of its files; None for the files of the repository."""

    content: Override
    folder: tempfile.TemporaryDirectory[str] | None


class Repository:
    """The models of a folder or of one file; loads run in threads of the caller, one at a time.

    Args:
        root: A folder of models, or a model file.
        limits: The limits of runs.
        options: The options of sessions.

    Raises:
        OptionError: The root does not exist.
    """

    def __init__(self, root: Path, limits: Limits, options: LoadOptions) -> None:
        if not root.exists():
            raise OptionError("expected a folder of models or a model file.", where=str(root))
        self.root = root
        self._limits = limits
        self._options = options
        self._lock = threading.Lock()
        self._loaded: dict[str, tuple[ModelFiles, dict[int, Served]]] = {}
        self._states: dict[str, tuple[Any, ...]] = {}
        self._candidates: dict[str, tuple[Any, ...]] = {}
        self._missing: set[str] = set()
        self._refused: dict[str, tuple[Any, ...]] = {}
        self._dismissed: dict[str, tuple[Any, ...] | None] = {}
        self._known: dict[str, ModelFiles] = {}
        self._overrides: dict[str, _Overridden] = {}
        self._errors: dict[str, str] = {}

    @property
    def is_file(self) -> bool:
        """True if the repository is one model file."""
        return self.root.is_file()

    def names(self) -> list[str]:
        """Return the names of the models in the repository.

        Raises:
            ModelFileError: The repository cannot be read.
        """
        names = [self.root.stem] if self.is_file else model_names(self.root)
        return sorted({*names, *(name for name, override in self._overrides.items() if override.folder is not None)})

    @property
    def loaded(self) -> frozenset[str]:
        """The names of the loaded models."""
        return frozenset(self._loaded)

    def load(self, name: str) -> list[Served]:
        """Load a model, or load the files of a loaded model anew; the loaded versions answer until all is ready.

        Returns:
            All served versions of the model.

        Raises:
            RequestError: The repository has no such model.
            ModelFileError: A file cannot be read.
            SardonyxError: The model cannot be served.
        """
        with self._lock:
            files = None
            try:
                files = self._files(name)
                models = self._load(files)
            except SardonyxError as error:
                self._strip_root(error)
                # The name of a request that no model has is not remembered.
                if files is not None or not isinstance(error, RequestError):
                    self._errors[name] = str(error)[:500]
                if files is not None:
                    self._refused[name] = self._state(files)
                raise
            self._errors.pop(name, None)
            self._refused.pop(name, None)
            self._dismissed.pop(name, None)
            self._loaded[name] = files, models
            self._states[name] = self._state(files)
            return list(models.values())

    def _files(self, name: str) -> ModelFiles:
        """Return the files of a model; an unchanged configuration is not read again."""
        override = self._overrides.get(name)
        if override is None:
            files = model_files(self.root, name, known=self._known.get(name))
        elif override.folder is None:
            files = model_files(self.root, name, override.content.config, self._known.get(name))
        else:
            files = model_files(Path(override.folder.name), name, override.content.config, self._known.get(name))
            files = dataclasses.replace(files, owner=override.folder)
        self._known[name] = files
        return files

    def override(self, name: str, content: Override | None) -> _Overridden | None:
        """Let a configuration, and perhaps files, replace the repository's from the next load on.

        Args:
            name: The name of the model.
            content: The configuration and files; None for the repository's.

        Returns:
            What stood in before, for :meth:`restore`.
        """
        before = self._overrides.get(name)
        after = None if content is None else _Overridden(content, content.folder(name) if content.files else None)
        self.restore(name, after)
        return before

    def restore(self, name: str, override: _Overridden | None) -> None:
        """Let what :meth:`override` returned stand in again."""
        with self._lock:
            self._known.pop(name, None)
            if override is None:
                self._overrides.pop(name, None)
            else:
                self._overrides[name] = override

    def overridden(self, name: str) -> Override | None:
        """Return the configuration and files in place of the repository's; None for none."""
        override = self._overrides.get(name)
        return None if override is None else override.content

    def _strip_root(self, error: SardonyxError) -> None:
        """Name files by their path in the repository: clients read the reason."""
        folders = [self.root.parent if self.is_file else self.root]
        folders += [Path(o.folder.name) for o in self._overrides.values() if o.folder is not None]
        problem, where = error.problem, error.where
        paths = {str(path) for folder in folders for path in (folder.absolute(), folder.resolve())}
        for path in sorted(paths, key=len, reverse=True):
            problem, where = (text.replace(f"{path}{os.sep}", "").replace(path, ".") for text in (problem, where))
        error.reword(problem, where=where, remedy=error.remedy)

    def _load(self, files: ModelFiles) -> dict[int, Served]:
        before, loaded = self._loaded.get(files.name, (None, {}))
        models: dict[int, Served] = {}
        for number, path in files.versions.items():
            served = loaded.get(number)
            is_same = before is not None and before.config.message == files.config.message
            if files.config.ensemble is not None:
                same = served if is_same and isinstance(served, ServedEnsemble) else None
                models[number] = self._served_ensemble(files, files.config.ensemble, number, same)
            elif served is not None and is_same:
                if before is not None and before.signature != files.signature:
                    served.session.reload(path)
                models[number] = served
            else:
                models[number] = self._served(files, number, path)
        return models

    def _served_ensemble(
        self, files: ModelFiles, ensemble: Ensemble, number: int, before: ServedEnsemble | None
    ) -> ServedEnsemble:
        """Return an ensemble of loaded models; an ensemble that did not change stays the same object."""
        labels = read_labels(files)
        if before is None or before.ensemble.labels != labels:
            cached = ensemble.cached or self._options.cached
            changes: dict[str, Any] = {"version": number, "labels": labels, "cached": cached}
            before = ServedEnsemble(files.name, dataclasses.replace(ensemble, **changes))
        if path := cycle(files.name, self.parts):
            raise ModelFileError(f"the ensembles have a cycle: {' → '.join(path)}.", where=files.name)
        # Another object: requests read the served one meanwhile, and take its models themselves.
        fitted = ServedEnsemble(files.name, before.ensemble)
        fitted.fit([self._part(step, files.name) for step in ensemble.steps])
        return before

    def _part(self, step: EnsembleStep, name: str) -> Served:
        models = self._loaded.get(step.model, (None, {}))[1]
        number = int(step.version) if step.version else max(models, default=0)
        if number not in models:
            version = f"version {step.version} of " if step.version else ""
            raise ModelFileError(
                f"the ensemble needs {version}the model {step.model!r}, which is not loaded.", where=name
            )
        return models[number]

    def _state(self, files: ModelFiles) -> tuple[Any, ...]:
        """Return the signature of the files, for an ensemble with those of its models."""
        if files.config.ensemble is None:
            return files.signature
        parts = files.config.ensemble.models
        return (*files.signature, *(self._loaded[part][0].signature for part in parts if part in self._loaded))

    def ordered(self, names: Iterable[str]) -> list[str]:
        """Return names of models, with those of all models of ensembles, each after the models that it needs."""
        return loading_order(names, self.parts)

    def parts(self, name: str) -> list[str]:
        """Return the names of the models of an ensemble; empty for a model, and for files that cannot be read."""
        try:
            ensemble = self._files(name).config.ensemble
        except SardonyxError:  # The load of the model states the reason.
            return []
        return [] if ensemble is None else ensemble.models

    def reload(self, name: str) -> list[Served]:
        """Load the files of a model even if they did not change; raises like :meth:`load`."""
        with self._lock:
            if name in self._loaded:
                files, models = self._loaded[name]
                # Another signature: every version is read again.
                self._loaded[name] = dataclasses.replace(files, signature=()), models
        return self.load(name)

    def _served(self, files: ModelFiles, number: int, path: Path) -> ServedModel:
        if path.suffix == ".sdx" and not self._options.allow_compiled:
            raise UnsupportedError(
                "compiled files contain machine code.", where=files.name, remedy="Serve them with --allow-compiled."
            )
        limits, config = self._limits, files.config
        try:
            session = Session(
                path, compile="wait", threads=self._options.threads, max_memory=limits.run_bytes,
                timeout=limits.run_seconds, max_loop_iterations=limits.loop_iterations, log_severity=3,
            )  # fmt: skip
        except OSError as error:
            raise ModelFileError(f"the file cannot be read: {error.strerror}.", where=files.name) from error
        batching = config.batching
        if not files.has_config and self._options.batch != "auto":
            batching = Batching(mode=self._options.batch)  # type: ignore[arg-type]
        model = Model(
            session, batching, number, read_labels(files), config.states, config.controls, config.idle_seconds,
            config.cached or self._options.cached, config.warmup, config.message if files.has_config else None,
            config.declared, config.reshapings,
        )  # fmt: skip
        require_agreement(config, session, files.name)
        return ServedModel(files.name, model)

    def unload(self, name: str) -> list[Served]:
        """Forget a loaded model and return its versions; empty if it is not loaded.

        The model stays unloaded until a client loads it, or its files change.
        """
        with self._lock:
            self._dismissed[name] = self._states.get(name)
        return self._forget(name)

    def _forget(self, name: str) -> list[Served]:
        with self._lock:
            self._errors.pop(name, None)
            self._known.pop(name, None)
            self._overrides.pop(name, None)
            _, models = self._loaded.pop(name, (None, {}))
            return list(models.values())

    def poll(self, seconds: float) -> Iterable[tuple[str, Callable[[], list[Served]]]]:
        """Return what changed in the folder: names, each with the function that loads or unloads the model.

        A change is taken once the files stood still for one interval; files that were refused are not tried again. A
        model is unloaded once two looks found no files of it: a folder that is being replaced, or a repository that
        is going away, passes through a state without them.

        Args:
            seconds: The interval between two calls.
        """
        changes: list[tuple[str, Callable[[], list[Served]]]] = []
        names = self.names()
        for name in names:
            try:
                files = self._files(name)
            except SardonyxError as error:
                self._strip_root(error)
                self._errors[name] = str(error)[:500]
                continue
            loaded = self._loaded.get(name)
            state = self._state(files)
            settled = self._states if loaded is not None else self._dismissed
            if settled.get(name) == state or self._refused.get(name) == state:
                self._candidates.pop(name, None)
            elif self._candidates.get(name) == state or time.time() - files.newest > seconds:
                self._candidates.pop(name, None)
                changes.append((name, functools.partial(self.load, name)))
            else:
                self._candidates[name] = state
        missing = set(self._loaded) - set(names)
        changes += [(name, functools.partial(self._forget, name)) for name in sorted(missing & self._missing)]
        self._missing = missing
        return changes

    def index(self) -> list[IndexEntry]:
        """Return the state of every version of every model in the repository."""
        entries = []
        for name in sorted({*self.names(), *self._loaded}):
            if name in self._loaded:
                entries += [
                    IndexEntry(name, str(number), "READY", self._errors.get(name, ""))
                    for number in self._loaded[name][1]
                ]
            else:
                entries.append(IndexEntry(name, "", "UNAVAILABLE", self._errors.get(name, "unloaded")))
        return entries
