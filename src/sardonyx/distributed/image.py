"""Compiled models that travel to other machines once and are mapped there by all processes.

An image is the content of a compiled file (``.sdx``). The first process of a machine writes the content to a local file
that is named by its digest; every process maps that file, so that the weights are in memory once a machine.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from sardonyx.base.artifact_store import write_whole
from sardonyx.errors import OptionError
from sardonyx.model.load import Loadable
from sardonyx.runtime.session import Session

FOLDER = "SARDONYX_IMAGES"
"""Environment variable with the folder of images of a machine; by default in the folder of temporary files."""


@dataclass(frozen=True)
class Image:
    """A compiled model as bytes, e.g. for an object store; images are equal if digest and threads are.

    An image contains machine code: use images of your own cluster only.

    Attributes:
        content: The content of the compiled file.
        digest: SHA-256 of the content.
        threads: Threads for which the model was compiled.
    """

    content: bytes = field(repr=False, compare=False)
    digest: str
    threads: int

    @classmethod
    def compile(cls, model: Loadable, threads: int = 1) -> Image:
        """Compile a model for machines with the processor features of this one, or of ``SARDONYX_TARGET``.

        Args:
            model: The model.
            threads: Threads of a process: 1 lets a worker of each processor run alone.

        Raises:
            UnsupportedError: The model is not compiled as a whole.
        """
        if threads < 1:
            raise OptionError(f"expected at least 1 thread, got {threads}.", where="threads")
        session = Session(model, compile="wait", threads=threads)
        with tempfile.TemporaryDirectory(prefix="sardonyx-image-") as folder:
            path = Path(folder) / "model.sdx"
            session.save_compiled(path)
            content = path.read_bytes()
        return cls(content, hashlib.sha256(content).hexdigest(), threads)

    def local_path(self) -> Path:
        """Return the file of the image on this machine, written by the first process that asks.

        The folder belongs to this user alone; a file with another digest is written anew.
        """
        folder = Path(os.environ.get(FOLDER) or Path(tempfile.gettempdir()) / f"sardonyx-images-{_user()}")
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.lstat()
        if os.name == "posix" and (status.st_uid != os.getuid() or status.st_mode & 0o022 or folder.is_symlink()):
            raise OptionError(
                "expected a folder that only this user can write to.", where=str(folder), remedy=f"Set {FOLDER}."
            )
        path = folder / f"{self.digest}.sdx"
        if not path.is_file() or path.stat().st_size != len(self.content) or not self._is_of(path):
            write_whole(path, self.content)
        return path

    def _is_of(self, path: Path) -> bool:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == self.digest

    def open(self) -> Session:
        """Return a session that maps the image."""
        return Session(self.local_path(), compile="wait", threads=self.threads)


def _user() -> str:
    return str(os.getuid()) if hasattr(os, "getuid") else "user"
