"""Archives of public suites."""

from __future__ import annotations

import tarfile
from pathlib import Path


def unpacked(archive: Path, folder: Path) -> None:
    """Unpack an archive; Python before 3.11.4 has no filter that keeps entries in the folder."""
    with tarfile.open(archive) as opened:
        if hasattr(tarfile, "data_filter"):
            opened.extractall(folder, filter="data")
        else:
            opened.extractall(folder)
