"""Parsers of bytes from strangers, each with well-formed examples and a check of what is accepted.

A target accepts any bytes: it returns, or raises a :class:`SardonyxError`. Any other exception, and an
``AssertionError`` of its check, is a finding. Targets run inside the event loop of :attr:`Targets.machine`.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf import json_format, text_format

from sardonyx.errors import SardonyxError
from sardonyx.hub import download, sources
from sardonyx.hub.cache import Cache
from sardonyx.hub.lock import Lock, LockedModel
from sardonyx.privacy.answers import read_policies
from sardonyx.privacy.ledger import Ledger
from sardonyx.serve.client import read_result
from sardonyx.serve.grpc import frames
from sardonyx.serve.grpc.conversion import parsed_request
from sardonyx.serve.grpc.frames import frame, header_block, settings_frame
from sardonyx.serve.grpc.message_reading import read_message
from sardonyx.serve.http.infer_requests import parse_request
from sardonyx.serve.models.auxiliary_files import AuxiliaryFiles
from sardonyx.serve.models.layout import model_files
from sardonyx.serve.models.override import override_of
from sardonyx.serve.models.triton_config import read_config, read_json_config
from sardonyx.serve.operations.live_edits import safetensors_weights
from sardonyx.serve.protocol import json_codec, number_lists
from sardonyx.serve.protocol.datatypes import DATATYPES
from sardonyx.serve.protocol.messages import message_class
from sardonyx.serve.protocol.strings import parse_strings
from sardonyx.serve.security.tokens import SCOPES, read_tokens
from sardonyx.trust.attestation.messages import decoded, encoded
from sardonyx.trust.encryption.head import Access, Description, read_head, write_head
from sardonyx.trust.encryption.key_text import generate_key, parse_key
from sardonyx.trust.encryption.licence import Licence, check_licence, sign_licence
from sardonyx.trust.encryption.reader import open_encrypted
from sardonyx.trust.encryption.recipients import wrap
from sardonyx.trust.encryption.segments import decrypt_stream, encrypt_stream, plain_size
from sardonyx.trust.signing.policy import read_policy
from sardonyx.trust.signing.signatures import signed_files
from tests.fuzz.model_file_targets import model_file_targets
from tests.serve.drawn_requests import MODELS
from tests.serve.parser_inputs import Machine, grpc_seeds, http_seeds

DEFECTS = (b"HTTP/1.1 500", b"grpc-status\x0213", b"internal error")
WORDS = (
    b"null", b"true", b"{}", b"[]", b"[[]]", b'""', b"-1", b"0", b"1e999", b"Infinity", b"-Infinity", b"NaN", b"1.5",
    b"9" * 20, b"9" * 5000, b'"\\ud800"', b'"\\u0000"', b'"../x"', b'"/etc/passwd"', b'"' + b"a" * 300 + b'"',
    b"\xff\xfe", b"[" * 3000, b'{"a":' * 1500, b"2147483648", b"9223372036854775808", b"18446744073709551616",
    "é".encode(), b"\x00", b"\r\n", b"-0", b'"1"', b"[1,2]", b'{"a":1}', b"inf", b"0x10", b"\xef\xbb\xbf",
)  # fmt: skip
"""Words that parsers may read otherwise than their authors meant."""

_TOKENS = re.compile(rb'"(?:[^"\\]|\\.)*"|[\w.+-]+|[^\w\s]', re.DOTALL)
_BYTES = b'\0\xff\x7f\x80{}[]",:\r\n -09eN./\\'


class Draws:
    """Random numbers for many small draws."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.Generator(np.random.SFC64(seed))
        self._numbers: Iterator[int] = iter(())

    def below(self, limit: int) -> int:
        """Return a number from 0 to below a limit."""
        for number in self._numbers:
            return number % limit
        self._numbers = iter(self._rng.integers(0, 1 << 40, 16384).tolist())
        return next(self._numbers) % limit


