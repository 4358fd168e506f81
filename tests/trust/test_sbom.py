"""Bills of materials: valid by the schema of CycloneDX, with the facts of the file."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from sardonyx import demo
from sardonyx.cli import main
from sardonyx.errors import ModelFileError
from sardonyx.trust.sbom import sbom

pytest.importorskip("cyclonedx", reason="cyclonedx-python-lib is not installed (extra: sbom)")


def require_valid(text: str) -> None:
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    pytest.importorskip("jsonschema", reason="jsonschema is not installed")
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None


@pytest.mark.parametrize("name", demo.names())
def test_the_document_is_valid_and_states_the_file(name: str) -> None:
    text = sbom(demo.path(name))
    require_valid(text)
    (component,) = json.loads(text)["components"]
    assert component["type"] == "machine-learning-model"
    assert component["hashes"] == [
        {"alg": "SHA-256", "content": hashlib.sha256(demo.path(name).read_bytes()).hexdigest()}
    ]
    inputs = [value.name for value in onnx.load(demo.path(name)).graph.input]
    assert [entry["format"].split(":")[0] for entry in component["modelCard"]["modelParameters"]["inputs"]] == inputs


def test_data_files_licence_and_evidence_are_stated(tmp_path: Path) -> None:
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 4])],
        [numpy_helper.from_array(np.ones((8, 4), np.float32), "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9, model_version=3)
    helper.set_model_props(
        model, {"license": "Apache-2.0", "author": "Ünı", "sardonyx.quantize": "{}", "sardonyx.long": "x" * 9999}
    )
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    text = sbom(tmp_path / "m.onnx")
    require_valid(text)
    document = json.loads(text)
    main, data = sorted(document["components"], key=lambda component: str(component["bom-ref"]), reverse=True)
    assert (main["version"], main["authors"]) == ("3", [{"name": "Ünı"}])
    assert main["licenses"][0]["license"]["id"] == "Apache-2.0"
    properties = {entry["name"]: entry["value"] for entry in main["properties"]}
    assert properties["sardonyx:evidence:quantize"] == "{}"
    assert properties["sardonyx:evidence:long"].startswith("sha256:")
    assert properties["sardonyx:parameters"] == "32"
    assert data["name"] == "w.bin"
    assert data["hashes"][0]["content"] == hashlib.sha256((tmp_path / "w.bin").read_bytes()).hexdigest()


def test_a_file_that_is_not_a_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"text")
    with pytest.raises(ModelFileError):
        sbom(tmp_path / "m.onnx")


def test_a_document_that_cannot_be_written_is_a_named_error(tmp_path: Path) -> None:
    target = tmp_path / "absent" / "model.cdx.json"
    with pytest.raises(SystemExit) as ended:
        main(["sbom", str(demo.path(demo.names()[0])), "-o", str(target)])
    assert ended.value.code == ModelFileError.exit_code
