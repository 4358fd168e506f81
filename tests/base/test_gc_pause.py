"""What imports leave behind of the garbage collector: it runs as before, and has nothing young of theirs to walk."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Iterator

import pytest

from sardonyx.base.gc_pause import imports_frozen


@pytest.fixture(autouse=True)
def thawed() -> Iterator[None]:
    """As in a process of a user's: what is there is frozen in these tests."""
    frozen = gc.get_freeze_count()
    gc.unfreeze()
    yield
    if frozen:
        gc.freeze()


def test_the_collector_rests_within_and_runs_after() -> None:
    with imports_frozen():
        assert not gc.isenabled()
        with imports_frozen():
            assert not gc.isenabled()
        assert not gc.isenabled()
        created: list[list[int]] = [[] for _ in range(1000)]
    assert gc.isenabled()
    assert not gc.get_freeze_count()
    young = {id(item) for item in gc.get_objects(generation=0)}
    assert not any(id(item) in young for item in created)
    assert any(item is created for item in gc.get_objects(generation=2))


def test_what_somebody_else_decided_stays() -> None:
    gc.freeze()
    try:
        with imports_frozen():
            assert gc.isenabled()
        assert gc.get_freeze_count()
    finally:
        gc.unfreeze()
    gc.disable()
    try:
        with imports_frozen():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_an_import_that_fails_leaves_the_collector_running() -> None:
    with pytest.raises(ModuleNotFoundError), imports_frozen():
        raise ModuleNotFoundError
    assert gc.isenabled()


def test_the_interpreter_imports_no_operator_before_a_model_needs_it() -> None:
    code = (
        "import sys, sardonyx.ops.reference;"
        "print(*(name for name in ('movement', 'arithmetic', 'convolution', 'strings')"
        " if f'sardonyx.ops.definitions.{name}' in sys.modules))"
    )
    actual = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert actual.stdout.split() == []
