"""The cases of OpenSSF Model Signing, with a key and with certificates: 45 each, all offline."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sardonyx.errors import SignatureError
from sardonyx.trust.signing import sign, verify
from tests.suites.oms import Case, Material, cases, make_material, write_files

pytest.importorskip("model_signing", reason="model_signing is not installed (extra: sign)")


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> Material:
    return make_material(tmp_path_factory.mktemp("keys"))


@pytest.mark.parametrize("way", ["key", "certificate"])
@pytest.mark.parametrize("case", list(cases()), ids=lambda case: case.name)
def test_a_case_is_accepted_or_refused(case: Case, way: str, material: Material, tmp_path: Path) -> None:
    model = tmp_path / "model"
    write_files(model)
    is_certificate = way == "certificate"
    signature = sign(model, key=material.key, certificate=material.certificate if is_certificate else None)
    case.change(model, signature)
    own = case.trust == "own"
    if is_certificate:
        trusted = {"certificates": [material.root if own else material.other_root]}
    else:
        trusted = {"public_key": material.public if own else material.other_public}
    if case.accepted:
        assert len(verify(model, **trusted).files) == 4  # type: ignore[arg-type]
    else:
        with pytest.raises(SignatureError):
            verify(model, **trusted)  # type: ignore[arg-type]


def test_a_signature_by_a_key_is_not_one_by_a_certificate(material: Material, tmp_path: Path) -> None:
    write_files(tmp_path / "model")
    sign(tmp_path / "model", key=material.key)
    with pytest.raises(SignatureError, match="with a chain of certificates, got one with a public key"):
        verify(tmp_path / "model", certificates=[material.root])
    signature = sign(tmp_path / "model", key=material.key, certificate=material.certificate)
    with pytest.raises(SignatureError, match="with a public key, got one with a chain of certificates"):
        verify(tmp_path / "model", public_key=material.other_public)
    bundle = json.loads(signature.read_text())
    for other, reason in (({"certificate": {}}, "a certificate of Sigstore"), ({}, "nothing"), (None, "nothing")):
        signature.write_text(json.dumps({**bundle, "verificationMaterial": other}))
        with pytest.raises(SignatureError, match=f"got one with {reason}"):
            verify(tmp_path / "model", public_key=material.public)


def test_a_key_that_does_not_fit_its_certificate_is_refused(material: Material, tmp_path: Path) -> None:
    write_files(tmp_path / "model")
    with pytest.raises(SignatureError):
        sign(tmp_path / "model", key=material.key.with_name("other.pem"), certificate=material.certificate)
