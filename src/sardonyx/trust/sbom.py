"""Bills of materials for models: CycloneDX documents with a machine-learning model (ML-BOM).

The document states facts of the file and of its proofs, and nothing else: digests of the files, operator sets, element
types, sizes, inputs and outputs, licence, producer, and the evidence that `sardonyx` wrote when a model was compressed.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx_ir as ir

from sardonyx.base.extras import require
from sardonyx.model.external import Folder, MappedFile
from sardonyx.model.load import load
from sardonyx.report.summary import Summary, summary

_LICENCE_KEYS = ("license", "licence", "spdx", "license_id")
_AUTHOR_KEYS = ("author", "authors")
_EVIDENCE = "sardonyx."
_LONGEST = 4096
"""Longest text that is copied from the metadata of a model into a property."""


def sbom(model: str | os.PathLike[str]) -> str:
    """Return the bill of materials of a model file, as JSON of CycloneDX 1.6.

    Args:
        model: The model file, with its data files in the same folder. Of an encrypted model, digests are those of the
            encrypted files.

    Returns:
        The document, valid by the schema of CycloneDX 1.6: one component of the type ``machine-learning-model`` with a
        model card, and one component for each data file.

    Raises:
        ModelFileError: The model cannot be loaded.
        MissingDependencyError: `cyclonedx-python-lib` is not installed.
    """
    require("cyclonedx", "sbom", "a bill of materials")
    from cyclonedx.model.bom import Bom
    from cyclonedx.model.component import Component, ComponentType
    from cyclonedx.model.contact import OrganizationalContact
    from cyclonedx.output import make_outputter
    from cyclonedx.schema import OutputFormat, SchemaVersion

    source = Path(model)
    locations: dict[str, str] = {}

    def is_skipped(tensor: str, location: str) -> bool:
        locations.setdefault(location, tensor)
        return False

    loaded = load(source, skip_external=is_skipped)
    facts = summary(loaded)
    file = MappedFile(source)
    main = Component(
        name=loaded.graph.name or source.stem,
        type=ComponentType.MACHINE_LEARNING_MODEL,
        bom_ref="model",
        version=str(loaded.model_version) if loaded.model_version else None,
        description=(loaded.doc_string or "")[:_LONGEST] or None,
        authors=[OrganizationalContact(name=facts.metadata[k][:200]) for k in _AUTHOR_KEYS if facts.metadata.get(k)],
        hashes=[_hash(file)],
        licenses=_licences(facts.metadata),
        properties=_properties(facts, source.name, file.size),
    )
    bom = Bom(components=[main])
    bom.metadata.component = None
    folder = Folder(source)
    for number, (location, tensor) in enumerate(sorted(locations.items())):
        data = _opened(folder, location, tensor)
        part = Component(name=location, type=ComponentType.DATA, bom_ref=f"data-{number}", hashes=[_hash(data)])
        bom.components.add(part)
        bom.register_dependency(main, [part])
    text = make_outputter(bom, OutputFormat.JSON, SchemaVersion.V1_6).output_as_string()
    document = json.loads(text)
    for component in document["components"]:
        if component["bom-ref"] == "model":
            component["modelCard"] = _model_card(loaded, facts)
    return json.dumps(document, indent=2, ensure_ascii=False)


def _opened(folder: Folder, location: str, tensor: str) -> MappedFile:
    return MappedFile(folder.open(location, tensor).path)


def _hash(file: MappedFile) -> Any:
    from cyclonedx.model import HashAlgorithm, HashType

    digest = hashlib.sha256()
    for chunk in file.chunks(0, file.size):
        digest.update(chunk)
    return HashType(alg=HashAlgorithm.SHA_256, content=digest.hexdigest())


def _licences(metadata: Mapping[str, str]) -> list[Any]:
    """Return the licence that the metadata names: an SPDX identifier if it is one, else a name."""
    from cyclonedx.contrib.license.factories import LicenseFactory

    text = next((metadata[key].strip() for key in _LICENCE_KEYS if metadata.get(key, "").strip()), "")
    return [LicenseFactory().make_from_string(text[:200])] if text else []


def _properties(facts: Summary, name: str, size: int) -> list[Any]:
    from cyclonedx.model import Property

    values: dict[str, object] = {
        "file": name,
        "bytes": size,
        "ir_version": facts.ir_version,
        "opsets": ", ".join(f"{domain or 'ai.onnx'} {version}" for domain, version in sorted(facts.opsets.items())),
        "producer": facts.producer,
        "nodes": facts.nodes,
        "operators": ", ".join(f"{op} {count}" for op, count in sorted(facts.operators.items())),
        "functions": ", ".join(facts.functions),
        "parameters": facts.parameters,
        "weight_bytes": facts.weight_bytes,
        "weight_types": ", ".join(f"{kind} {count}" for kind, count in sorted(facts.types.items())),
        "multiply_adds": facts.macs,
    }
    properties = [Property(name=f"sardonyx:{key}", value=str(value)) for key, value in values.items() if value != ""]
    evidence = {key: text for key, text in facts.metadata.items() if key.startswith(_EVIDENCE)}
    for key, text in sorted(evidence.items()):
        shown = text if len(text) <= _LONGEST else f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
        properties.append(Property(name=f"sardonyx:evidence:{key.removeprefix(_EVIDENCE)}", value=shown))
    return properties


def _model_card(model: ir.Model, facts: Summary) -> dict[str, Any]:
    """Return the model card, which `cyclonedx-python-lib` has no class for."""

    def ports(values: Any) -> list[dict[str, str]]:
        return [{"format": f"{port.name}: {port.type}{_shape(port.shape)}"} for port in values]

    return {
        "modelParameters": {
            "modelArchitecture": ", ".join(sorted(facts.operators)) or "empty graph",
            "inputs": ports(facts.inputs),
            "outputs": ports(facts.outputs),
        },
        "properties": [{"name": "sardonyx:producer_version", "value": model.producer_version or ""}],
    }


def _shape(shape: tuple[int | str, ...] | None) -> str:
    return "" if shape is None else f"[{', '.join(map(str, shape))}]"