@dataclass(frozen=True)
class Seed:
    """A well-formed input.

    Attributes:
        data: The bytes.
        spans: Begin and end of its words, numbers and marks.
    """

    data: bytes
    spans: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, data: bytes) -> Seed:
        """Return the seed of some bytes."""
        return cls(data, tuple(match.span() for match in _TOKENS.finditer(data)))


def damaged(draws: Draws, seed: Seed) -> bytes:
    """Return the bytes of a seed with a word replaced, or some bytes changed, removed, repeated or inserted."""
    below = draws.below
    data = seed.data
    if seed.spans and below(2):
        begin, end = seed.spans[below(len(seed.spans))]
        if below(3):
            word = WORDS[below(len(WORDS))]
        else:
            other = seed.spans[below(len(seed.spans))]
            word = data[other[0] : other[1]]
        data = data[:begin] + word + data[end:]
        if below(4):
            return data
    for _ in range((1, 1, 2, 4, 16)[below(5)]):
        size = len(data) + 1
        position = below(size)
        match below(6):
            case 0:
                byte = data[position : position + 1]
                data = data[:position] + bytes(one ^ (1 << below(8)) for one in byte) + data[position + 1 :]
            case 1:
                offset = below(len(_BYTES))
                data = data[:position] + _BYTES[offset : offset + 1] + data[position + 1 :]
            case 2:
                data = data[:position] + data[position + (1, 2, 9, 100)[below(4)] :]
            case 3:
                data = data[:position] + data[position : position + below(40)] + data[position:]
            case 4:
                data = data[:position] + WORDS[below(len(WORDS))] + data[position:]
            case _:
                data = data[:position] + data[below(size) :] if below(2) else data[:position]
    return data


@dataclass(frozen=True)
class Target:
    """A parser.

    Attributes:
        read: Reads bytes.
        seeds: Well-formed examples.
    """

    read: Callable[[bytes], object]
    seeds: tuple[Seed, ...]

    def accepts(self, data: bytes) -> bool:
        """Return True if the bytes are accepted; an exception that is no refusal is a finding."""
        try:
            self.read(data)
        except SardonyxError:
            return False
        return True


