"""The encrypted stream: the law decrypt(encrypt(x)) = x, and the refusal of every other stream."""

from __future__ import annotations

import io
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sardonyx.errors import EncryptionError
from sardonyx.trust.encryption.segments import (
    HEAD_BYTES,
    PLAIN_BYTES,
    SEGMENT_BYTES,
    decrypt_stream,
    encrypt_stream,
    encrypted_size,
    plain_size,
)

KEY, CONTEXT = bytes(range(32)), b"context"
BOUNDARIES = [0, PLAIN_BYTES - HEAD_BYTES, 2 * PLAIN_BYTES - HEAD_BYTES, 3 * PLAIN_BYTES - HEAD_BYTES]


def encrypted(plain: bytes, context: bytes = CONTEXT, pieces: int = 1) -> bytes:
    step = max(1, -(-len(plain) // pieces))
    chunks = [plain[start : start + step] for start in range(0, len(plain), step)]
    return b"".join(encrypt_stream(KEY, context, chunks, len(plain)))


def decrypted(stream: bytes, key: bytes = KEY, context: bytes = CONTEXT) -> bytes:
    target = memoryview(bytearray(plain_size(len(stream))))
    decrypt_stream(key, context, memoryview(stream), target)
    return bytes(target)


def segments(stream: bytes) -> list[bytes]:
    return [stream[start : start + SEGMENT_BYTES] for start in range(0, len(stream), SEGMENT_BYTES)]


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(BOUNDARIES), st.integers(-2, 2), st.integers(1, 9))
def test_a_stream_is_decrypted_to_its_plain_bytes(boundary: int, offset: int, pieces: int) -> None:
    plain = os.urandom(max(0, boundary + offset))
    stream = encrypted(plain, pieces=pieces)
    assert len(stream) == encrypted_size(len(plain))
    assert plain_size(len(stream)) == len(plain)
    assert decrypted(stream) == plain


def test_a_stream_of_many_segments_is_decrypted_by_all_processors() -> None:
    plain = os.urandom(20 * PLAIN_BYTES + 5)
    assert decrypted(encrypted(plain)) == plain


def test_two_streams_of_one_text_differ() -> None:
    assert encrypted(b"text") != encrypted(b"text")


@pytest.mark.parametrize("position", [*range(HEAD_BYTES + 60)])
def test_a_changed_byte_is_refused(position: int) -> None:
    stream = bytearray(encrypted(bytes(44)))
    stream[position] ^= 1
    with pytest.raises(EncryptionError):
        decrypted(bytes(stream))


def test_another_key_or_context_is_refused() -> None:
    stream = encrypted(b"text")
    for arguments in ({"key": bytes(32)}, {"context": b"other"}):
        with pytest.raises(EncryptionError, match="authentication tags"):
            decrypted(stream, **arguments)


def test_cut_extended_reordered_repeated_and_spliced_streams_are_refused() -> None:
    plain = os.urandom(4 * PLAIN_BYTES)
    first, second = encrypted(plain), encrypted(plain)
    a, b = segments(first), segments(second)
    hostile = {
        "cut at a segment": a[:-1],
        "cut inside of a segment": [*a[:-1], a[-1][:-1]],
        "cut to one segment": a[:1],
        "extended": [*a, a[-1]],
        "one byte more": [*a, b"\0"],
        "reordered": [a[0], a[2], a[1], *a[3:]],
        "repeated": [a[0], a[1], a[1], *a[3:]],
        "spliced": [a[0], b[1], *a[2:]],
        "head of another": [b[0][:HEAD_BYTES] + a[0][HEAD_BYTES:], *a[1:]],
    }
    assert decrypted(b"".join(a)) == plain
    for name, parts in hostile.items():
        with pytest.raises(EncryptionError):
            decrypted(b"".join(parts))
            pytest.fail(name)


@pytest.mark.parametrize("size", [0, 1, HEAD_BYTES, HEAD_BYTES + 15, SEGMENT_BYTES + 1, SEGMENT_BYTES + 15])
def test_sizes_that_no_stream_has_are_refused(size: int) -> None:
    with pytest.raises(EncryptionError):
        plain_size(size)


def test_a_refused_stream_leaves_no_plain_bytes_in_the_buffer() -> None:
    stream = bytearray(encrypted(b"\x77" * (2 * PLAIN_BYTES)))
    stream[-1] ^= 1
    target = bytearray(plain_size(len(stream)))
    with pytest.raises(EncryptionError):
        decrypt_stream(KEY, CONTEXT, memoryview(stream), memoryview(target))
    assert not any(target)


@pytest.mark.parametrize("length", [3, 5])
def test_a_source_of_another_length_is_refused(length: int) -> None:
    with pytest.raises(EncryptionError, match="expected 4 bytes"):
        list(encrypt_stream(KEY, CONTEXT, [bytes(length)], 4))


def test_tink_reads_our_streams_and_we_read_those_of_tink() -> None:
    tink = pytest.importorskip("tink", reason="tink is not installed")
    from tink import secret_key_access, streaming_aead
    from tink.proto import aes_gcm_hkdf_streaming_pb2, common_pb2, tink_pb2

    streaming_aead.register()
    parameters = aes_gcm_hkdf_streaming_pb2.AesGcmHkdfStreamingParams(
        ciphertext_segment_size=SEGMENT_BYTES, derived_key_size=32, hkdf_hash_type=common_pb2.SHA256
    )
    key = aes_gcm_hkdf_streaming_pb2.AesGcmHkdfStreamingKey(params=parameters, key_value=KEY)
    keyset = tink_pb2.Keyset(primary_key_id=1)
    entry = keyset.key.add(status=tink_pb2.ENABLED, key_id=1, output_prefix_type=tink_pb2.RAW)
    entry.key_data.type_url = "type.googleapis.com/google.crypto.tink.AesGcmHkdfStreamingKey"
    entry.key_data.value = key.SerializeToString()
    entry.key_data.key_material_type = tink_pb2.KeyData.SYMMETRIC
    handle = tink.proto_keyset_format.parse(keyset.SerializeToString(), secret_key_access.TOKEN)
    primitive = handle.primitive(streaming_aead.StreamingAead)
    for size in (0, 1, 1000, *(boundary + 1 for boundary in BOUNDARIES)):
        plain = os.urandom(size)
        with primitive.new_decrypting_stream(io.BytesIO(encrypted(plain)), CONTEXT) as theirs:
            assert theirs.read() == plain
        sink = io.BytesIO()
        sink.close = lambda: None  # type: ignore[method-assign]  # Closing would drop the contents.
        with primitive.new_encrypting_stream(sink, CONTEXT) as writer:
            writer.write(plain)
        assert decrypted(sink.getvalue()) == plain
