"""The store gives back what was put in or nothing, whatever happens to its folder."""

from __future__ import annotations

import errno
import functools
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from sardonyx.base.artifact_store import Store, digest, store

KEY = digest("something")
SIZES = [0, 1, 63, 64, 65, 65_535, 65_536, 65_537, 300_000]


def content(size: int, seed: int = 0) -> bytes:
    return np.random.default_rng(seed).bytes(size)


@pytest.mark.parametrize("size", SIZES)
def test_what_was_put_is_got_by_another_process_too(tmp_path: Path, size: int) -> None:
    Store(tmp_path / "new" / "folder").put("object", KEY, content(size))
    other = Store(tmp_path / "new" / "folder")
    assert other.get("object", KEY) == content(size)
    assert other.get("program", KEY) is None
    assert other.get("object", digest("something else")) is None


@pytest.mark.parametrize("size", SIZES)
def test_weights_are_mapped_read_only_and_aligned(tmp_path: Path, size: int) -> None:
    stored = Store(tmp_path)
    stored.put("weights", KEY, memoryview(content(size)))
    actual = stored.get("weights", KEY)
    assert actual is not None and actual.readonly and actual == content(size)
    if size:
        assert np.frombuffer(actual, np.uint8).ctypes.data % 64 == 0


def test_mapped_weights_outlive_their_entry(tmp_path: Path) -> None:
    stored = Store(tmp_path)
    stored.put("weights", KEY, content(300_000))
    actual = stored.get("weights", KEY)
    stored.put("weights", KEY, content(300_000))
    (tmp_path / "weights" / KEY).unlink()
    assert actual == content(300_000)


@pytest.mark.skipif(sys.platform == "win32", reason="the system has other permissions")
def test_entries_are_their_owners_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        Store(tmp_path / "cache").put("object", KEY, b"x")
    finally:
        os.umask(before)
    created = [tmp_path / "cache", *(tmp_path / "cache").rglob("*")]
    assert len(created) == 3
    assert not any(path.stat().st_mode & 0o077 for path in created)


def test_digests_tell_parts_apart() -> None:
    assert len({digest("ab", "c"), digest("a", "bc"), digest("abc"), digest("abc", ""), digest(b"abc", "", "")}) == 5
    assert digest("ab") == digest(b"ab")


