"""Blocks: one call at a time has one, calls one after the other have the same, and what lies in it is never read."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator

import numpy as np
import onnx
import pytest
from tests.compiler.executor.unused_memory import SEIZE, poison

from sardonyx import Session
from sardonyx.compiler.executor import arena
from sardonyx.compiler.executor.arena import Block, Blocks
from sardonyx.compiler.target.alignment import ALIGNMENT

X = np.random.default_rng(0).standard_normal((16, 24)).astype(np.float32)


@pytest.fixture
def blocks(monkeypatch: pytest.MonkeyPatch) -> Iterator[Blocks]:
    """All arenas are blocks, in a pool of their own."""
    pool = Blocks()
    monkeypatch.setattr(arena, "SHARED", 0)
    monkeypatch.setattr(arena, "BLOCKS", pool)
    monkeypatch.setattr("sardonyx.runtime.compiled.memory_usage.BLOCKS", pool)
    return pool


def net(seed: int, columns: int, rows: int | str = "N") -> onnx.ModelProto:
    """Products, a normalization and a softmax, with values of several sizes in the arena."""
    model = onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["": 18]>
        net (float[{rows}, 24] x) => (float[{rows}, 6] y) {{
            a = MatMul(x, v)
            b = Relu(a)
            c = Softmax(b)
            d = Transpose<perm = [1, 0]>(c)
            e = Softmax(d)
            f = Transpose<perm = [1, 0]>(e)
            y = MatMul(f, w)
        }}"""
    )
    rng = np.random.default_rng(seed)
    for name, shape in (("v", (24, columns)), ("w", (columns, 6))):
        array = rng.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return model


def test_a_block_is_one_call_s_at_a_time() -> None:
    block = Block()
    block.resize(1000)
    assert block.capacity == 1000
    assert block.memory_address % ALIGNMENT == 0
    assert not SEIZE(block.address)
    block.release()
    assert SEIZE(block.address)
    assert not SEIZE(block.address)


def test_the_smallest_that_is_enough_is_given_else_the_largest_grows() -> None:
    pool = Blocks()
    blocks = [pool.claim(size, size, SEIZE) for size in (300, 100, 200)]
    assert len(set(blocks)) == 3
    for block in blocks:
        block.release()
    assert pool.claim(150, 150, SEIZE) is blocks[2]
    assert pool.claim(150, 150, SEIZE) is blocks[0]
    assert pool.claim(150, 400, SEIZE) is blocks[1]
    assert blocks[1].capacity == 400
    assert pool.claim(10, 10, SEIZE) not in blocks


def test_memory_that_is_not_there_leaves_the_block_to_others() -> None:
    pool = Blocks()
    with pytest.raises(MemoryError):
        pool.claim(1 << 60, 1 << 60, SEIZE)
    block = pool.claim(64, 64, SEIZE)
    assert block.capacity == 64


def test_idle_sessions_hold_what_the_largest_needs(blocks: Blocks) -> None:
    sessions = [Session(net(seed, columns), compile="wait") for seed, columns in ((0, 8), (1, 640), (2, 64))]
    for _ in range(4):
        for session in sessions:
            session.run(None, {"x": X})
    usages = [session.memory() for session in sessions]
    (block,) = blocks.live()
    assert all(usage.arena == usage.shared == block.capacity and usage.arenas == 1 for usage in usages)
    assert block.capacity == max(plan.bytes for usage in usages for plan in usage.plans)


def test_what_lies_in_a_block_is_never_read(blocks: Blocks) -> None:
    sessions = [Session(net(seed, columns), compile="wait") for seed, columns in ((0, 8), (1, 640), (2, 65))]
    sizes = (16, 5, 16, 16, 1, 2)
    expected = [[session.run(None, {"x": X[:rows]})[0] for rows in sizes] for session in sessions]
    bindings = [session.bind({"x": X}) for session in sessions]
    for number, rows in enumerate(sizes):
        for session, listed, binding in zip(sessions, expected, bindings, strict=True):
            poison(blocks)
            np.testing.assert_array_equal(session.run(None, {"x": X[:rows]})[0], listed[number])
            poison(blocks)
            binding()
            np.testing.assert_array_equal(binding.outputs["y"], listed[0])


def test_a_session_that_shrinks_takes_nothing_from_the_others(blocks: Blocks) -> None:
    first, second = (Session(net(seed, 64), compile="wait") for seed in (0, 1))
    expected = [[session.run(None, {"x": X})[0] for _ in range(3)][-1] for session in (first, second)]
    held = blocks.claim(1, 1, SEIZE)
    first.shrink()
    assert held.capacity, "who has it keeps it"
    held.release()
    first.run(None, {"x": X})
    first.shrink()
    gc.collect()
    assert first.memory().arena == 0
    assert not any(block.capacity for block in blocks.live())
    for _ in range(3):
        np.testing.assert_array_equal(second.run(None, {"x": X})[0], expected[1])
        np.testing.assert_array_equal(first.run(None, {"x": X})[0], expected[0])


def test_blocks_go_with_what_used_them(blocks: Blocks) -> None:
    session = Session(net(0, 64), compile="wait")
    for _ in range(3):
        session.run(None, {"x": X})
    assert len(blocks.live()) == 1
    del session
    gc.collect()
    assert not blocks.live()


def test_calls_at_the_same_time_have_blocks_of_their_own(blocks: Blocks) -> None:
    sessions = [Session(net(seed, columns), compile="wait", threads=1) for seed, columns in ((0, 8), (1, 640))]
    expected = [session.run(None, {"x": X})[0] for session in sessions]
    wrong: list[int] = []

    def call(number: int) -> None:
        for i in range(200):
            which = (number + i) % 2
            if not np.array_equal(sessions[which].run(None, {"x": X})[0], expected[which]):
                wrong.append(number)

    threads = [threading.Thread(target=call, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert 1 <= len(blocks.live()) <= 4
    assert all(SEIZE(block.address) for block in blocks.live()), "all were left"


def test_small_arenas_stay_with_their_sessions() -> None:
    session = Session(net(0, 8), compile="wait")
    session.run(None, {"x": X})
    assert session.memory().shared == 0
    assert session.memory().arena


def test_an_arena_that_grows_becomes_a_block(monkeypatch: pytest.MonkeyPatch, blocks: Blocks) -> None:
    monkeypatch.setattr(arena, "SHARED", 2048)
    session = Session(net(0, 32), compile="wait")
    expected = [session.run(None, {"x": X[:rows]})[0] for rows in (2, 16)]
    for rows, array in zip((2, 16, 2, 2, 16, 2), (expected[i] for i in (0, 1, 0, 0, 1, 0)), strict=True):
        np.testing.assert_array_equal(session.run(None, {"x": X[:rows]})[0], array)
    assert session.memory().shared
