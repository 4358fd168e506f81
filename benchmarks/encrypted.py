"""Measure encrypted models beside plain ones, and refuse every changed file.

    SARDONYX_SUITES=… python benchmarks/encrypted.py [--model models/resnet50] [--json out.json]

Section `rate`: decryption of the model's bytes into memory, in GB/s, with the first touch of the memory apart. Section
`cold`: new processes that load the model, compile it and answer once, plain and encrypted in turn, without a cache.
Section `start`: the same where both find their program in the store. Section `load`: the model is loaded and every
page of its weights is read. Section `flips`: single changed bytes of an encrypted file, each of which must be refused.
The exit status is 1 if a target is missed: encrypted cold load at most 1.1 × plain, at least 4 GB/s, no changed file
accepted.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import rich.console
import rich.table

import suites
from sardonyx.errors import SardonyxError
from sardonyx.trust.encryption import add_key, encrypt, generate_key, write_key
from sardonyx.trust.encryption.head import read_head
from sardonyx.trust.encryption.plain_memory import allocate
from sardonyx.trust.encryption.reader import open_encrypted
from sardonyx.trust.encryption.segments import decrypt_stream, plain_size

START = """
import sys, time
begin = time.perf_counter()
import numpy as np
from sardonyx import Session
imported = time.perf_counter()
session = Session(sys.argv[1], compile="wait")
feeds = {i.name: np.zeros([s if isinstance(s, int) else 1 for s in i.shape], np.float32) for i in session.get_inputs()}
session.run(None, feeds)
print(time.perf_counter() - imported, time.process_time())
"""

LOAD = """
import sys, time
import numpy as np
import sardonyx
begin = time.perf_counter()
model = sardonyx.load(sys.argv[1])
total = sum(float(np.asarray(v.const_value.numpy()).ravel()[::1024].sum()) for v in model.graph.initializers.values()
            if v.const_value is not None and v.const_value.dtype.numpy().kind == "f")
print(time.perf_counter() - begin, time.process_time())
"""


def process(program: str, model: Path, environment: dict[str, str]) -> tuple[float, float]:
    """Run a program on a model in a new process; return seconds and processor seconds."""
    done = subprocess.run(
        [sys.executable, "-c", program, str(model)], env=environment, check=True, capture_output=True, text=True
    )
    seconds, processor = map(float, done.stdout.split())
    return seconds, processor


def paired(program: str, plain: Path, sealed: Path, environment: dict[str, str], rounds: int) -> dict[str, float]:
    """Alternate processes; return medians and the median ratio of adjacent ones."""
    for path in (plain, sealed):
        process(program, path, environment)
    rows = []
    for number in range(rounds):
        order = (plain, sealed) if number % 2 else (sealed, plain)
        rows.append({path: process(program, path, environment) for path in order})
    return {
        "plain_ms": 1e3 * statistics.median(row[plain][0] for row in rows),
        "encrypted_ms": 1e3 * statistics.median(row[sealed][0] for row in rows),
        "ratio": statistics.median(row[sealed][0] / row[plain][0] for row in rows),
        "processor_ratio": statistics.median(row[sealed][1] / row[plain][1] for row in rows),
    }


def rates(contents: bytes, data_key: bytes, rounds: int) -> dict[str, float]:
    """Return GB/s of decryption into fresh memory and into memory that was touched before."""
    head = read_head(memoryview(contents))
    stream = memoryview(contents)[head.size :]
    size = plain_size(len(stream))
    fresh, again = [], []
    for _ in range(rounds):
        begin = time.perf_counter()
        target = allocate(size)
        decrypt_stream(data_key, head.context, stream, target)
        fresh.append(size / (time.perf_counter() - begin) / 1e9)
        begin = time.perf_counter()
        decrypt_stream(data_key, head.context, stream, target)
        again.append(size / (time.perf_counter() - begin) / 1e9)
    return {"fresh": max(fresh), "touched": max(again), "fresh_median": statistics.median(fresh)}


def accepted_flips(path: Path, count: int) -> list[int]:
    """Return the positions at which a changed byte was accepted: all bytes of the head, and random ones."""
    contents = bytearray(path.read_bytes())
    head = read_head(memoryview(contents)).size
    draw = random.Random(0)
    positions = [*range(head + 40), *(draw.randrange(head, len(contents)) for _ in range(count - head - 40))]
    accepted = []
    for position in positions:
        bit = 1 << draw.randrange(8)
        contents[position] ^= bit
        try:
            open_encrypted(memoryview(contents), "flipped", "model")
            accepted.append(position)
        except SardonyxError:
            pass
        contents[position] ^= bit
    return accepted


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="models/resnet50")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--flips", type=int, default=10_000)
    parser.add_argument("--sections", nargs="+", default=["rate", "cold", "start", "load", "flips"])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="sardonyx-encrypted-") as name:
        folder = Path(name)
        key = generate_key()
        write_key(key, folder / "owner.key")
        plain = suites.cases(folder, [options.model])[0].path
        sealed = folder / "model.onnxe"
        encrypt(plain, sealed, to=[key.public()])
        environment = {
            **os.environ,
            "SARDONYX_KEYS": str(folder / "owner.key"),
            "SARDONYX_CACHE": str(folder / "cache"),
            "SARDONYX_STATE": str(folder / "state"),
        }
        os.environ["SARDONYX_STATE"] = "off"
        results["bytes"] = plain.stat().st_size
        with add_key(key):
            contents = sealed.read_bytes()
            opened = open_encrypted(memoryview(contents), "model", "model")
            if "rate" in options.sections:
                results["rate"] = rates(contents, opened.data_key, max(7, options.rounds))
            for section, program in (("cold", START), ("start", START), ("load", LOAD)):
                if section in options.sections:
                    cache = {"SARDONYX_CACHE": "off"} if section == "cold" else {}
                    results[section] = paired(program, plain, sealed, {**environment, **cache}, options.rounds)
            if "flips" in options.sections:
                small = folder / "small.onnxe"
                encrypt(suites.cases(folder, ["models/mlp"])[0].path, small, to=[key.public()])
                results["accepted_flips"] = accepted_flips(small, options.flips)
    table = rich.table.Table("figure", "value")
    for section, value in results.items():
        for figure, number in value.items() if isinstance(value, dict) else [("", value)]:
            table.add_row(f"{section} {figure}", f"{number:.3g}" if isinstance(number, float) else str(number))
    rich.console.Console().print(table)
    if options.json:
        options.json.write_text(json.dumps(results, indent=2))
    missed = [
        "cold" in results and results["cold"]["ratio"] > 1.1,
        "rate" in results and results["rate"]["touched"] < 4,
        bool(results.get("accepted_flips")),
    ]
    sys.exit(any(missed))


if __name__ == "__main__":
    main()
