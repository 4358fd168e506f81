"""Programs of PyTorch as models: modules, exported programs (``.pt2``) and TorchScript.

``torch.export`` captures the program; each ATen operator is one Python function over Core (:mod:`.operators`), and the
Core graph is written as ONNX. A program with branches on data is captured with the branches of its examples, under
guards. ``torch.onnx`` remains as another way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sardonyx.convert.imported import Options, Way
from sardonyx.errors import OptionError

EXPORTERS = ("auto", "sardonyx", "recorded", "torch.onnx")
"""Values of ``exporter`` for this framework."""


def ways(source: Any, options: Options) -> Sequence[Way]:
    """Return the ways to read a program of PyTorch.

    Raises:
        OptionError: The source or the option ``exporter`` is not accepted.
        ModelFileError: The file cannot be read, or is a pickle.
    """
    from sardonyx.convert.torch import recorded, torch_onnx, translation
    from sardonyx.convert.torch.capture import program_of

    if options.exporter not in EXPORTERS:
        problem = f"unknown exporter '{options.exporter}' for torch"
        raise OptionError(problem, where="exporter", remedy=f"Known are: {', '.join(EXPORTERS)}.")
    program = program_of(source, options)
    known = (
        Way("sardonyx", lambda: translation.read(program)),
        *(Way("sardonyx", lambda: translation.read_narrower(program)) for _ in range(6)),
        Way("recorded", lambda: recorded.read(program)),
        Way("torch.onnx", lambda: torch_onnx.read(program)),
    )
    return [way for way in known if options.exporter in ("auto", way.name)]