def _compact(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


class Targets:
    """All targets, over one service.

    Args:
        folder: A folder for files that parsers read.

    Attributes:
        machine: The service with its event loop.
        all: The targets by name.
    """

    def __init__(self, folder: Path) -> None:
        self.machine = Machine(list(MODELS), compile="off")
        self._folder = folder
        self._file = folder / "file"
        number_lists.load_list_reader()
        self.all: dict[str, Target] = {}
        for group in (self._requests, self._values, self._repository, self._hub, self._keys, self._encrypted):
            group()
        for name, (read, seeds) in model_file_targets(folder).items():
            self._add(name, read, *seeds)

    def _add(self, name: str, read: Callable[[bytes], object], *seeds: bytes) -> None:
        self.all[name] = Target(read, tuple(map(Seed.of, seeds)))

    def _from_file(self, read: Callable[[Path], object], path: Path | None = None) -> Callable[[bytes], object]:
        target = path or self._file

        def run(data: bytes) -> object:
            target.write_bytes(data)
            return read(target)

        return run

    # The server.

    def _requests(self) -> None:
        service, converse = self.machine.service, self._converse
        x = np.arange(4, dtype=np.float32)
        tensor: dict[str, Any] = {"name": "x", "datatype": "FP32", "shape": [1, 4]}
        named = {**tensor, "data": [0.5, 1, 2, 3]}
        options = {"sequence_id": 7, "sequence_start": True, "priority": 1, "timeout": 1000, "binary_data_output": True}
        outputs = [{"name": "y", "parameters": {"classification": 2, "binary_data": True}}]
        region = {**tensor, "parameters": {"shared_memory_region": "r", "shared_memory_byte_size": 16}}
        bodies: list[dict[str, Any]] = [
            {"id": "a", "inputs": [named], "outputs": outputs}, {"inputs": [named], "parameters": options},
            {"inputs": [region]}, {"inputs": [{**tensor, "shape": [2, 2], "data": [[1, 2], [3, 4]]}]},
            {"inputs": [{"name": "s", "datatype": "BYTES", "shape": [2], "data": ["a", "é\\n"]}]},
        ]  # fmt: skip
        self._add("json", lambda data: parse_request(service, "net", "", data, None), *map(_compact, bodies))
        head = _compact({"inputs": [{**tensor, "parameters": {"binary_data_size": 16}}]})
        words = b"".join(struct.pack("<I", len(word)) + word for word in (b"ab", b"", b"\xc3\xa9"))
        part = {"name": "s", "datatype": "BYTES", "shape": [3], "parameters": {"binary_data_size": len(words)}}
        text = _compact({"inputs": [part]})

        def binary(data: bytes) -> object:
            length = struct.unpack("<H", data[:2])[0] if len(data) > 1 else 0
            return parse_request(service, "net", "", data[2:], length)

        seeds = [struct.pack("<H", len(one)) + one + tail for one, tail in ((head, x.tobytes()), (text, words))]
        self._add("binary", binary, *seeds, b"\0\0" + x.tobytes())
        http = [seed for seed in http_seeds() if b"/edit" not in seed]
        zipped = gzip.compress(_compact(bodies[0]), mtime=0)
        http.append(b"POST /v2/models/net/infer HTTP/1.1\r\nHost: h\r\nContent-Encoding: gzip\r\nContent-Length: "
                    b"%d\r\n\r\n" % len(zipped) + zipped)  # fmt: skip
        self._add("http1", lambda data: converse("http", data), *http)
        self._add("http2", lambda data: converse("grpc", data), *grpc_seeds())
        self._add("hpack", self._header_block, *(seed[24:] for seed in grpc_seeds()[:1]), header_block(
            ((":method", "POST"), (":scheme", "http"), (":path", "/inference.GRPCInferenceService/ModelInfer"),
             ("te", "trailers"), ("grpc-timeout", "5S"), ("authorization", "Bearer x"),
             ("traceparent", "00-" + "1" * 32 + "-" + "2" * 16)),
        ))  # fmt: skip

        def message(data: bytes) -> object:
            return parsed_request(service, read_message("ModelInferRequest", data))

        from sardonyx.serve.protocol.messages import message_class

        call = message_class("ModelInferRequest")(model_name="net", model_version="1", id="a")
        call.inputs.add(name="x", datatype="FP32", shape=[1, 4])
        typed = message_class("ModelInferRequest")()
        typed.CopyFrom(call)
        call.raw_input_contents.append(x.tobytes())
        call.parameters["sequence_id"].int64_param = 3
        call.outputs.add(name="y").parameters["classification"].int64_param = 1
        typed.inputs[0].contents.fp32_contents.extend(x.tolist())
        typed.parameters["triton_enable_empty_final_response"].bool_param = True
        self._add("protobuf", message, call.SerializeToString(), typed.SerializeToString())
        part = {"name": "y", "datatype": "FP32", "shape": [1, 2], "parameters": {"binary_data_size": 8}}
        text = _compact({"model_version": "1", "parameters": {"sardonyx_revision": 0}, "outputs": [part]})
        plain = {"name": "y", "datatype": "FP32", "shape": [2], "data": [1, 2]}

        def answer(data: bytes) -> None:
            length = None if data.endswith(b"}") else str(max(len(data) - 8, 0))
            for array in read_result(data, length).outputs.values():
                assert array.nbytes <= 16 * len(data)

        self._add("client", answer, text + bytes(8), _compact({"outputs": [plain]}))

    def _converse(self, wire: str, data: bytes) -> None:
        """Feed bytes to a connection, without waiting for runs; no answer may be of a defect."""
        connection, transport = self.machine.connect(wire)
        cut = len(data) // 3
        for one in (data[:cut], data[cut:]):
            if not transport.is_closed:
                connection.data_received(one)
        connection.connection_lost(None)
        assert not any(defect in transport.sent for defect in DEFECTS), bytes(transport.sent)

    def _header_block(self, data: bytes) -> None:
        start = frames.PREFACE + settings_frame(())
        length = min(len(data), 16384)
        self._converse("grpc", start + frame(frames.HEADERS, frames.END_HEADERS, 1, data[:length]) + data[length:])

    def _values(self) -> None:
        self._add("strings", lambda data: parse_strings(data, 3, "s"), b"\1\0\0\0a\0\0\0\0\2\0\0\0\xc3\xa9")
        datatypes = list(DATATYPES.values())

        def tensor(data: bytes) -> object:
            datatype = datatypes[len(data) % len(datatypes)]
            array = json_codec.parse_data(data, datatype, [2], "x", False)
            assert array.shape == (2,)
            return array

        self._add("json-data", tensor, b"[1, 2.5]", b"[[1], [2]]", b"[true,false]", b'["a","\\u00e9"]', b"[-0,1e5]")
        self._add("numbers", self._numbers, b"[1,2.5,-3e-7]", b"[0.123456789012345678901,1e-45,3.4e38]", b"[ 7 ,-0]")
        self._add("safetensors", safetensors_weights, *map(_safetensors, (
            {"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}},
            {"w": {"dtype": "BF16", "shape": [2, 2], "data_offsets": [0, 8]}, "__metadata__": {"a": "b"}},
        )))  # fmt: skip

    @staticmethod
    def _numbers(data: bytes) -> None:
        """The machine code that reads lists of numbers gives the bits of the JSON parser."""
        if not data.startswith(b"["):
            data = b"[" + data
        parsed = number_lists.parse_float32(data)
        if parsed is None or parsed[1] != len(data):
            return
        with np.errstate(over="ignore"):
            expected = np.array([float(item) for item in json.loads(data, parse_int=float)]).astype(np.float32)
        assert expected.tobytes() == parsed[0].tobytes()

    # Files of a repository and of a server.

    def _repository(self) -> None:
        config = self._folder / "model" / "config.pbtxt"
        config.parent.mkdir()
        self._add(
            "config.pbtxt",
            self._from_file(lambda path: read_config(AuxiliaryFiles(path.parent.parent, path.parent), "model"), config),
            CONFIG,
            SMALL_CONFIG,
            ENSEMBLE,
        )
        texts = [json_format.MessageToJson(text_format.Parse(text.decode(), message_class("ModelConfig")()))
                 for text in (CONFIG, SMALL_CONFIG, ENSEMBLE)]  # fmt: skip
        self._add(
            "config.json",
            lambda data: read_json_config(
                data.decode(errors="replace"), "model", AuxiliaryFiles(self._folder, config.parent)
            ),
            *(text.encode() for text in texts),
        )
        self._add("load", _load, _compact({"config": "{}", "file:1/model.onnx": "aGk=", "file:labels.txt": ""}))
        settings = self._folder / "repository" / "model" / "model-settings.json"
        settings.parent.mkdir(parents=True)
        (settings.parent / "m.onnx").write_bytes(b"")

        def listed(path: Path) -> None:
            for version in model_files(path.parent.parent, "model").versions.values():
                assert version.resolve().is_relative_to(self._folder.resolve())

        self._add("model-settings", self._from_file(listed, settings), _compact({"parameters": {"uri": "./m.onnx"}}))

        def tokens(path: Path) -> None:
            assert read_tokens(path).is_required

        lines = "".join(f"{hashlib.sha256(scope.encode()).hexdigest()} {scope},read a\n" for scope in SCOPES)
        self._add("tokens", self._from_file(tokens), lines.encode())
        ledger = Ledger(self._folder / "ledger")
        noise = {"mechanism": "laplace", "epsilon": 0.1, "low": 0, "high": 1}
        policy = _compact({"net": {"budget": {"epsilon": 8, "delta": 1e-6}, "outputs": {"y": noise}}})
        self._add("privacy", self._from_file(lambda path: read_policies(path, ledger)), policy)
        self._add("signature-policy", self._from_file(read_policy), b'unsigned = "allow"\n[[verifier]]\n'
                  b'public_key = "a.pub"\n[[verifier]]\ncertificates = ["c.pem"]\n')  # fmt: skip

    # Hubs.

    def _hub(self) -> None:
        digest = hashlib.sha256(b"").hexdigest()
        locked = LockedModel("1" * 40, {"m.onnx": (digest, 5), "w/weights.bin": (digest, 1 << 33)})
        lock = Lock(self._file, {"hf:a/b/m.onnx": locked, "onnx:x": locked})
        lock.write()
        self._add("lock", self._from_file(Lock.read), self._file.read_bytes())
        layers = [
            {"digest": f"sha256:{digest}", "size": 5, "annotations": {"org.opencontainers.image.title": title}}
            for title in ("m.onnx", "w/weights.bin")
        ]
        self._add(
            "oci", self._resolving("oci:127.0.0.1:1/r/m:t", ("m.onnx", "w/weights.bin")), _compact({"layers": layers})
        )
        rows = [{"rfilename": "m.onnx", "size": 5, "blobId": "2" * 40},
                {"rfilename": "w.bin", "lfs": {"sha256": digest, "size": 7}}]  # fmt: skip
        self._add(
            "hf", self._resolving("hf:a/b/m.onnx", ("m.onnx", "w.bin")), _compact({"sha": "1" * 40, "siblings": rows})
        )

        cache = Cache(self._folder / "hub")
        note = cache.folder / "models" / "note.json"
        note.parent.mkdir(parents=True)
        files = {"m.onnx": [digest, 5], "w/weights.bin": [digest, 1 << 33]}
        row = _compact({"name": "hf:a", "revision": "1" * 40, "model": "m.onnx", "files": files})

        def read_notes(path: Path) -> None:
            for entry in cache.models():
                assert entry.path.is_relative_to(path.parent)

        self._add("hub-note", self._from_file(read_notes, note), row)

        def name(data: bytes) -> None:
            safe = sources.safe_name(data.decode("utf-8", "surrogateescape"))
            path = (self._folder / safe).resolve()
            assert path.is_relative_to(self._folder.resolve()) and path != self._folder.resolve()

        self._add(
            "file-name", name, b"a/b.onnx", b"../a", b"/etc/passwd", b"a/./b", b"c:/x", b"a\\..\\b", "é/ü".encode()
        )

    @staticmethod
    def _resolving(name: str, files: tuple[str, ...]) -> Callable[[bytes], object]:
        """Return a function that resolves a name whose source answers with some bytes."""

        modules: tuple[Any, ...] = (sources, download)
        own = download.read_bytes

        def run(data: bytes) -> None:
            for module in modules:
                module.read_bytes = lambda *_: (data, {})
            try:
                resolved = sources.resolve(name)
            finally:
                for module in modules:
                    module.read_bytes = own
            assert sources.safe_name(resolved.model) == resolved.model
            for file in files:
                remote = resolved.find(file)
                assert remote.url.startswith("http") and (remote.size is None or remote.size >= 0)

        return run

    # Trust.

    def _keys(self) -> None:
        keys = [
            generate_key("x25519"),
            generate_key("x25519").public(),
            generate_key("aes256"),
            generate_key("ed25519"),
        ]
        known = {key.text() for key in keys}

        def key(data: bytes) -> None:
            assert parse_key(data.decode("utf-8", "replace")).text() in known

        self._add("key", key, *(text.encode() for text in known), f"# a\n{keys[0].text()}\n".encode())
        fields = ("nonce", "share", "quote", "wrapped")
        self._add("attestation", lambda data: decoded(data, fields), encoded(dict.fromkeys(fields, b"abc")))
        statement = {"predicate": {"resources": [{"name": "m.onnx"}, {"name": "w/weights.bin"}]}}
        payload = base64.b64encode(_compact(statement)).decode()
        root = self._folder.resolve()

        def bundle(path: Path) -> None:
            for file in signed_files(self._folder / "model", path):
                assert file.is_relative_to(root)

        def wrapped(path: Path) -> Callable[[bytes], object]:
            read = self._from_file(bundle, path)
            return lambda data: read(_compact({"dsseEnvelope": {"payload": base64.b64encode(data).decode()}}))

        self._add("signature", self._from_file(bundle), _compact({"dsseEnvelope": {"payload": payload, "a": [1]}}))
        self._add("signed-statement", wrapped(self._file), _compact(statement))
        issuer = generate_key("ed25519")
        claims = sign_licence(Licence(not_after=4_000_000_000, machines=(), cores=4096), "0" * 64, issuer)
        public = issuer.public().text()

        def forged(data: bytes) -> None:
            text = data.decode("utf-8", "surrogateescape")
            check_licence({**claims, "claims": text}, "0" * 64, public, "file")
            assert text == claims["claims"]

        self._add("licence", forged, claims["claims"].encode())

    def _encrypted(self) -> None:
        import sardonyx.trust.encryption as encryption

        secret, data_key, plain = generate_key("x25519"), bytes(range(32)), b"plain text" * 20
        description = Description("model", "0" * 32, "m.onnx", len(plain), hashlib.sha256(plain).hexdigest())
        access = Access([wrap(data_key, secret.public()), wrap(data_key, generate_key("aes256"))])
        head, context = write_head(data_key, description, access)
        stream = b"".join(encrypt_stream(data_key, context, [plain], len(plain)))

        def opened(data: bytes) -> None:
            with encryption.add_key(secret):
                assert bytes(open_encrypted(memoryview(data), "file", "model").contents) == plain
            assert data == head + stream

        def decrypted(data: bytes) -> None:
            target = memoryview(bytearray(plain_size(len(data))))
            decrypt_stream(data_key, context, memoryview(data), target)
            assert data == stream and bytes(target) == plain

        self._add("encrypted-head", lambda data: read_head(memoryview(data + stream)), head)
        self._add("encrypted-file", opened, head + stream)
        self._add("encrypted-stream", decrypted, stream)


def _load(data: bytes) -> None:
    """Check that the files of a load request stay in their folder."""
    parameters = json_codec.parse_json(data, 8)
    override = override_of(parameters) if isinstance(parameters, dict) else None
    if override is not None and override.files:
        with override.folder("model") as folder:
            written = [path for path in Path(folder).rglob("*") if path.is_file()]
            assert len(written) == len(override.files) and len(list(Path(folder).iterdir())) == 1


def _safetensors(head: object) -> bytes:
    text = _compact(head)
    return struct.pack("<Q", len(text)) + text + bytes(8)


ENSEMBLE = b"""
name: "model" platform: "ensemble" max_batch_size: 4 input { name: "x" data_type: TYPE_FP32 dims: [ 4 ] }
output { name: "y" data_type: TYPE_FP32 dims: [ -1 ] } ensemble_scheduling { max_inflight_requests: 3
    step { model_name: "a" model_version: -1 input_map { key: "i" value: "x" } output_map { key: "o" value: "m" } }
    step { model_name: "b" model_version: 2 input_map { key: "i" value: "m" } output_map { key: "o" value: "y" } } }
"""

SMALL_CONFIG = b'name: "model" max_batch_size: 4 input { name: "x" data_type: TYPE_FP32 dims: [ 4 ] }'
CONFIG = b"""
name: "model" backend: "onnxruntime" max_batch_size: 8 version_policy { latest { num_versions: 2 } }
input [ { name: "x" data_type: TYPE_FP32 dims: [ 4 ] allow_ragged_batch: true } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 2 ] label_filename: "labels.txt" } ]
batch_input [ { kind: BATCH_ELEMENT_COUNT target_name: "n" data_type: TYPE_INT32 source_input: "x" } ]
dynamic_batching { preferred_batch_size: [ 4, 8 ] max_queue_delay_microseconds: 100
  priority_levels: 3 default_priority_level: 2
  default_queue_policy { timeout_action: REJECT default_timeout_microseconds: 1000 max_queue_size: 9 } }
model_warmup [ { name: "w" batch_size: 1
  inputs { key: "x" value { data_type: TYPE_FP32 dims: [ 4 ] zero_data: true } } } ]
parameters { key: "intra_op_thread_count" value: { string_value: "1" } }
"""
