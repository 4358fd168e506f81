"""Fuzz the parsers of the server with damaged requests, in one process without sockets.

Run from the root of the repository: ``python tools/fuzz_requests.py --inputs 10000000 --seed 0``. A seventh of the
inputs each goes to:

- ``http``, ``grpc``: well-formed requests of all kinds, damaged, in pieces, to a new connection;
- ``http-drawn``, ``grpc-drawn``: requests by chance, damaged, after a request that leaves a template for them;
- ``numbers``: damaged lists of numbers, whose text ends at a page without access, beside the JSON parser;
- ``messages``: damaged messages of gRPC, behind intact frames;
- ``edits``: edits by chance, most of them wrong in some way, with undo of the others.

A finding is an answer of 500 or INTERNAL, a foreign exception, a difference between parsers, or a wrong answer to the
intact request that follows each 1,000 inputs. An input without an end is printed with the stack after 60 s
(`--patience`). Prints each finding, counts and the resident memory once a minute, and at the end; the exit status is 1
if there was a finding.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import faulthandler
import json
import random
import struct
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.fuzz.guarded_memory import PAGE, allow, reserve
from tests.serve.drawn_edits import drawn_edit
from tests.serve.drawn_requests import MODELS, grpc_call, grpc_message, http_request
from tests.serve.models import session
from tests.serve.parser_inputs import SEEDS, Machine, damaged, pieces

from sardonyx.serve.grpc import frames
from sardonyx.serve.grpc.frames import frame, header_block, settings_frame
from sardonyx.serve.operations.free_memory import resident_bytes
from sardonyx.serve.operations.live_edits import edit, undo
from sardonyx.serve.protocol import number_lists
from sardonyx.serve.protocol.refusals import refusal

DEFECTS = (b"HTTP/1.1 500", b"grpc-status\x0213", b"internal error")
EACH = 1000
"""Inputs of one kind in a row, after which an intact request must be answered."""
MOST_TEXT = 8 * PAGE
PATH = b"POST /v2/models/net/infer HTTP/1.1\r\nHost: h\r\n"


class Fuzzer:
    """The kinds of inputs, over one service."""

    def __init__(self) -> None:
        self.machine = Machine(list(MODELS), compile="wait")
        self.machine.loop.set_exception_handler(self._uncaught)
        self.errors: list[str] = []
        self._seeds = {wire: make() for wire, make in SEEDS.items()}
        self._edited = session("net")
        self._text = reserve(MOST_TEXT // PAGE + 1)
        allow(self._text, MOST_TEXT // PAGE)
        self._parse_numbers = number_lists.native_parser()
        number_lists.load_list_reader()
        self.kinds: dict[str, Callable[[random.Random], Awaitable[str | None]]] = {
            "http": self._whole("http"), "grpc": self._whole("grpc"), "http-drawn": self._drawn_http,
            "grpc-drawn": self._drawn_grpc, "numbers": self._numbers, "messages": self._message,
            "edits": self._edit,
        }  # fmt: skip

    def _uncaught(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.errors.append(repr(context))

    async def _converse(self, wire: str, parts: list[bytes]) -> str | None:
        sent, _ = await self.machine.converse(wire, parts)
        defect = next((defect for defect in DEFECTS if defect in sent), None)
        return f"{defect!r} to {b''.join(parts)!r}" if defect else None

    def _whole(self, wire: str) -> Callable[[random.Random], Awaitable[str | None]]:
        async def run(rng: random.Random) -> str | None:
            return await self._converse(wire, pieces(rng, damaged(rng, rng.choice(self._seeds[wire]))))

        return run

    async def _edit(self, rng: random.Random) -> str | None:
        changes = json.loads(json.dumps(drawn_edit(rng)))
        try:
            edit(self._edited, changes)
        except Exception as error:
            is_defect = refusal(error)[1]
            return f"{error!r} of {changes}" if is_defect else None
        undo(self._edited)
        return None

    async def _drawn_http(self, rng: random.Random) -> str | None:
        request = http_request(rng)
        return await self._converse("http", [request, damaged(rng, request)])

    async def _drawn_grpc(self, rng: random.Random) -> str | None:
        first, second = grpc_call(rng, 1), grpc_call(rng, 3)
        return await self._converse("grpc", [frames.PREFACE + settings_frame(()), first, damaged(rng, second)])

    async def _message(self, rng: random.Random) -> str | None:
        fields = ((":method", "POST"), (":scheme", "http"), (":path", "/inference.GRPCInferenceService/" + rng.choice(
            ("ModelInfer", "ModelStreamInfer", "ModelMetadata", "RepositoryIndex", "ModelStatistics", "TraceSetting",
             "RepositoryModelLoad", "SystemSharedMemoryRegister", "LogSettings"))),
            (":authority", "h"), ("content-type", "application/grpc"))  # fmt: skip
        data = damaged(rng, grpc_message(rng))
        call = frame(frames.HEADERS, frames.END_HEADERS, 1, header_block(fields))
        call += frame(frames.DATA, frames.END_STREAM, 1, struct.pack(">BI", 0, len(data)) + data)
        return await self._converse("grpc", [frames.PREFACE + settings_frame(()), call])

    async def _numbers(self, rng: random.Random) -> str | None:
        numbers = [rng.choice((rng.uniform(-2, 2), rng.randrange(-(10**20), 10**20), rng.uniform(-1, 1) * 1e38,
                               rng.randrange(-9, 10), rng.uniform(-1, 1) * 1e-44))
                   for _ in range(rng.randrange(1, 24))]  # fmt: skip
        text = json.dumps(numbers, separators=rng.choice(((",", ":"), (", ", ": "), (" ,\n", ":")))).encode()
        if rng.random() < 0.8:
            text = damaged(rng, text)
        if not text.startswith(b"["):
            text = b"[" + text
        self._edge(text)
        parsed = number_lists.parse_float32(text)
        if parsed is None or parsed[1] != len(text):
            return None
        try:
            expected = np.array([float(item) for item in json.loads(text, parse_int=float)]).astype(np.float32)
        except (ValueError, TypeError) as error:
            return f"{text!r} is read, JSON refuses it: {error}"
        return None if expected.tobytes() == parsed[0].tobytes() else f"{text!r} is read as {parsed[0].tolist()}"

    def _edge(self, text: bytes) -> None:
        """Read a text whose zero byte is the last byte before a page without access."""
        address = self._text + MOST_TEXT - len(text) - 1
        ctypes.memmove(address, text, len(text) + 1)
        array = np.empty(len(text) // 2 + 1, np.float32)
        state = (ctypes.c_int64 * 2)(1, 0)
        self._parse_numbers(ctypes.cast(address, ctypes.c_char_p), len(text), array.ctypes.data, len(array), state)

    async def intact(self) -> str | None:
        """Send an intact request over each wire; return a finding if the answer is not right."""
        body = b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1,4],"data":[1,1,1,1]}]}'
        sent, _ = await self.machine.converse("http", [PATH + b"Content-Length: %d\r\n\r\n" % len(body) + body])
        right = b'"data":[16.0,20.0]' in sent.replace(b" ", b"")
        sent, _ = await self.machine.converse("grpc", [self._seeds["grpc"][0]])
        if not right or np.array([16, 20], np.float32).tobytes() not in sent:
            return "an intact request is answered wrongly"
        return None


def main() -> int:
    """Run the fuzzer; return 1 if there was a finding."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=100_000, help="number of inputs")
    parser.add_argument(
        "--patience", type=float, default=60.0, help="seconds of an input without an end; more at a low priority"
    )
    parser.add_argument("--seed", type=int, default=0, help="first seed")
    parser.add_argument("--kind", action="append", help="only these kinds of inputs")
    parser.add_argument("--shown", type=int, default=20, help="most findings that are printed")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", RuntimeWarning)  # Damaged numbers overflow.
    counts: Counter[str] = Counter()
    findings = 0
    started = reported = time.monotonic()

    def summary() -> str:
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in counts.items())
        seconds = time.monotonic() - started
        return (f"{counts.total():,} inputs in {seconds:.0f} s ({time.process_time():.0f} s of processor time), "
                f"{findings} findings, {resident_bytes() / 1e6:.0f} MB: {kinds}")  # fmt: skip

    fuzzer = Fuzzer()
    kinds = arguments.kind or list(fuzzer.kinds)

    def report(finding: str) -> None:
        nonlocal findings
        findings += 1
        if findings <= arguments.shown:
            print(finding, flush=True)

    async def block(kind: str, first: int, number: int) -> None:
        for seed in range(first, first + number):
            try:
                finding = await fuzzer.kinds[kind](random.Random(seed))
            except Exception:
                finding = traceback.format_exc()
            if finding:
                report(f"{kind}, seed {seed}: {finding}")
        if finding := await fuzzer.intact():
            report(f"{kind}, after seed {first + number}: {finding}")

    seed = arguments.seed
    while counts.total() < arguments.inputs:
        for kind in kinds:
            number = min(EACH, arguments.inputs - counts.total())
            faulthandler.dump_traceback_later(arguments.patience + number * 0.05, exit=True)
            fuzzer.machine.loop.run_until_complete(block(kind, seed, number))
            counts[kind] += number
            for error in fuzzer.errors:
                report(f"{kind}, seeds from {seed}: {error}")
            fuzzer.errors.clear()
        seed += EACH
        if time.monotonic() - reported > 60:
            reported = time.monotonic()
            print(summary(), flush=True)
    faulthandler.cancel_dump_traceback_later()
    fuzzer.machine.close()
    print(summary())
    return int(findings > 0)


if __name__ == "__main__":
    sys.exit(main())
