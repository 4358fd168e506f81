"""Triton's client examples against this server: each script of a folder of examples, with its arguments.

SARDONYX_TRITON_EXAMPLES names the folder ``src/python/examples`` of Triton's client repository; nothing of it is stored
here. The models of the examples are made here, in the text form of onnx. SARDONYX_TRITON_MODELS names the folder
``docs/examples/model_repository`` of Triton's server repository: its ONNX models are served instead, and the sequence
examples run too.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import onnx

EXAMPLES: dict[str, str] = {
    "simple_http_infer_client.py": "http", "simple_grpc_infer_client.py": "grpc",
    "simple_http_async_infer_client.py": "http", "simple_grpc_async_infer_client.py": "grpc",
    "simple_http_aio_infer_client.py": "http", "simple_grpc_aio_infer_client.py": "grpc",
    "simple_http_string_infer_client.py": "http", "simple_grpc_string_infer_client.py": "grpc",
    "simple_http_health_metadata.py": "http", "simple_grpc_health_metadata.py": "grpc",
    "simple_http_shm_client.py": "http", "simple_grpc_shm_client.py": "grpc",
    "simple_http_shm_string_client.py": "http", "simple_grpc_shm_string_client.py": "grpc",
    "simple_http_model_control.py": "http", "simple_grpc_model_control.py": "grpc",
    "simple_http_sequence_sync_infer_client.py": "http", "simple_grpc_sequence_sync_infer_client.py": "grpc",
    "simple_grpc_sequence_stream_infer_client.py": "grpc", "simple_grpc_aio_sequence_stream_infer_client.py": "grpc",
    "simple_grpc_keepalive_client.py": "grpc", "simple_grpc_custom_args_client.py": "grpc",
    "simple_grpc_custom_repeat.py": "",
    "grpc_explicit_int_content_client.py": "grpc", "grpc_explicit_int8_content_client.py": "grpc",
    "grpc_explicit_byte_content_client.py": "grpc",
}  # fmt: skip
"""The wire of each script; empty for a script that needs a model of another backend."""

DIFFERENT = {
    "simple_http_health_metadata.py": "expects the name 'triton' of the server",
    "simple_grpc_health_metadata.py": "expects the name 'triton' of the server",
    "simple_http_model_control.py": "expects a repository of eight models with their backends",
    "simple_grpc_model_control.py": "expects a repository of eight models with their backends",
}
"""Scripts that fail by a difference that is meant."""

_HEAD = '<ir_version: 8, opset_import: ["": 13]> '

_ADD_SUB = "net ({t}[N, 16] INPUT0, {t}[N, 16] INPUT1) => ({t}[N, 16] OUTPUT0, {t}[N, 16] OUTPUT1)"

_STRINGS = (
    "net (string[N, 16] INPUT0, string[N, 16] INPUT1) => (string[N, 16] OUTPUT0, string[N, 16] OUTPUT1) {{ {body} }}"
)

MODELS = {
    "simple": _ADD_SUB.format(t="int32") + " { OUTPUT0 = Add(INPUT0, INPUT1) OUTPUT1 = Sub(INPUT0, INPUT1) }",
    "simple_int8": _ADD_SUB.format(t="int8") + " { a = Cast<to=6>(INPUT0) b = Cast<to=6>(INPUT1) c = Add(a, b)"
    " d = Sub(a, b) OUTPUT0 = Cast<to=3>(c) OUTPUT1 = Cast<to=3>(d) }",
    "simple_string": _STRINGS.format(
        body="a = Cast<to=6>(INPUT0) b = Cast<to=6>(INPUT1) c = Add(a, b) d = Sub(a, b) OUTPUT0 = Cast<to=8>(c)"
        " OUTPUT1 = Cast<to=8>(d)"
    ),
    "simple_identity": "net (string[N, M] INPUT0) => (string[N, M] OUTPUT0) { OUTPUT0 = Identity(INPUT0) }",
}  # fmt: skip
"""The models without state, by name."""


def write_repository(root: Path, triton: Path | None = None) -> None:
    """Write the models of the examples in Triton's layout; those of Triton's own repository as they are."""
    own = [file.parent.parent for file in triton.glob("*/1/model.onnx")] if triton is not None else []
    for source in own:
        shutil.copytree(source, root / source.name)
    for name, text in MODELS.items():
        if (root / name).exists():
            continue
        folder = root / name / "1"
        folder.mkdir(parents=True)
        onnx.save(onnx.parser.parse_model(_HEAD + text), folder / "model.onnx")
        (root / name / "config.pbtxt").write_text(f'name: "{name}" platform: "onnxruntime_onnx" max_batch_size: 8\n')
