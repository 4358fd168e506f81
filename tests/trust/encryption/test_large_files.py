"""Files larger than memory: decryption holds a few segments, and writes nothing before all of a set is verified."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import numpy_helper

import sardonyx
from sardonyx.errors import EncryptionError
from sardonyx.model.external import MappedFile
from sardonyx.trust.encryption import decrypt, encrypt, generate_key, write_key
from sardonyx.trust.encryption.segment_reader import SegmentReader
from sardonyx.trust.encryption.segments import HEAD_BYTES, PLAIN_BYTES, SEGMENT_BYTES, encrypt_stream
from tests.trust.encryption.conftest import network

KEY = generate_key()
MEGABYTES = 96

PEAK = """
import sys
from pathlib import Path

def peak() -> int:
    return int(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1]) << 10
"""
# ru_maxrss of a process begins with that of the process which started it.

CONVERT = """
from sardonyx.trust.encryption import decrypt, encrypt, read_key

key = read_key(Path(sys.argv[1]))
for model in sys.argv[2:]:
    sealed = Path(model).parent / "sealed" / "m.onnxe"
    encrypt(model, sealed, to=[key.public()])
    decrypt(sealed, Path(model).parent / "plain" / "model.onnx", keys=[key])
    print(peak())
"""

LOAD = """
import sardonyx

sardonyx.add_key(sys.argv[1])
for path in sys.argv[2:]:
    model = sardonyx.load(path)
    print(peak())
"""

needs_proc = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the peak of memory is read from /proc")


def growth(program: str, folder: Path, paths: list[Path]) -> int:
    """Return by how many bytes the second file raises the peak of a process."""
    write_key(KEY, folder / "owner.key")
    words = [sys.executable, "-c", PEAK + program, str(folder / "owner.key"), *map(str, paths)]
    first, second = map(int, subprocess.run(words, check=True, capture_output=True, text=True).stdout.split())
    return second - first


def write_model(folder: Path, megabytes: int, *, external: bool) -> Path:
    model = network()
    weights = np.frombuffer(os.urandom(megabytes << 20), np.uint8)
    model.graph.initializer.append(numpy_helper.from_array(weights, "unused"))
    for name in ("", "sealed", "plain"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    path = folder / "model.onnx"
    onnx.save(model, path, save_as_external_data=external, location="weights.bin", size_threshold=0)
    return path


@needs_proc
@pytest.mark.parametrize("external", [False, True])
def test_the_memory_of_encrypt_and_decrypt_does_not_follow_the_size(external: bool, tmp_path: Path) -> None:
    paths = [write_model(tmp_path / str(size), size, external=external) for size in (12, MEGABYTES)]
    assert growth(CONVERT, tmp_path, paths) < (MEGABYTES << 20) / 4
    folder = paths[1].parent
    for path in folder.iterdir():
        if path.is_file():
            assert (folder / "plain" / path.name).read_bytes() == path.read_bytes()


@needs_proc
def test_an_encrypted_model_is_in_memory_once_when_it_is_loaded(tmp_path: Path) -> None:
    sealed = []
    for size in (1, 2 * MEGABYTES):
        sealed.append(tmp_path / str(size) / "sealed" / "m.onnxe")
        encrypt(write_model(tmp_path / str(size), size, external=False), sealed[-1], to=[KEY.public()])
    assert 2 * MEGABYTES << 20 <= growth(LOAD, tmp_path, sealed) + (16 << 20) < 1.6 * (2 * MEGABYTES << 20)


@pytest.mark.parametrize("changed", ["m.onnxe", "weights.bin.onnxe"])
def test_no_file_is_written_if_the_last_segment_of_one_was_changed(changed: str, tmp_path: Path) -> None:
    model = write_model(tmp_path, 3, external=True)
    encrypt(model, tmp_path / "sealed" / "m.onnxe", to=[KEY.public()])
    path = tmp_path / "sealed" / changed
    contents = bytearray(path.read_bytes())
    contents[-1] ^= 1
    path.write_bytes(contents)
    with pytest.raises(EncryptionError, match=rf"{changed}.*authentication tags"):
        decrypt(tmp_path / "sealed" / "m.onnxe", tmp_path / "plain" / "model.onnx", keys=[KEY])
    assert not list((tmp_path / "plain").iterdir())


def test_a_model_in_text_form_is_decrypted(model: Path, tmp_path: Path) -> None:
    text = tmp_path / "model.onnxtxt"
    sardonyx.save(sardonyx.load(model), text)
    encrypt(text, tmp_path / "text.onnxtxt.onnxe", to=[KEY.public()])
    decrypt(tmp_path / "text.onnxtxt.onnxe", tmp_path / "plain.onnxtxt", keys=[KEY])
    assert (tmp_path / "plain.onnxtxt").read_bytes() == text.read_bytes()


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([0, 1, 700, PLAIN_BYTES - HEAD_BYTES, 2 * PLAIN_BYTES - HEAD_BYTES + 3]), st.data())
def test_random_access_reads_the_plain_bytes(size: int, data: st.DataObject) -> None:
    plain = np.random.default_rng(size).bytes(size)
    path = Path(os.environ["SARDONYX_STATE"]).parent / f"{size}.stream"
    if not path.exists():
        path.write_bytes(b"head" + b"".join(encrypt_stream(bytes(32), b"context", [plain], size)))
    reader = SegmentReader(MappedFile(path), 4, bytes(32), b"context")
    assert len(reader) == size
    start, end = (data.draw(st.integers(0, size)) for _ in range(2))
    assert reader[start:end] == plain[start:end]
    if size:
        index = data.draw(st.integers(0, size - 1))
        assert reader[index] == plain[index]
    assert b"".join(reader.chunks()) == plain


def test_random_access_refuses_changed_segments(tmp_path: Path) -> None:
    plain = bytes(3 * PLAIN_BYTES)
    stream = bytearray(b"".join(encrypt_stream(bytes(32), b"context", [plain], len(plain))))
    stream[SEGMENT_BYTES + 5] ^= 1
    (tmp_path / "stream").write_bytes(stream)
    reader = SegmentReader(MappedFile(tmp_path / "stream"), 0, bytes(32), b"context")
    assert reader[:10] == bytes(10)
    with pytest.raises(EncryptionError, match="authentication tags"):
        reader[PLAIN_BYTES : PLAIN_BYTES + 1]
