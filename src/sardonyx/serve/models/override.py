"""Configurations and files of a load request, in place of the repository's."""

from __future__ import annotations

import base64
import binascii
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sardonyx.errors import RequestError
from sardonyx.serve.protocol.datatypes import shortened

_PREFIX = "file:"
_FILES = 64
"""Limit of the files of one request."""

_FILE = re.compile(r"(?:[1-9][0-9]{0,17}/)?[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
"""Names of files: beside the configuration, or in a folder of a version."""


@dataclass(frozen=True)
class Override:
    """The configuration, and perhaps all files, of a model in place of the repository's.

    Attributes:
        config: The configuration as JSON text.
        files: The contents of all files of the model by name; empty for the files of the repository.
    """

    config: str
    files: Mapping[str, bytes] = field(default_factory=dict)

    def folder(self, name: str) -> tempfile.TemporaryDirectory[str]:
        """Return a folder for this user alone, as a repository with the files of one model.

        Args:
            name: The name of the model.
        """
        folder = tempfile.TemporaryDirectory(prefix="sardonyx-model-")
        for file, contents in self.files.items():
            path = Path(folder.name) / name / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(contents)
        return folder

    def packed(self) -> tuple[dict[str, Any], bytes]:
        """Return a JSON object and bytes."""
        sizes = [[name, len(contents)] for name, contents in self.files.items()]
        return {"config": self.config, "files": sizes}, b"".join(self.files.values())

    @classmethod
    def unpacked(cls, head: Mapping[str, Any], data: bytes) -> Override:
        """Return the override of an object and bytes, as :meth:`packed` makes them."""
        files, offset = {}, 0
        for name, size in head["files"]:
            files[name] = data[offset : offset + size]
            offset += size
        return cls(head["config"], files)


def override_of(parameters: Mapping[str, Any]) -> Override | None:
    """Return the override in the parameters of a load request; None for none.

    Raises:
        RequestError: A parameter has another type, a name of a file is invalid, or files come without a configuration.
    """
    files = {key.removeprefix(_PREFIX): key for key in parameters if key.startswith(_PREFIX)}
    if "config" not in parameters:
        if files:
            raise RequestError("files of a request need a configuration.", where="config")
        return None
    config = parameters["config"]
    if not isinstance(config, str):
        raise RequestError(f"expected a JSON text, got {shortened(config)}.", where="config")
    if len(files) > _FILES:
        raise RequestError(f"expected at most {_FILES} files, got {len(files)}.", kind="too_large")
    for name in files:
        if not _FILE.fullmatch(name) or name == "config.pbtxt":
            raise RequestError(
                "expected a name of letters, digits, '.', '_' and '-', perhaps in a folder of a version.",
                where=f"{_PREFIX}{name[:64]}",
            )
    return Override(config, {name: _contents(parameters[key], key) for name, key in files.items()})


def _contents(value: Any, key: str) -> bytes:
    """Return the bytes of a file: as they are over gRPC, in base64 in JSON."""
    if isinstance(value, bytes):
        return value
    try:
        return base64.b64decode(value, validate=True)
    except (TypeError, ValueError, binascii.Error) as error:
        raise RequestError("expected contents in base64.", where=key[:64]) from error
