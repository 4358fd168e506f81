"""What all tests share: a rule or an operator that a test makes is gone after it, compiled code after all of them.

Sessions compute with numpy unless a test asks for compiled code.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from sardonyx.ops.registry import remove, user_operators
from sardonyx.rewrite import rules
from sardonyx.rewrite.language import REGISTRY
from sardonyx.rewrite.sweep import SWEEPS
from tests.background import Background, end_all
from tests.random_cases import LONG_FORM, cases, sampled, selects_long

assert rules.__name__  # importing the package registers every rule of the library


def pytest_configure(config: pytest.Config) -> None:
    """Share the compiled code and the form of the run (default or long) with the worker processes."""
    # A process that a shell started in the background ignores Ctrl-C, which tests send.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if selects_long(config.option.markexpr):
        os.environ[LONG_FORM] = "1"
    # The duration of an example depends on the machine, so it is no failure.
    settings.register_profile(
        "sardonyx", max_examples=cases(100), deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
    settings.load_profile("sardonyx")
    if not hasattr(config, "workerinput"):
        created = tempfile.TemporaryDirectory(prefix="sardonyx-tests-", ignore_cleanup_errors=True)
        folder = Path(created.name)
        config.add_cleanup(created.cleanup)
        config.add_cleanup(lambda: end_all(folder))
        os.environ["SARDONYX_TESTS"] = str(folder)
        os.environ.setdefault("SARDONYX_CACHE", str(folder / "cache"))
        if sys.dont_write_bytecode:
            # Worker and child processes compile a file once, not each, and still outside of the source tree.
            os.environ["PYTHONPYCACHEPREFIX"] = str(folder / "bytecode")
            os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    # Tests of compiled code request it.
    os.environ.setdefault("SARDONYX_COMPILE", "off")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """What collection makes stays to the end: the garbage collector need not look at it, now or ever."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(autouse=True)
def registry() -> Iterator[None]:
    known, sweeps = {name: list(actual) for name, actual in REGISTRY.items()}, dict(SWEEPS)
    operators = set(user_operators())
    yield
    for domain, name in set(user_operators()) - operators:
        remove(name, domain=domain)
    REGISTRY.clear()
    REGISTRY.update(known)
    SWEEPS.clear()
    SWEEPS.update(sweeps)


class _InternalErrors(logging.Handler):
    """Collects reports of defects that a session survives: the interpreter computes what the compiler could not."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if "internal error" in (message := record.getMessage()):
            self.messages.append(message)


@pytest.fixture(autouse=True)
def internal_errors(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test during which the compiler had a defect, unless the mark ``internal_errors`` permits defects."""
    errors = _InternalErrors()
    logger = logging.getLogger("sardonyx")
    logger.addHandler(errors)
    yield
    logger.removeHandler(errors)
    assert not errors.messages or request.node.get_closest_marker("internal_errors")


@pytest.fixture(autouse=True)
def logs() -> None:
    """What is logged is heard, whatever a library that another test imported did to loggers that were there."""
    logging.disable(logging.NOTSET)
    for name, logger in logging.root.manager.loggerDict.items():
        if isinstance(logger, logging.Logger) and name.split(".")[0] == "sardonyx":
            logger.disabled, logger.propagate = False, True
            logger.setLevel(logging.NOTSET)


# Programs that run beside the tests.


def _beside(item: pytest.Item) -> Background | None:
    """The program that runs beside a test and those before it, if there is one."""
    marker = item.get_closest_marker("beside")
    if marker is None:
        return None
    program, *arguments = marker.args
    return Background(Path(os.environ["SARDONYX_TESTS"]), item.config.rootpath / program, *arguments)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Return one worker more than processors: tests wait for servers, child processes and each other."""
    return len(os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)) + 1


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Select tests of many cases in the long form, which has all; run tests that wait for a program last.

    The default run has a share of the cases of tests marked ``sampled``, unless a single test is asked for.
    """
    if os.environ.get(LONG_FORM) == "1":
        for item in items:
            is_random = getattr(getattr(item, "obj", None), "is_hypothesis_test", False)
            if is_random or item.get_closest_marker("sampled"):
                item.add_marker("long")
    elif not any("::" in argument for argument in config.args):
        groups: dict[str, list[str]] = {}
        for item in items:
            if item.get_closest_marker("sampled"):
                groups.setdefault(item.nodeid.partition("[")[0], []).append(item.nodeid)
        left_out = {name for names in groups.values() for name in set(names) - sampled(names)}
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid in left_out])
        items[:] = [item for item in items if item.nodeid not in left_out]
    items.sort(key=lambda item: item.get_closest_marker("beside") is not None)


def pytest_collection_finish(session: pytest.Session) -> None:
    """They begin as soon as it is known which tests run."""
    for item in session.items:
        program = None if session.config.option.collectonly else _beside(item)
        if program is not None:
            program.begin()


@pytest.fixture
def beside(request: pytest.FixtureRequest) -> Background:
    """The program that the test's marker names."""
    program = _beside(request.node)
    assert program is not None
    return program
