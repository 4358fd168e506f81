"""The text of a generated file: header, helper functions, the module's class, and the function that loads it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Sequence

import sardonyx
from sardonyx.core.ir.types import TensorType
from sardonyx.export.core_function import Traced
from sardonyx.export.torch import copied_functions
from sardonyx.export.torch.element_types import SPELLINGS
from sardonyx.export.torch.source import Module

_ALWAYS = ("add_parameter", "add_buffer", "group_of", "Group")


def file_text(
    name: str, parts: Module, lines: Sequence[str], arguments: Sequence[str], returned: str, program: Traced
) -> str:
    """Return the text of the file.

    Args:
        name: Name of the class.
        parts: Weights and helpers.
        lines: Statements of ``forward``, indented.
        arguments: Parameters of ``forward``.
        returned: The expression that ``forward`` returns.
        program: The model, for the documentation of inputs and outputs.
    """
    tensors = [
        argument
        for argument, value in zip(arguments, program.function.inputs, strict=False)
        if isinstance(value.type, TensorType)
    ]
    body = [*_device(lines, tensors, returned), *lines, f"        return {returned}"]
    code = "\n".join((*body, *_helper_sources(parts.helpers)))
    imports = ["import torch"]
    if re.search(r"\bF\.", code):
        imports.append("import torch.nn.functional as F")
    if re.search(r"\bmath\.", code):
        imports.insert(0, "import math")
    names = [str(argument) for argument in arguments]
    return "\n".join(
        [
            f'"""{name}: a module of torch, generated from an ONNX model by Sardonyx {sardonyx.__version__}.',
            "",
            "    module = load()",
            "",
            "The numbers of parameters and buffers are in the file of the same name that ends in .safetensors.",
            '"""',
            "",
            "from __future__ import annotations",
            "",
            *(["import math"] if imports[0] == "import math" else []),
            "from pathlib import Path",
            "",
            *imports[imports.index("import torch") :],
            "",
            "",
            *_helper_lines(parts.helpers),
            f"class {name}(torch.nn.Module):",
            f'    """{name}.',
            "",
            *_documentation("Args", program.inputs, program.function.inputs),
            *_documentation("Returns", program.outputs, program.function.results),
            '    """',
            "",
            f"    inputs = {tuple(program.inputs)!r}",
            f"    outputs = {tuple(program.outputs)!r}",
            "",
            "    def __init__(self) -> None:",
            "        super().__init__()",
            *_weights(parts),
            "",
            f"    def forward({', '.join(['self', *names])}):",
            *body,
            "",
            "",
            f"def load(weights: str | Path | None = None) -> {name}:",
            '    """Return the module with its weights, by default those of the file beside this one."""',
            "    from safetensors.torch import load_file",
            "",
            f"    module = {name}()",
            '    module.load_state_dict(load_file(weights or Path(__file__).with_suffix(".safetensors")))',
            "    return module.eval()",
            "",
        ]
    )


def _documentation(title: str, names: Iterable[str], values: Iterable[object]) -> list[str]:
    lines = [f"    {title}:"]
    for name, value in zip(names, values, strict=False):
        type_ = getattr(value, "type", None)
        lines.append(f"        {_plain(name)}: {_plain(str(type_))}")
    return [*lines, ""] if title == "Args" else lines


def _plain(text: str) -> str:
    return re.sub(r"[^ -~]|[\\\"]", "?", text)


def _weights(parts: Module) -> list[str]:
    lines = []
    for weight in parts.weights.values():
        function = "add_parameter" if weight.trainable else "add_buffer"
        lines.append(f'        {function}(self, "{weight.path}", {weight.shape!r}, {SPELLINGS[weight.dtype]})')
    return lines


def _device(lines: Sequence[str], arguments: Sequence[str], returned: str) -> list[str]:
    """Return the statement that defines the device of new tensors, if any is made."""
    if not any("device=device" in line for line in (*lines, returned)):
        return []
    return [f"        device = {_device_of(arguments)}"]


def _device_of(arguments: Sequence[str]) -> str:
    if arguments:
        return f"{arguments[0]}.device"
    return 'next((tensor.device for tensor in self.state_dict().values()), torch.device("cpu"))'


def _helper_sources(names: Iterable[str]) -> list[str]:
    """Return the sources of helpers and of the helpers that these call, in the order of their file."""
    everything = {
        name: inspect.getsource(item)
        for name, item in vars(copied_functions).items()
        if getattr(item, "__module__", "") == copied_functions.__name__
    }
    needed = {*_ALWAYS, *names}
    waiting = list(needed)
    while waiting:
        source = everything[waiting.pop()]
        for other in everything:
            if other not in needed and re.search(rf"\b{other}\b\(", source):
                needed.add(other)
                waiting.append(other)
    return [source for name, source in everything.items() if name in needed]


def _helper_lines(names: Iterable[str]) -> list[str]:
    lines: list[str] = []
    for source in _helper_sources(names):
        lines += [*source.rstrip().splitlines(), "", ""]
    return lines
