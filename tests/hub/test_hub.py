"""Models of hubs: obtained over local servers with their protocols, pinned, resumed; lies are refused."""

from __future__ import annotations

import contextlib
import errno
import gzip
import hashlib
import http.server
import io
import json
import tarfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from sardonyx import Session
from sardonyx.compat import onnx_hub
from sardonyx.errors import DownloadError, ModelFileError, OptionError
from sardonyx.hub import get, search, sources, stored
from sardonyx.hub.cache import Cache
from sardonyx.hub.download import Digest, download, read_json
from sardonyx.hub.lock import Lock
from tests.hub.conftest import Hub, model_files

FEED = {"x": np.ones((1, 64), np.float32)}
HF = "hf:org/net/net.onnx"


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.mark.parametrize("external", [False, True])
@pytest.mark.parametrize("large", [False, True], ids=["git digest", "lfs digest"])
def test_a_model_of_hugging_face_is_obtained_once(external: bool, large: bool, hub: Hub) -> None:
    files = model_files(external)
    hub.repository(files, large=large)
    obtained = get(HF)
    assert {name: sum for name, (sum, _) in obtained.files.items()} == {n: sha256(c) for n, c in files.items()}
    assert Session(obtained.path).run(None, FEED)[0].shape == (1, 256)
    count = len(hub.requests)
    assert get(HF).path == obtained.path
    assert len(hub.requests) == count + 1, "only the revision is asked for again"
    assert [entry.name for entry in stored()] == [HF]


