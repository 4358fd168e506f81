"""Compiled models of a session that edits may come back to, and new weights be put in."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable

from sardonyx.runtime.compiled.compiled_model import NativeModel
from sardonyx.runtime.editing.fingerprint import Structure
from sardonyx.runtime.live.model_version import Version

_KEPT = 8
"""Compiled models beside the one that answers; weights that they have in common are once in memory."""


class Known:
    """The compiled models of the versions before, by structure."""

    def __init__(self) -> None:
        self._compiled: OrderedDict[Hashable, tuple[Structure, NativeModel]] = OrderedDict()

    def add(self, version: Version) -> None:
        """Remember what a version is compiled to, if it is."""
        native, found = version.native, version.structure
        if native is not None and found is not None:
            self._compiled[found.form] = found, native
            self._compiled.move_to_end(found.form)
            while len(self._compiled) > _KEPT:
                self._compiled.popitem(last=False)

    def compile(self, version: Version) -> bool:
        """Give a version the compiled model of one that was equal, or alike but for weights; whether there is one."""
        wanted = version.structure
        found = None if wanted is None else self._compiled.get(wanted.form)
        if wanted is None or found is None:
            return False
        had, native = found
        if wanted.same_weights(had):
            version.take(native)
        else:
            version.compile(native)
        return True
