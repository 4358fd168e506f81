"""Checks of files of PyTorch, ahead of torch's own readers, which execute what a file says.

The reader of exported programs loads pickles, libraries and expressions in Python, and calls any function of torch by
its name; the reader of TorchScript executes the code of ``__setstate__``. A file that asks for more than operators on
tensors is refused, unless the caller trusts it.
"""

from __future__ import annotations

import ast
import io
import json
import operator
import re
import tokenize
from pathlib import Path
from typing import Any

from sardonyx.convert.torch.members import Members, opened
from sardonyx.errors import ModelFileError

FORBIDDEN = frozenset(("save", "from_file", "load_tensor", "rpc_sync", "rpc_async", "rpc_remote"))
"""Operators that access files or other machines."""

_OPERATOR = re.compile(r"torch\.ops\.(?!__)\w+\.((?:(?!__)\w+)|__(?:i?(?:and|or|xor|lshift|rshift))__)(?:\.\w+)?")
_FUNCTION = re.compile(
    r"(?:math\.(?!_)\w+|torch\._?sym_\w+|torch\.(?:_C\.)?_?set_grad_enabled|torch\.amp\.autocast_mode\._\w+"
    r"|torch\._functorch\.predispatch\.(?:_\w+|lazy_load_decompositions))"
)
_PYTHON = frozenset(f"_operator.{name}" for name in operator.__all__) - {
    f"_operator.{name}" for name in ("attrgetter", "call", "itemgetter", "methodcaller")
}

_EXPRESSION = re.compile(
    r"Symbol|Integer|Float|Rational|Half|One|Zero|NegativeOne|Add|Mul|Pow|Mod|Min|Max|Abs|Eq|Ne|"
    r"Lt|Le|Gt|Ge|And|Or|Not|Equality|Unequality|LessThan|GreaterThan|StrictLessThan|"
    r"StrictGreaterThan|Relational|Piecewise|ExprCondPair|Tuple|floor|ceiling|sqrt|exp|log|sin|cos|"
    r"tan|BooleanTrue|BooleanFalse|FloorDiv|ModularIndexing|Where|PythonMod|CleanDiv|CeilToInt|"
    r"FloorToInt|CeilDiv|LShift|RShift|PowByNatural|FloatPow|FloatTrueDiv|IntTrueDiv|TruncToFloat|"
    r"TruncToInt|IsNonOverlappingAndDenseIndicator|RoundToInt|RoundDecimal|ToFloat|Identity"
)
"""Functions that an expression over sizes may call."""

_NODES = (
    ast.Expression, ast.Call, ast.Name, ast.Load, ast.Constant, ast.keyword, ast.UnaryOp, ast.BinOp, ast.Compare,
    ast.BoolOp, ast.Tuple, ast.operator, ast.unaryop, ast.cmpop, ast.boolop,
)  # fmt: skip

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\x85\u2028\u2029]")
"""Characters that end a line, and so a comment, in the code that torch generates of a graph."""

_TYPES = re.compile(r"#\s*type\s*:")
"""Comments that TorchScript reads as code."""

_NAME = re.compile(r"""(['"])([^'"\\]*)\1""")
"""A string that is a name as it stands."""

_TEXTS = frozenset(
    ("stack_trace", "nn_module_stack", "torch_fn", "source_fn_stack", "in_spec", "out_spec", "as_string")
)
"""Strings that torch does not write into code as they are."""


def require_harmless_program(path: Path) -> None:
    """Refuse an exported program whose reading or running would execute more than operators.

    Raises:
        ModelFileError: The archive holds compiled code or pickled objects, or names functions other than operators.
    """
    with opened(path) as members:
        members.require_unambiguous()
        for name in members.names:
            folded = name.lower()
            if "/aotinductor/" in folded:
                raise _refusal(path, "the archive holds compiled libraries")
            if "/opaque_obj" in folded or "/custom_obj" in folded:
                raise _refusal(path, f"the archive holds a pickled object ({name.rpartition('/')[2]})")
            if folded.endswith(".json"):
                _require_harmless(_read_json(members, name, path), "", path)


def require_harmless_script(path: Path) -> None:
    """Refuse TorchScript whose code calls an operator that accesses files or other machines.

    Raises:
        ModelFileError: The code does, or cannot be read.
    """
    with opened(path) as members:
        members.require_unambiguous()
        for name in members.names:
            folded = name.lower()
            if folded.endswith("/model.json"):
                raise _refusal(path, "the archive has the format of torch before 1.4")
            if folded.endswith(".py"):
                _require_harmless_code(members.read(name), path)


