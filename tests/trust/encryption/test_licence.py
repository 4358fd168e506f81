"""Licences: every claim permits and refuses, and no licence is forged, moved or dropped."""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path
from typing import Any

import pytest

import sardonyx
from sardonyx.base.cpu_count import thread_count
from sardonyx.errors import LicenceError, OptionError
from sardonyx.trust.encryption import Licence, add_key, encrypt, generate_key, machine_id, moment, rewrap
from sardonyx.trust.encryption.head import read_head, write_head
from sardonyx.trust.encryption.key_ring import find_data_key

KEY, ISSUER = generate_key(), generate_key("ed25519")
NOW = int(time.time())


def licensed(model: Path, licence: Licence) -> Path:
    path = model.with_suffix(".onnxe")
    encrypt(model, path, to=[KEY], licence=licence, issuer=ISSUER)
    return path


@pytest.fixture(autouse=True)
def key(own_state: None) -> Any:
    with add_key(KEY):
        yield


PERMITTED = [
    Licence("Example Ltd"),
    Licence(not_before=NOW - 100, not_after=NOW + 86400),
    Licence(cores=thread_count(None)),
]
REFUSED = {
    "the licence ended on": Licence(not_after=NOW - 100),
    "the licence begins on": Licence(not_before=NOW + 86400),
    "for other machines": Licence(machines=("0" * 32,)),
    "allows 0 processors": Licence(cores=0),
}


@pytest.mark.parametrize("licence", PERMITTED, ids=["of a holder", "of a period", "of a number of cores"])
def test_a_valid_licence_permits_the_load(licence: Licence, model: Path) -> None:
    sardonyx.load(licensed(model, licence))


def test_this_machine_is_permitted(model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "machine-id").write_text("0123456789abcdef\n")
    monkeypatch.setattr("sardonyx.trust.encryption.licence.MACHINE_FILES", (str(tmp_path / "machine-id"),))
    path = licensed(model, Licence(machines=("f" * 32, machine_id())))
    sardonyx.load(path)
    (tmp_path / "machine-id").write_text("another\n")
    with pytest.raises(LicenceError, match="for other machines"):
        sardonyx.load(path)


@pytest.mark.parametrize("message", REFUSED)
def test_another_licence_refuses_the_load_and_the_warm_session(
    message: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "machine-id").write_text("0123456789abcdef\n")
    monkeypatch.setattr("sardonyx.trust.encryption.licence.MACHINE_FILES", (str(tmp_path / "machine-id"),))
    path = licensed(model, Licence())
    sardonyx.Session(path, compile="wait")
    rewrap(path, to=[KEY], licence=REFUSED[message], issuer=ISSUER)
    for open_it in (sardonyx.load, sardonyx.Session, lambda path: sardonyx.Session(path, compile="wait")):
        with pytest.raises(LicenceError, match=message):
            open_it(path)


def rewritten(path: Path, licence: dict[str, str] | None) -> None:
    """Replace the licence as a holder of the data key can, with a valid code of the head."""
    contents = path.read_bytes()
    head = read_head(memoryview(contents))
    raw, _ = write_head(find_data_key(head, ""), head.description, dataclasses.replace(head.access, licence=licence))
    path.write_bytes(raw + contents[head.size :])


def test_a_licence_is_not_forged_moved_or_dropped(model: Path, tmp_path: Path) -> None:
    path = licensed(model, Licence(not_after=NOW + 86400))
    stored = read_head(memoryview(path.read_bytes())).access.licence
    assert stored is not None
    claims = json.loads(stored["claims"])
    later = json.dumps({**claims, "not_after": NOW + 99999})
    other = tmp_path / "other.onnxe"
    model.write_bytes(model.read_bytes() + b"\x12\x01x")
    encrypt(model, other, to=[KEY], licence=Licence(), issuer=ISSUER)
    moved = dict(read_head(memoryview(other.read_bytes())).access.licence or {})
    for licence, message in (
        ({**stored, "claims": later}, "not signed by the issuer"),
        ({**stored, "signature": "AAAA"}, "not signed by the issuer"),
        ({**stored, "signature": "?"}, "not signed by the issuer"),
        (moved, "for another model"),
        (None, "requires a licence"),
    ):
        rewritten(path, licence)
        with pytest.raises(LicenceError, match=message):
            sardonyx.load(path)


def test_a_clock_that_was_set_back_is_refused(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = licensed(model, Licence(not_after=NOW + 10 * 86400))
    sardonyx.load(path)
    monkeypatch.setattr(time, "time", lambda: NOW - 86400.0)
    with pytest.raises(LicenceError, match="the clock was set back"):
        sardonyx.load(path)


def test_the_issuer_of_a_licence_stays_the_same(model: Path) -> None:
    path = licensed(model, Licence())
    with pytest.raises(OptionError, match="issuer that the file names"):
        rewrap(path, to=[KEY], licence=Licence(), issuer=generate_key("ed25519"))
    with pytest.raises(OptionError, match="passed together"):
        encrypt(model, path, to=[KEY], licence=Licence())
    with pytest.raises(OptionError, match="expected an Ed25519 secret key"):
        encrypt(model, path, to=[KEY], licence=Licence(), issuer=KEY)


def test_moments_are_dates() -> None:
    assert moment("1970-01-02") == 86400
    assert moment("1970-01-01T01:00:00+01:00") == 0
    with pytest.raises(OptionError, match="expected a date"):
        moment("tomorrow")