@pytest.mark.parametrize("kind", ["object", "weights"])
@pytest.mark.parametrize("size", [1, 70_000, 200_000])
def test_every_damage_is_noticed_and_the_entry_goes(tmp_path: Path, kind: str, size: int) -> None:
    stored = Store(tmp_path)
    path = tmp_path / kind / KEY
    stored.put(kind, KEY, content(size))  # type: ignore[arg-type]
    good = path.read_bytes()
    draw = random.Random(1)
    flipped = [draw.randrange(len(good)) for _ in range(20)]
    bad = [good[:at] + bytes([good[at] ^ (1 << draw.randrange(8))]) + good[at + 1 :] for at in flipped]
    bad += [b"", good[:10], good[:64], good[:-1], good + b"\0", bytes(len(good)), os.urandom(len(good))]
    bad += [good[: len(good) // 2] + bytes(len(good) - len(good) // 2)]
    for damaged in bad:
        path.write_bytes(damaged)
        assert stored.get(kind, KEY) is None  # type: ignore[call-overload]
        assert not path.exists()
        stored.put(kind, KEY, content(size))  # type: ignore[arg-type]
        assert stored.get(kind, KEY) == content(size)  # type: ignore[call-overload]


def test_exchanged_blocks_and_exchanged_entries_are_noticed(tmp_path: Path) -> None:
    stored = Store(tmp_path)
    stored.put("weights", KEY, content(200_000))
    path = tmp_path / "weights" / KEY
    good = path.read_bytes()
    first, second = good[64 : 64 + 65_536], good[64 + 65_536 : 64 + 131_072]
    path.write_bytes(good[:64] + second + first + good[64 + 131_072 :])
    assert stored.get("weights", KEY) is None
    (tmp_path / "weights" / digest("other")).write_bytes(good)
    assert stored.get("weights", digest("other")) is None
    (tmp_path / "object").mkdir()
    (tmp_path / "object" / KEY).write_bytes(good)
    assert stored.get("object", KEY) is None


def used(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def test_the_size_is_bounded_and_what_is_used_stays(tmp_path: Path) -> None:
    stored = Store(tmp_path, limit=100_000)
    favourite = digest("favourite")
    stored.put("object", favourite, content(5_000))
    for i in range(100):
        past = time.time() - 1_000 + i
        stored.put("object", digest(str(i)), content(5_000))
        os.utime(tmp_path / "object" / digest(str(i)), (past, past))
        assert stored.get("object", favourite) is not None
        assert used(tmp_path) <= 100_000
    present = [i for i in range(100) if stored.get("object", digest(str(i)))]
    assert len(present) >= 10
    assert present == list(range(100 - len(present), 100)), "the oldest went first"


def test_what_is_read_counts_as_used_from_then_on(tmp_path: Path) -> None:
    stored = Store(tmp_path)
    stored.put("object", KEY, b"kept")
    entry = tmp_path / "object" / KEY
    os.utime(entry, (0, 0))
    before = time.time()
    assert stored.get("object", KEY) == b"kept"
    assert entry.stat().st_mtime >= before - 1


def test_a_new_process_counts_what_there_is(tmp_path: Path) -> None:
    for i in range(40):
        Store(tmp_path, limit=100_000).put("program", digest(str(i)), content(9_000))
        assert used(tmp_path) <= 100_000


def test_what_would_fill_the_store_is_not_kept(tmp_path: Path) -> None:
    stored = Store(tmp_path, limit=100_000)
    stored.put("object", KEY, content(1_000))
    stored.put("weights", KEY, content(90_000))
    assert stored.get("weights", KEY) is None
    assert stored.get("object", KEY) is not None


def test_what_a_killed_writer_left_goes_in_time(tmp_path: Path) -> None:
    stored = Store(tmp_path)
    stored.put("object", KEY, b"x")
    old, new = tmp_path / "object" / ".old", tmp_path / "object" / ".new"
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (0, 0))
    Store(tmp_path).put("object", digest("next"), b"x")
    assert not old.exists() and new.exists()


def test_a_folder_that_is_deleted_meanwhile_is_made_again(tmp_path: Path) -> None:
    stored = Store(tmp_path / "folder")
    for _ in range(3):
        stored.put("object", KEY, b"x")
        assert stored.get("object", KEY) == b"x"
        shutil.rmtree(tmp_path / "folder")
        assert stored.get("object", KEY) is None


# Places that take nothing.


def quiet_after_one_note(stored: Store, log: pytest.LogCaptureFixture) -> None:
    with log.at_level(logging.WARNING):
        for name in ("one", "two"):
            stored.put("object", digest(name), content(1_000))
            assert stored.get("object", digest(name)) is None
    assert len(log.records) == 1
    assert "not stored" in log.text


def test_a_folder_that_cannot_be_made(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("no folder")
    quiet_after_one_note(Store(tmp_path / "file" / "below"), caplog)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="nothing is read-only to root")
def test_a_read_only_folder_is_still_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    Store(tmp_path).put("object", KEY, b"kept")
    (tmp_path / "object").chmod(0o500)
    stored = Store(tmp_path)
    quiet_after_one_note(stored, caplog)
    assert stored.get("object", KEY) == b"kept"
    (tmp_path / "object").chmod(0o700)


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.ENOSPC])
def test_an_error_of_the_system(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    Store(tmp_path).put("object", KEY, b"kept")

    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "open", refuse)
    monkeypatch.setattr(os, "utime", refuse)
    stored = Store(tmp_path)
    quiet_after_one_note(stored, caplog)
    assert stored.get("object", KEY) == b"kept"


