"""A local server that speaks the protocols of the hubs, and lies on request."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

Handler = Callable[[BaseHTTPRequestHandler], None]


class Hub:
    """A server on the loopback.

    Attributes:
        files: Contents by path; ranges are answered.
        hostile: Functions that answer a path themselves.
        requests: The paths with their ``Range`` and ``Authorization`` headers, in order.
        cut: Bytes after which the connection of a path ends, once.
    """

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.hostile: dict[str, Handler] = {}
        self.requests: list[tuple[str, str | None, str | None]] = []
        self.cut: dict[str, int] = {}
        hub = self

        class Answerer(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                hub.requests.append((self.path, self.headers.get("Range"), self.headers.get("Authorization")))
                if (answer := hub.hostile.get(self.path)) is not None:
                    answer(self)
                    return
                content = hub.files.get(self.path)
                if content is None:
                    self.send_error(404)
                    return
                begin = 0
                if match := re.match(r"bytes=(\d+)-", self.headers.get("Range") or ""):
                    begin = int(match[1])
                    if begin >= len(content):
                        self.send_error(416)
                        return
                    self.send_response(206)
                    self.send_header("Content-Range", f"bytes {begin}-{len(content) - 1}/{len(content)}")
                else:
                    self.send_response(200)
                self.send_header("Content-Length", str(len(content) - begin))
                self.end_headers()
                end = hub.cut.pop(self.path, len(content))
                self.wfile.write(content[begin:end])

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Answerer)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def repository(self, files: dict[str, bytes], *, large: bool = True) -> None:
        """Offer files as the repository ``org/net`` of Hugging Face's interface."""
        commit = hashlib.sha1(b"".join(files.values())).hexdigest()
        siblings = []
        for name, content in files.items():
            blob = hashlib.sha1(f"blob {len(content)}\0".encode() + content).hexdigest()
            row: dict[str, Any] = {"rfilename": name, "blobId": blob, "size": len(content)}
            if large:
                row["lfs"] = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}
            siblings.append(row)
            self.files[f"/org/net/resolve/{commit}/{name}"] = content
        answer = json.dumps({"sha": commit, "siblings": siblings}).encode()
        for revision in ("main", commit):
            self.files[f"/api/models/org/net/revision/{revision}?blobs=true"] = answer


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    server = Hub()
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    monkeypatch.setenv("SARDONYX_ONNX_HUB", server.url)
    monkeypatch.setenv("SARDONYX_HUB", str(tmp_path / "hub"))
    for name in ("HF_TOKEN", "SARDONYX_OFFLINE", "SARDONYX_HUB_QUOTA", "http_proxy", "https_proxy"):
        monkeypatch.delenv(name, raising=False)
    yield server
    server.server.shutdown()
    server.server.server_close()


def model_files(external: bool = False) -> dict[str, bytes]:
    """Return a model as files: one of 64 KiB, or a graph with a data file."""
    import tempfile

    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 256])],
        [numpy_helper.from_array(np.arange(64 * 256, dtype=np.float32).reshape(64, 256), "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "net.onnx"
        location = "w.bin" if external else None
        onnx.save(model, path, save_as_external_data=external, location=location, size_threshold=0)
        return {entry.name: entry.read_bytes() for entry in Path(folder).iterdir()}
