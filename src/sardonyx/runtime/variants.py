"""Variants of a version: the same model with other outputs, for calls that ask for tensors inside of it."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sardonyx.core.run_context import RunContext
from sardonyx.errors import SardonyxError
from sardonyx.runtime.draft import Draft

if TYPE_CHECKING:
    from sardonyx.runtime.version import Version

_KEPT = 4
"""Variants of a version; weights that they have in common are once in memory."""


class Variants:
    """The variants of a version that calls have asked for.

    Args:
        version: What they are variants of.
    """

    def __init__(self, version: Version) -> None:
        self._version = version
        self._made: OrderedDict[tuple[str, ...], Version | None] = OrderedDict()
        self._lock = threading.Lock()

    def run(self, names: Sequence[str], feeds: Mapping[str, Any], context: RunContext) -> list[Any] | None:
        """Run on compiled code; None where there is none for these outputs, or not yet."""
        key = tuple(dict.fromkeys(names))
        with self._lock:
            begun = key in self._made
            variant = self._made.get(key)
            self._made[key] = variant
            self._made.move_to_end(key)
            while len(self._made) > _KEPT:
                self._made.popitem(last=False)
        if not begun:
            if self._version.options.compile == "wait":
                self._make(key)
            else:
                threading.Thread(target=self._make, args=(key,), name="sardonyx-compile", daemon=True).start()
            variant = self._made.get(key)
        if variant is None or variant.native is None or not variant.native.takes(None, feeds):
            return None
        found = dict(zip(key, variant.run(None, feeds, context), strict=True))
        return [found[name] for name in names]

    def _make(self, names: tuple[str, ...]) -> None:
        draft = Draft(self._version.model)
        outputs = {str(value.name) for value in draft.model.graph.outputs}
        try:
            for name in names:
                if name not in outputs:
                    draft.add_output(name)
            draft.settle()
        except SardonyxError:  # The interpreter says what is wrong with the names.
            return
        by_name = {str(value.name): value for value in draft.model.graph.outputs}
        draft.model.graph.outputs[:] = [by_name[name] for name in names]
        variant = type(self._version).edited(draft.model, self._version.options)
        variant.compile_quietly()
        with self._lock:
            if names in self._made:
                self._made[names] = variant