def test_offline_uses_the_models_that_are_here(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.repository(model_files())
    path = get(HF).path
    monkeypatch.setenv("SARDONYX_OFFLINE", "1")
    assert get(HF).path == path
    with pytest.raises(DownloadError, match="forbids requests"):
        get("hf:org/net/other.onnx")
    with pytest.raises(DownloadError, match="forbids requests"):
        search("onnx", "resnet")


def test_the_lock_file_pins_revision_and_digests(hub: Hub, tmp_path: Path) -> None:
    lock = tmp_path / "sardonyx.lock"
    hub.repository(model_files())
    first = get(HF, lock=lock)
    changed = model_files()
    changed["net.onnx"] += b"\x12\x01x"
    hub.repository(changed)
    assert get(HF, lock=lock).files == first.files
    assert get(HF, lock=lock, folder=tmp_path / "other").files == first.files
    assert get(HF).files != first.files
    data = json.loads(lock.read_text())
    data["models"][HF]["files"]["net.onnx"][0] = "0" * 64
    lock.write_text(json.dumps(data))
    with pytest.raises(DownloadError, match=r"locked digest|lock file"):
        get(HF, lock=lock, folder=tmp_path / "third")
    lock.write_text("[]")
    with pytest.raises(DownloadError, match="lock file is malformed"):
        get(HF, lock=lock)


def test_an_interrupted_download_resumes(hub: Hub) -> None:
    files = model_files()
    hub.repository(files)
    (path,) = [path for path in hub.files if path.endswith("net.onnx")]
    hub.cut[path] = 20_000
    with pytest.raises(DownloadError, match="connection"):
        get(HF)
    obtained = get(HF)
    assert obtained.path.read_bytes() == files["net.onnx"]
    assert [request[1] for request in hub.requests if request[0] == path] == [None, "bytes=20000-"]


def test_a_part_of_another_file_is_thrown_away(hub: Hub) -> None:
    files = model_files()
    hub.repository(files)
    (path,) = [path for path in hub.files if path.endswith("net.onnx")]
    good = hub.files[path]
    hub.files[path], hub.cut[path] = b"x" * len(good), 20_000
    with pytest.raises(DownloadError, match="connection"):
        get(HF)
    hub.files[path] = good
    with pytest.raises(DownloadError, match="digest"):
        get(HF)
    assert get(HF).path.read_bytes() == good


def test_an_address_needs_a_digest(hub: Hub) -> None:
    files = model_files(external=True)
    for name, content in files.items():
        hub.files[f"/models/{name}"] = content
    url = f"{hub.url}/models/net.onnx"
    with pytest.raises(DownloadError, match="states no digest"):
        get(url)
    with pytest.raises(DownloadError, match=r"no digest of 'w\.bin'"):
        get(f"{url}#sha256={sha256(files['net.onnx'])}")
    get(f"{url}#sha256={sha256(files['net.onnx'])}&w.bin={sha256(files['w.bin'])}")
    get(url, unverified=True)
    with pytest.raises(DownloadError, match="expected the sha256 digest"):
        get(f"{url}#sha256={'0' * 64}")
    with pytest.raises(DownloadError, match="expected a sha256 digest"):
        get(f"{url}#sha256=zz")


def test_a_registry_delivers_a_model(hub: Hub) -> None:
    files = model_files(external=True)
    layers = []
    for name, content in files.items():
        hub.files[f"/v2/team/net/blobs/sha256:{sha256(content)}"] = content
        layers.append(
            {
                "digest": f"sha256:{sha256(content)}",
                "size": len(content),
                "annotations": {"org.opencontainers.image.title": name},
            }
        )
    manifest = json.dumps({"schemaVersion": 2, "layers": layers}).encode()
    digest = f"sha256:{sha256(manifest)}"
    for reference in ("v1", digest):
        hub.files[f"/v2/team/net/manifests/{reference}"] = manifest
    registry = hub.url.removeprefix("http://")
    obtained = get(f"oci:{registry}/team/net:v1")
    assert obtained.revision == digest
    assert Session(get(f"oci:{registry}/team/net@{digest}").path).run(None, FEED)[0].shape == (1, 256)
    hub.files[f"/v2/team/net/manifests/{digest}"] = manifest + b" "
    with pytest.raises(DownloadError, match="expected the manifest"):
        get(f"oci:{registry}/team/net@{digest}", folder=obtained.path.parent / "again")

    def challenge(answer: http.server.BaseHTTPRequestHandler) -> None:
        if answer.headers.get("Authorization") == "Bearer secret":
            answer.send_response(200)
            answer.end_headers()
            answer.wfile.write(manifest)
        else:
            answer.send_response(401)
            answer.send_header("WWW-Authenticate", f'Bearer realm="{hub.url}/token",service="s",scope="pull"')
            answer.end_headers()

    hub.hostile["/v2/team/net/manifests/v2"] = challenge
    hub.files["/token?service=s&scope=pull"] = b'{"token": "secret"}'
    assert get(f"oci:{registry}/team/net:v2").revision == digest


def zoo(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """Offer the old model zoo with one model and its test data."""
    content = model_files()["net.onnx"]
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name in ("net/model.onnx", "net/test_data_set_0/input_0.pb"):
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    data = packed.getvalue()
    rows = [
        {
            "model": "Net", "model_path": f"validated/net-{opset}.onnx", "onnx_version": "1.9", "opset_version": opset,
            "metadata": {
                "model_sha": sha256(content), "model_bytes": len(content), "tags": ["Vision", "net"], "io_ports": {},
                "model_with_data_path": "validated/net.tar.gz", "model_with_data_sha": sha256(data),
                "model_with_data_bytes": len(data),
            },
        }
        for opset in (7, 12)
    ]  # fmt: skip
    manifest = json.dumps(rows).encode()
    base = f"/onnx/models/{sources.ONNX_COMMIT}"
    hub.files[f"{base}/ONNX_HUB_MANIFEST.json"] = manifest
    for opset in (7, 12):
        hub.files[f"{base}/validated/net-{opset}.onnx"] = content
    hub.files[f"{base}/validated/net.tar.gz"] = data
    monkeypatch.setattr(sources, "ONNX_MANIFEST_SHA256", sha256(manifest))
    return content


def test_the_old_zoo_and_the_old_functions_of_onnx(hub: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    zoo(hub, monkeypatch)
    assert get("onnx:net").path.name == "net-12.onnx"
    assert get("onnx:Net:7").path.name == "net-7.onnx"
    assert [entry.name for entry in search("onnx", "VISION")] == ["onnx:Net:7", "onnx:Net:12"]
    with pytest.raises(DownloadError, match="no such model"):
        get("onnx:other")
    onnx_hub.set_dir(str(tmp_path / "moved"))
    assert onnx_hub.get_dir() == str(tmp_path / "moved")
    assert {info.opset for info in onnx_hub.list_models(tags=["vision"])} == {7, 12}
    assert onnx_hub.get_model_info("net").opset == 12
    assert onnx_hub.load("net", opset=7).graph.name == "net"
    folder = onnx_hub.download_model_with_test_data("net")
    assert folder is not None and (Path(folder) / "test_data_set_0" / "input_0.pb").is_file()
    with pytest.raises(OptionError, match="expected one of onnx/models"):
        onnx_hub.list_models("someone/models")


def test_another_manifest_of_the_zoo_is_refused(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    zoo(hub, monkeypatch)
    monkeypatch.setattr(sources, "ONNX_MANIFEST_SHA256", "0" * 64)
    with pytest.raises(DownloadError, match="expected the manifest"):
        get("onnx:net")


def test_a_hub_is_searched(hub: Hub) -> None:
    hub.files["/api/models?search=res%20net&filter=onnx&limit=20"] = json.dumps(
        [{"id": "org/net", "tags": ["onnx"]}, {"no": "id"}]
    ).encode()
    assert [entry.name for entry in search("hf", "res net")] == ["hf:org/net"]
    with pytest.raises(OptionError, match="cannot be searched"):
        search("oci", "x")


def test_the_quota_is_a_limit(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.repository(model_files())
    with pytest.raises(DownloadError, match="may be written"):
        get(HF, quota=1000)
    monkeypatch.setenv("SARDONYX_HUB_QUOTA", "1000")
    with pytest.raises(DownloadError, match="may be written"):
        get(HF)
    monkeypatch.setenv("SARDONYX_HUB_QUOTA", "much")
    with pytest.raises(DownloadError, match="number of bytes"):
        get(HF)


def test_a_token_is_not_sent_to_another_host(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    files = model_files()
    hub.repository(files)
    other = Hub()
    monkeypatch.setenv("HF_TOKEN", "secret")
    (path,) = [path for path in hub.files if path.endswith("net.onnx")]
    other.files["/blob"] = files["net.onnx"]
    hub.hostile[path] = redirect(f"{other.url}/blob")
    get(HF)
    assert all(request[2] == "Bearer secret" for request in hub.requests)
    assert other.requests == [("/blob", None, None)]
    other.server.shutdown()


NOWHERE = f"http://192.0.2.1/x#sha256={'0' * 64}"


def redirect(target: str) -> Any:
    def answer(handler: http.server.BaseHTTPRequestHandler) -> None:
        handler.send_response(302)
        handler.send_header("Location", target)
        handler.end_headers()

    return answer


def endless(handler: http.server.BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.end_headers()
    try:
        for _ in range(4096):
            handler.wfile.write(bytes(1 << 16))
    except OSError:
        pass


def compressed(handler: http.server.BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.send_header("Content-Encoding", "gzip")
    handler.end_headers()
    handler.wfile.write(gzip.compress(bytes(1 << 20)))


HOSTILE = {
    "redirect to a file": (redirect("file:///etc/passwd"), "expected an https address"),
    "redirect to another protocol": (redirect("ftp://127.0.0.1/x"), "expected an https address"),
    "redirect to http elsewhere": (redirect("http://192.0.2.1/x"), "http is for this machine"),
    "redirect with a login": (redirect("https://user:pass@example.org/"), "expected an https address"),
    "redirect to itself": (redirect("/loop"), "redirects"),
    "redirect to nothing": (redirect(""), "redirects"),
    "endless body": (endless, "sends more than|exceeds"),
    "compressed body": (compressed, "the encoding 'gzip'"),
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("target", ["file", "interface"])
def test_hostile_answers_are_refused(name: str, target: str, hub: Hub, tmp_path: Path) -> None:
    answer, message = HOSTILE[name]
    hub.repository(model_files())
    hub.hostile["/loop"] = redirect("/loop")
    paths = [path for path in hub.files if path.endswith("net.onnx" if target == "file" else "main?blobs=true")]
    for path in paths:
        hub.hostile[path] = answer
    with pytest.raises(DownloadError, match=message):
        get(HF)
    assert sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()) < 1 << 20


@pytest.mark.parametrize("status", [401, 403, 404, 429, 500, 503])
def test_a_status_of_an_error_is_reported(status: int, hub: Hub) -> None:
    hub.hostile["/api/models/org/net/revision/main?blobs=true"] = lambda handler: handler.send_error(status)
    with pytest.raises(DownloadError, match=f"answers {status}"):
        get(HF)


@pytest.mark.parametrize(
    "answer",
    [
        b"", b"text", b"[]", b"{}", b'{"sha": 1, "siblings": []}', b'{"sha": "main", "siblings": []}', b"[" * 100_000,
        b'{"sha": "' + b"a" * 40 + b'", "siblings": [1, {"rfilename": "net.onnx", "size": -1, "blobId": "x"}]}',
        b'{"sha": "' + b"a" * 40 + b'", "siblings": [{"rfilename": "net.onnx", "size": "9", "lfs": {"sha256": "no"}}]}',
        b'{"sha": "' + b"a" * 40 + b'", "siblings": [{"rfilename": ["net.onnx"]}, {"rfilename": null}]}',
    ],
)  # fmt: skip
def test_malformed_answers_are_refused(answer: bytes, hub: Hub) -> None:
    hub.files["/api/models/org/net/revision/main?blobs=true"] = answer
    with pytest.raises(DownloadError):
        get(HF)


@pytest.mark.parametrize(
    "name", ["../x.onnx", "/etc/x.onnx", "a/../../x.onnx", "a\\b.onnx", "C:/x.onnx", "x\0.onnx", "a" * 300, ""]
)
def test_names_that_leave_the_folder_are_refused(name: str, hub: Hub) -> None:
    hub.repository({name or "empty": model_files()["net.onnx"]})
    with pytest.raises((DownloadError, OptionError)):
        get(f"hf:org/net/{name}")


def test_a_data_file_that_leaves_the_folder_is_not_fetched(hub: Hub, tmp_path: Path) -> None:
    files = model_files(external=True)
    hostile = files["net.onnx"].replace(b"w.bin", b"../wb")
    hub.repository({"net.onnx": hostile, "../wb": files["w.bin"]})
    with pytest.raises(DownloadError, match="not inside of its folder"):
        get(HF)
    assert not list(tmp_path.rglob("wb"))


@pytest.mark.parametrize("name", ["net.sdx", "net.so", "net.pkl"])
def test_files_with_code_are_refused(name: str, hub: Hub) -> None:
    hub.repository({name: b"code"})
    with pytest.raises(DownloadError, match="holds code"):
        get(f"hf:org/net/{name}")


def test_a_file_that_is_not_a_model_is_refused(hub: Hub) -> None:
    hub.repository({"net.onnx": b"text"})
    with pytest.raises(ModelFileError):
        get(HF)


@pytest.mark.parametrize("annotations", [["org.opencontainers.image.title"], "org.opencontainers.image.title", 1, None])
def test_malformed_layers_are_refused(annotations: object, hub: Hub) -> None:
    layer = {"digest": "sha256:" + "0" * 64, "size": 1, "annotations": annotations}
    hub.files["/v2/net/manifests/latest"] = json.dumps({"layers": [layer]}).encode()
    with pytest.raises(DownloadError, match="expected one model, got 0"):
        get(f"oci:{hub.url.removeprefix('http://')}/net")


def test_a_complete_part_of_unknown_size_is_adopted(hub: Hub, tmp_path: Path) -> None:
    content = model_files()["net.onnx"]
    hub.files["/net.onnx"] = content
    part = tmp_path / "a.part"
    part.write_bytes(content)
    digest = Digest("sha256", hashlib.sha256(content).hexdigest())
    assert download(f"{hub.url}/net.onnx", part, digest, None, 1 << 20) == (digest.value, len(content))
    assert [request[1] for request in hub.requests] == [f"bytes={len(content)}-"], "and not transferred again"


def test_a_longer_part_of_unknown_size_is_transferred_again(hub: Hub, tmp_path: Path) -> None:
    content = model_files()["net.onnx"]
    hub.files["/net.onnx"] = content
    part = tmp_path / "a.part"
    part.write_bytes(content + b"x")
    digest = Digest("sha256", hashlib.sha256(content).hexdigest())
    assert download(f"{hub.url}/net.onnx", part, digest, None, 1 << 20) == (digest.value, len(content))
    assert [request[1] for request in hub.requests] == [f"bytes={len(content) + 1}-", None]


def test_a_cut_download_of_unknown_size_resumes(hub: Hub, tmp_path: Path) -> None:
    content = model_files()["net.onnx"]
    hub.files["/net.onnx"], hub.cut["/net.onnx"] = content, 5000
    digest = Digest("sha256", hashlib.sha256(content).hexdigest())
    with pytest.raises(DownloadError, match=r"ended .* bytes early"):
        download(f"{hub.url}/net.onnx", tmp_path / "a.part", digest, None, 1 << 20)
    download(f"{hub.url}/net.onnx", tmp_path / "a.part", digest, None, 1 << 20)
    assert [request[1] for request in hub.requests] == [None, "bytes=5000-"]


def test_a_server_that_sends_byte_by_byte_is_left(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def dripping(handler: http.server.BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", "100000")
        handler.end_headers()
        with contextlib.suppress(OSError):
            for _ in range(200):
                handler.wfile.write(b"x")
                time.sleep(0.02)

    monkeypatch.setattr("sardonyx.hub.download.PATIENCE", 0.1)
    hub.hostile["/slow"] = dripping
    with pytest.raises(DownloadError, match="bytes in"):
        download(f"{hub.url}/slow", tmp_path / "a.part", None, None, 1 << 20)


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def raw(begin: bytes, drop: bytes = b"", end: bytes = b"") -> Any:
    """Return a handler that sends bytes as they are, and a drop up to 100 times between them."""

    def answer(handler: http.server.BaseHTTPRequestHandler) -> None:
        with contextlib.suppress(OSError):
            handler.wfile.write(begin)
            for _ in range(100 if drop else 0):
                handler.wfile.write(drop)
                time.sleep(0.01)
            handler.wfile.write(end)

    return answer


DRIPPING = {
    "header": (b"HTTP/1.1 200 OK\r\n", b"X", b": 1\r\nContent-Length: 1\r\n\r\nx"),
    "headers": (b"HTTP/1.1 200 OK\r\n", b"X: 1\r\n", b"Content-Length: 1\r\n\r\nx"),
    "interim answers": (b"", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx"),
    "size of a chunk": (CHUNKED + b"1;", b"X", b"\r\nx\r\n0\r\n\r\n"),
    "trailer": (CHUNKED + b"1\r\nx\r\n0\r\n", b"X: 1\r\n", b"\r\n"),
}


@pytest.mark.parametrize("part", DRIPPING)
def test_a_server_that_drips_the_framing_is_left(
    part: str, hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sardonyx.hub.download.PATIENCE", 0.1)
    hub.hostile["/slow"] = raw(*DRIPPING[part])
    with pytest.raises(DownloadError, match=r"bytes in 0\.1 s"):
        download(f"{hub.url}/slow", tmp_path / "a.part", None, None, 1 << 20)


@pytest.mark.parametrize("body", [b"5\r\nhello\r\nff\r\nabc", b"5\r\nhello", b"5\r\nhello\r\n", b"-5\r\nhello"])
def test_a_cut_body_in_chunks_is_refused(body: bytes, hub: Hub, tmp_path: Path) -> None:
    hub.hostile["/cut"] = raw(CHUNKED + body)
    with pytest.raises(DownloadError, match="ended early"):
        download(f"{hub.url}/cut", tmp_path / "a.part", None, None, 1 << 20)
    hub.hostile["/cut"] = raw(CHUNKED + b"5\r\nhello\r\n0\r\n\r\n")
    assert download(f"{hub.url}/cut", tmp_path / "a.part", None, None, 1 << 20) == (sha256(b"hello"), 5)


def test_a_cut_answer_of_an_interface_is_refused(hub: Hub) -> None:
    hub.hostile["/cut"] = raw(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}")
    with pytest.raises(DownloadError, match="ended 7 bytes early"):
        read_json(f"{hub.url}/cut")


def renamed_data(content: bytes, location: str) -> bytes:
    """Return a model whose weight is in another data file."""
    model = onnx.load_model_from_string(content)
    for entry in model.graph.initializer[0].external_data:
        if entry.key == "location":
            entry.value = location
    renamed: bytes = model.SerializeToString()
    return renamed


@pytest.mark.parametrize("name", ["model.json", "net.json", "a/b.bin"])
def test_data_files_have_any_name(name: str, hub: Hub) -> None:
    files = model_files(external=True)
    model = renamed_data(files["net.onnx"], name)
    hub.repository({"net.onnx": model, name: files["w.bin"]})
    obtained = get(HF)
    assert (obtained.path.parent / name).read_bytes() == files["w.bin"]
    assert Session(obtained.path).run(None, {"x": np.ones((1, 64), np.float32)})[0].shape == (1, 256)
    hub.requests.clear()
    (obtained.path.parent / name).unlink()
    assert (get(HF).path.parent / name).is_file(), "a missing link is made again"
    assert not [request for request in hub.requests if "resolve" in request[0]], "without a download"


def test_a_file_below_the_name_of_another_is_refused(hub: Hub) -> None:
    files = model_files(external=True)
    model = renamed_data(files["net.onnx"], "net.onnx/w.bin")
    hub.repository({"net.onnx": model, "net.onnx/w.bin": files["w.bin"]})
    with pytest.raises(DownloadError, match="cannot be written"):
        get(HF)


@pytest.mark.parametrize("location", ["https://[::1", "https://[x]/"])
def test_malformed_addresses_are_refused(location: str, hub: Hub) -> None:
    with pytest.raises(DownloadError):
        get(f"{location}#sha256={'0' * 64}")
    hub.hostile["/x.onnx"] = redirect(location)
    with pytest.raises(DownloadError):
        get(f"{hub.url}/x.onnx#sha256={'0' * 64}")


def test_two_processes_lock_models_in_one_file(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.repository(model_files())
    lock, other = tmp_path / "sardonyx.lock", tmp_path / "other.onnx"
    other.write_bytes(model_files()["net.onnx"])

    def meanwhile(handler: http.server.BaseHTTPRequestHandler) -> None:
        get(f"file:{other}", lock=lock)
        hub.hostile.clear()
        handler.send_error(503)

    path = "/api/models/org/net/revision/main?blobs=true"
    hub.hostile[path] = meanwhile
    with pytest.raises(DownloadError, match="503"):
        get(HF, lock=lock)
    get(HF, lock=lock)
    assert len(json.loads(lock.read_bytes())["models"]) == 2


def in_threads(count: int, work: Callable[[int], object]) -> None:
    """Call a function in threads that begin at once; an error of one is raised."""
    begin = threading.Barrier(count)

    def one(number: int) -> None:
        begin.wait()
        work(number)

    with ThreadPoolExecutor(count) as pool:
        list(pool.map(one, range(count)))


def test_threads_lock_models_in_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = Lock.write

    def slow(self: Lock) -> None:
        time.sleep(0.01)
        write(self)

    monkeypatch.setattr(Lock, "write", slow)
    lock, content = tmp_path / "sardonyx.lock", model_files()["net.onnx"]
    names = [tmp_path / f"{number}.onnx" for number in range(6)]
    for name in names:
        name.write_bytes(content)
    in_threads(len(names), lambda number: get(f"file:{names[number]}", lock=lock))
    assert len(json.loads(lock.read_bytes())["models"]) == len(names)


def linked_cache(folder: Path) -> tuple[Cache, dict[str, tuple[str, int]]]:
    """Return a cache with one blob, as the only file of a model."""
    cache = Cache(folder)
    cache.blobs.mkdir(parents=True)
    cache.blob(sha256(b"hello")).write_bytes(b"hello")
    return cache, {"net.onnx": (sha256(b"hello"), 5)}


def test_threads_link_one_model(tmp_path: Path) -> None:
    cache, files = linked_cache(tmp_path)

    def links(_: int) -> None:
        for _ in range(10):
            path = cache.link_files("net", "1", "net.onnx", files).path
            assert path.read_bytes() == b"hello", "a link is there at any time"

    in_threads(4, links)
    folder = cache.link_files("net", "1", "net.onnx", files).path.parent
    assert [entry.name for entry in folder.iterdir()] == ["net.onnx"] and (folder / "net.onnx").is_symlink()


@pytest.mark.parametrize(("number", "is_copied"), [(errno.EPERM, True), (errno.ENOSPC, False)])
def test_a_file_system_without_links_has_copies(
    number: int, is_copied: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, files = linked_cache(tmp_path)

    def refused(self: Path, target: Path) -> None:
        raise OSError(number, "no link")

    monkeypatch.setattr(Path, "symlink_to", refused)
    if is_copied:
        assert cache.link_files("net", "1", "net.onnx", files).path.read_bytes() == b"hello"
        assert cache.find("net", "1") is not None
        return
    with pytest.raises(DownloadError, match="cannot be written: no link"):
        cache.link_files("net", "1", "net.onnx", files)


@pytest.mark.parametrize("name", ["ftp://x/y", "hf:net.onnx", "s3:bucket", "oci:x", NOWHERE])
def test_other_names_are_refused(name: str, hub: Hub) -> None:
    with pytest.raises((OptionError, DownloadError)):
        get(name)


def test_a_local_file_is_locked(hub: Hub, tmp_path: Path) -> None:
    for name, content in model_files(external=True).items():
        (tmp_path / name).write_bytes(content)
    lock = tmp_path / "lock"
    obtained = get(f"file:{tmp_path / 'net.onnx'}", lock=lock)
    assert set(obtained.files) == {"net.onnx", "w.bin"}
    (tmp_path / "w.bin").write_bytes(bytes(64 * 256 * 4))
    with pytest.raises(DownloadError, match="not those of the lock file"):
        get(f"file:{tmp_path / 'net.onnx'}", lock=lock)
