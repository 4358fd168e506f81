"""No file that a process writes holds plain contents of an encrypted model; the search finds those of a plain one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from sardonyx.errors import EncryptionError
from sardonyx.runtime.session import Session
from sardonyx.train import LoRA, Trainer
from sardonyx.train.online import Learner
from sardonyx.train.ort_artifacts import generate_artifacts
from sardonyx.trust.encryption import add_key, encrypt, generate_key, write_key
from tests.trust.encryption.conftest import MARKER

PROGRAM = """
import sys
import numpy as np
from sardonyx import Session

x = np.ones((2, 64), np.float32)
for threads in (1, 2):
    session = Session(sys.argv[1], compile="wait", threads=threads)
    assert session.native is not None
    session.run(None, {"private_image": x})
    session.run(["h"], {"private_image": x})
    with session.edit() as edit:
        edit.add_output("r")
    session.run(None, {"private_image": x})
session = Session(sys.argv[1], providers=["native", "reference"], compile="background")
session.run(None, {"private_image": x})
session.wait()
"""


def holders(folder: Path, sample: bytes) -> list[str]:
    return [path.name for path in folder.rglob("*") if path.is_file() and sample in path.read_bytes()]


def written_by_a_process(model: Path, folder: Path, key: Path) -> None:
    """Run sessions with all folders that a process may write to inside of one folder."""
    environment = dict(
        os.environ,
        HOME=str(folder),
        TMPDIR=str(folder),
        SARDONYX_CACHE=str(folder / "cache"),
        SARDONYX_STATE=str(folder / "state"),
        SARDONYX_KEYS=str(key),
    )
    subprocess.run([sys.executable, "-c", PROGRAM, str(model)], env=environment, cwd=folder, check=True)


def test_a_process_writes_no_plain_contents(model: Path, tmp_path: Path) -> None:
    key = generate_key()
    write_key(key, tmp_path / "owner.key")
    encrypt(model, tmp_path / "m.onnxe", to=[key])
    weights, name = 8 * MARKER.tobytes(), b"private_image"
    plain, sealed = tmp_path / "plain", tmp_path / "sealed"
    for folder, path in ((plain, model), (sealed, tmp_path / "m.onnxe")):
        folder.mkdir()
        written_by_a_process(path, folder, tmp_path / "owner.key")
    assert holders(plain, weights) and holders(plain, name), "the search does not find plain contents"
    assert list((sealed / "cache").rglob("*")), "the encrypted model is not cached"
    assert not holders(sealed, weights)
    assert not holders(sealed, name)
    objects = {path.name for path in (plain / "cache" / "object").iterdir()}
    sealed_objects = {path.name for path in (sealed / "cache" / "object").iterdir()}
    # Code of every process, such as that of the worker threads, may be stored by either.
    assert len(sealed_objects - objects) >= 1


def test_the_program_of_an_encrypted_model_is_found_again(model: Path, tmp_path: Path) -> None:
    key = generate_key()
    write_key(key, tmp_path / "owner.key")
    encrypt(model, tmp_path / "m.onnxe", to=[key])
    program = (
        "import sys; from sardonyx import Session; s = Session(sys.argv[1], compile='wait');"
        "print(s.native.program.has_graph)"
    )
    environment = {**os.environ, "SARDONYX_KEYS": str(tmp_path / "owner.key")}
    printed = [
        subprocess.run(
            [sys.executable, "-c", program, str(tmp_path / "m.onnxe")],
            env=environment,
            check=True,
            capture_output=True,
            text=True,
        ).stdout.strip()
        for _ in range(2)
    ]
    assert printed == ["True", "False"], "the second process compiles again"


WRITERS: dict[str, Callable[[Trainer, Path], object]] = {
    "model": lambda trainer, folder: trainer.save(folder / "m.onnx"),
    "checkpoint": lambda trainer, folder: trainer.save_checkpoint(folder / "own"),
    "checkpoint of fit": lambda trainer, folder: trainer.fit(DATA, checkpoint=folder / "own"),
    "artifacts": lambda trainer, folder: generate_artifacts(trainer, folder / "own"),
}
DATA = {"private_image": np.zeros((2, 64), np.float32), "labels": np.zeros((2, 4), np.float32)}


@pytest.mark.parametrize("lora", [None, LoRA(2)])
def test_training_writes_no_plain_contents(lora: LoRA | None, model: Path, tmp_path: Path) -> None:
    key = generate_key()
    encrypt(model, tmp_path / "m.onnxe", to=[key])
    sealed = tmp_path / "sealed"
    sealed.mkdir()
    with add_key(key):
        trainer = Trainer(tmp_path / "m.onnxe", "mse", lora=lora)
    for write in WRITERS.values():
        with pytest.raises(EncryptionError, match=r"not written in plain text.*decrypt"):
            write(trainer, sealed)
    assert not list(sealed.iterdir())


def test_a_learner_of_an_encrypted_model_stores_nothing(model: Path, tmp_path: Path) -> None:
    key = generate_key()
    encrypt(model, tmp_path / "m.onnxe", to=[key])
    with add_key(key):
        session = Session(tmp_path / "m.onnxe", compile="off")
        with pytest.raises(EncryptionError, match="not written in plain text"):
            Learner(session, "mse", store=tmp_path / "learner").close()
        assert not (tmp_path / "learner").exists()
        Learner(session, "mse").close()


@pytest.mark.parametrize("kind", ["program", "weights"])
def test_a_damaged_entry_of_the_encrypted_store_is_ignored(kind: str, tmp_path: Path) -> None:
    from sardonyx.trust.encryption.sealed_store import SealedStore

    store = SealedStore(tmp_path / "store", bytes(32))
    store.put(kind, "ab" * 20, b"contents" * 100)  # type: ignore[arg-type]
    assert bytes(store.get(kind, "ab" * 20) or b"") == b"contents" * 100  # type: ignore[call-overload]
    assert SealedStore(tmp_path / "store", bytes(31) + b"1").get(kind, "ab" * 20) is None  # type: ignore[call-overload]
    (path,) = [path for path in (tmp_path / "store").rglob("*") if path.is_file()]
    assert b"contents" not in path.read_bytes() and path.name != "ab" * 20
    damaged = bytearray(path.read_bytes())
    damaged[-1] ^= 1
    path.write_bytes(bytes(damaged))
    assert store.get(kind, "ab" * 20) is None  # type: ignore[call-overload]