def _require_harmless_code(data: bytes, path: Path) -> None:
    """Check the names after dots, and those that ``getattr`` reads."""
    try:
        code = data.decode("utf-8")
        if _CONTROL.search(code) or _TYPES.search(code):
            raise _refusal(path, "the code in the archive has characters or comments that torch does not write")
        last = ""
        opening: list[bool] = []  # True for the brackets of a call of `getattr`.
        texts: list[str] = []
        for token in tokenize.generate_tokens(io.StringIO(code).readline):
            if token.type in (tokenize.NL, tokenize.NEWLINE, tokenize.COMMENT, tokenize.INDENT, tokenize.DEDENT):
                continue
            if token.type == tokenize.ERRORTOKEN and not token.string.isspace():
                raise ModelFileError(f"the code in the archive is damaged: {token.string[:80]!r}", where=str(path))
            if last == "getattr" and token.string != "(":
                raise _refusal(path, "the code in the archive uses 'getattr' as a value")
            if token.type == tokenize.NAME and last == ".":
                _require_name(token.string, path)
            elif token.type == tokenize.STRING and opening and opening[-1]:
                texts.append(token.string)
            elif token.string in ("(", "[", "{"):
                opening.append(last == "getattr")
            elif token.string in (")", "]", "}") and opening and opening.pop():
                name = _NAME.fullmatch(texts.pop()) if len(texts) == 1 and last[:1] in ("'", '"') else None
                if name is None:
                    raise _refusal(path, "the code in the archive reads attributes by computed names")
                _require_name(name[2], path)
            if not (opening and opening[-1]) and token.type != tokenize.STRING:
                texts.clear()
            last = token.string
    except (tokenize.TokenError, SyntaxError, UnicodeDecodeError, RecursionError, MemoryError) as error:
        raise ModelFileError(f"the code in the archive is damaged: {error}", where=str(path)) from error


def _require_name(name: str, path: Path) -> None:
    if name in FORBIDDEN:
        raise _refusal(path, f"the code in the archive calls '{name}'")


def _refusal(path: Path, problem: str) -> ModelFileError:
    return ModelFileError(
        f"{problem}, which may execute any code.",
        where=str(path),
        remedy="If you trust its origin, set `trust=True` (`--trust`).",
    )


def _read_json(members: Members, name: str, path: Path) -> Any:
    try:
        return json.loads(members.read(name))
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{name} is damaged: {error}", where=str(path)) from error


def _require_harmless(value: Any, key: str, path: Path) -> None:
    """Check the strings in a record of an exported program by their keys."""
    if isinstance(value, dict):
        for inner, entry in value.items():
            _require_harmless(inner, "", path)
            _require_harmless(entry, inner, path)
    elif isinstance(value, list):
        for entry in value:
            _require_harmless(entry, key, path)
    elif isinstance(value, str):
        if key in ("target", "as_operator"):
            _require_operator(value, path)
        elif key == "expr_str":
            _require_expression(value, path)
        elif _CONTROL.search(value) or ("\n" in value and key not in _TEXTS):
            raise _refusal(path, f"the string '{key}' of the program has control characters")
        elif key in ("in_spec", "out_spec") and "__enum__" in value:
            raise _refusal(path, "the structure of the program's inputs names modules of Python")


def _require_operator(target: str, path: Path) -> None:
    match = _OPERATOR.fullmatch(target)
    if (match and match[1] not in FORBIDDEN) or _FUNCTION.fullmatch(target) or target in _PYTHON:
        return
    raise _refusal(path, f"the program calls '{target[:80]}'")


def _require_expression(text: str, path: Path) -> None:
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        problem = getattr(error, "msg", "") or type(error).__name__
        raise ModelFileError(f"the size '{text[:80]}' is damaged: {problem}", where=str(path)) from error
    for node in ast.walk(tree):
        is_known = isinstance(node, _NODES)
        if isinstance(node, ast.Call):
            is_known = isinstance(node.func, ast.Name) and _EXPRESSION.fullmatch(node.func.id) is not None
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            is_known = re.fullmatch(r"[\w.+-]*", node.value) is not None
        if not is_known:
            raise _refusal(path, f"expected a size, got the expression '{text[:80]}'")
