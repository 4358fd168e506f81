"""Source lines and module names of calls, as torch records them."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import torch

_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)\n\s*(.*)')


_OWN = tuple(f"{Path(str(path)).resolve().parent}{os.sep}" for path in (torch.__file__, __file__))


def is_ours(file: str) -> bool:
    """Return True for a file of this package."""
    return file.startswith(_OWN[1])


def is_users(file: str) -> bool:
    """Return True for a file of the user's program: neither torch's, nor ours, nor generated code."""
    return not file.startswith(("<", *_OWN))


def module_of(node: Any) -> str:
    """Return the dotted name of the innermost module around a call; empty for the outermost."""
    stack = node.meta.get("nn_module_stack") or {}
    names = [entry[0] for entry in stack.values() if isinstance(entry, tuple)]
    return re.sub(r"^(L\['self'\]|self)\.?", "", str(names[-1])) if names else ""


def line_of(node: Any) -> str:
    """Return the user's line of a call, ``file.py:12 (x = f(y))``; empty if torch recorded none."""
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    own = [frame for frame in frames if is_users(frame[0])] or [frame for frame in frames if not is_ours(frame[0])]
    if not own:
        return ""
    file, line, _, text = own[-1]
    return f"{file}:{line} ({text.strip()[:80]})"


def place_of(node: Any) -> str:
    """Return module and line of a call."""
    return " at ".join(part for part in (module_of(node), line_of(node)) if part)
