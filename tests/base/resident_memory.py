"""Resident memory of mappings, by the system's own count."""

from __future__ import annotations

from pathlib import Path


def resident(path: Path) -> int:
    """Return the bytes of the mappings of a file that this process holds."""
    total, is_ours = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        fields = line.split()
        if "-" in fields[0] and not fields[0].endswith(":"):
            is_ours = line.endswith(str(path))
        elif is_ours and fields[0] == "Rss:":
            total += int(fields[1]) * 1024
    return total