def test_reading_that_fails(tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = Store(tmp_path)
    stored.put("object", KEY, b"kept")

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(Path, "open", refuse)
    with caplog.at_level(logging.WARNING):
        assert stored.get("object", KEY) is None
        assert stored.get("object", KEY) is None
    assert len(caplog.records) == 1


def test_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SARDONYX_CACHE", str(tmp_path))
    assert store().folder == tmp_path and store() is store()
    for off in ("", "off"):
        monkeypatch.setenv("SARDONYX_CACHE", off)
        store().put("object", KEY, b"x")
        assert store().folder is None and store().get("object", KEY) is None
    monkeypatch.delenv("SARDONYX_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Store(tmp_path).folder is not None
    with pytest.raises(ValueError, match="expected a digest"):
        Store(tmp_path).get("object", "../outside")


# Processes. Each runs a function of this file.


def start(function: str, *arguments: object) -> subprocess.Popen[bytes]:
    imports = "import sys; sys.path.insert(0, sys.argv[1]); import test_artifact_store"
    script = f"{imports}; test_artifact_store.{function}(*sys.argv[2:])"
    return subprocess.Popen([sys.executable, "-c", script, str(Path(__file__).parent), *map(str, arguments)])


def write_for_ever(folder: str) -> None:
    stored = Store(Path(folder))
    Path(folder, "started").touch()
    data = content(5_000_000, 3)
    while True:
        stored.put("weights", KEY, data)


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="the system does not kill so")
def test_a_writer_that_is_killed_leaves_the_entry_whole_or_missing(tmp_path: Path) -> None:
    path = tmp_path / "weights" / KEY
    for i in range(5):
        writer = start("write_for_ever", tmp_path)
        while not (path if i == 0 else tmp_path / "started").exists():
            assert writer.poll() is None
            time.sleep(0.002)
        time.sleep(0.004 * i)
        writer.kill()
        writer.wait()
        (tmp_path / "started").unlink()
        assert path.exists() or i > 0
        if path.exists():
            assert Store(tmp_path).get("weights", KEY) == content(5_000_000, 3)
            path.unlink()


def write_to_a_full_disk(folder: str) -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
    stored = Store(Path(folder))
    stored.put("object", digest("small"), content(5_000))
    stored.put("object", digest("large"), content(50_000))
    assert stored.get("object", digest("small")) == content(5_000)
    assert stored.get("object", digest("large")) is None


@pytest.mark.skipif(sys.platform == "win32", reason="the system does not limit files")
def test_a_disk_that_is_full_in_the_middle_of_an_entry(tmp_path: Path) -> None:
    assert start("write_to_a_full_disk", tmp_path).wait(600) == 0
    assert [path.name for path in (tmp_path / "object").iterdir()] == [digest("small")], "nothing half written stays"


def read_and_write(folder: str, seed: str) -> None:
    stored = Store(Path(folder), limit=400_000)
    draw = random.Random(int(seed))
    expected = functools.cache(lambda i: content(3_000 + 700 * i, i))
    for _ in range(400):
        i = draw.randrange(40)
        actual = stored.get("weights", digest(str(i)))
        assert actual is None or actual == expected(i)
        if actual is None:
            stored.put("weights", digest(str(i)), expected(i))
    # Other processes may evict the entry before it is read; a store that has failed stores nothing at all.
    last = content(100)
    for _ in range(100):
        stored.put("weights", digest("last"), last)
        if stored.get("weights", digest("last")) == last:
            return
    raise AssertionError("expected a usable store, got one that neither writes nor reads after an error")


def test_eight_processes_at_once(tmp_path: Path) -> None:
    readers = [start("read_and_write", tmp_path, seed) for seed in range(8)]
    assert [reader.wait(600) for reader in readers] == [0] * 8
    assert used(tmp_path) <= 2 * 400_000
