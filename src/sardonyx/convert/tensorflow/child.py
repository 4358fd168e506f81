"""A process with TensorFlow: converts a SavedModel and answers inputs. It imports nothing of Sardonyx.

The program reads requests from the standard input, one JSON object a line, and answers each with one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

UNSAFE = frozenset(
    (
        "CacheDataset",
        "CacheDatasetV2",
        "CreateSummaryDbWriter",
        "CreateSummaryFileWriter",
        "DebugIdentity",
        "DebugIdentityV2",
        "DebugIdentityV3",
        "DeleteFile",
        "EagerPyFunc",
        "FixedLengthRecordDataset",
        "FixedLengthRecordDatasetV2",
        "FixedLengthRecordReader",
        "FixedLengthRecordReaderV2",
        "LoadDataset",
        "LoadLibrary",
        "MatchingFiles",
        "PrintV2",
        "PyFunc",
        "PyFuncStateless",
        "ReadFile",
        "Save",
        "SaveDataset",
        "SaveDatasetV2",
        "SaveSlices",
        "SnapshotDataset",
        "SnapshotDatasetV2",
        "TFRecordDataset",
        "TFRecordDatasetV2",
        "TFRecordReader",
        "TFRecordReaderV2",
        "TextLineDataset",
        "TextLineReader",
        "TextLineReaderV2",
        "WholeFileReader",
        "WholeFileReaderV2",
        "WriteFile",
        "XlaHostCompute",
    )
)
"""Operators that read or write files, or call Python."""


def main(folder: str, directory: str, opset: int) -> None:
    """Answer requests about a SavedModel until the input ends."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Libraries print to the standard output.
    state: dict[str, Any] = {}
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = _answer(request, folder, directory, opset, state)
        except Exception as error:  # TensorFlow raises exceptions of a dozen unrelated classes.
            answer = {"problem": f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"}
        print(json.dumps(answer), file=answers, flush=True)


def _answer(request: dict[str, Any], folder: str, directory: str, opset: int, state: dict[str, Any]) -> dict[str, Any]:
    import numpy as np

    if request["do"] == "operators":
        return {"operators": sorted(_operators(folder) & UNSAFE)}
    import tensorflow as tf

    if "signature" not in state:
        loaded = tf.saved_model.load(folder)
        signatures = dict(loaded.signatures)
        if not signatures:
            return {"problem": "the SavedModel has no signature; save it with `signatures=`"}
        name = "serving_default" if "serving_default" in signatures else next(iter(signatures))
        state.update(loaded=loaded, name=name, signature=signatures[name])
    function = state["signature"]
    if request["do"] == "convert":
        inputs = function.structured_input_signature[1]
        arguments = ["--saved-model", folder, "--signature_def", state["name"], "--opset", str(opset)]
        command = [sys.executable, "-m", "tf2onnx.convert", *arguments, "--output", f"{directory}/model.onnx"]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode:
            lines = [line for line in result.stderr.splitlines() if line.strip()]
            return {"problem": lines[-1][:500] if lines else f"exit code {result.returncode}"}
        shapes = {
            key: {"shape": None if value.shape.rank is None else value.shape.as_list(), "dtype": value.dtype.name}
            for key, value in inputs.items()
        }
        return {"signature": state["name"], "inputs": shapes, "outputs": list(function.structured_outputs)}
    with np.load(f"{directory}/feeds.npz") as stored:
        feeds = {name: tf.constant(stored[name]) for name in stored.files}
    results = {name: value.numpy() for name, value in function(**feeds).items()}
    np.savez(f"{directory}/answers.npz", **results)
    return {}


def _operators(folder: str) -> set[str]:
    from tensorflow.core.protobuf import saved_model_pb2

    message = saved_model_pb2.SavedModel()
    message.ParseFromString((Path(folder) / "saved_model.pb").read_bytes())
    names: set[str] = set()
    for graph in message.meta_graphs:
        names.update(node.op for node in graph.graph_def.node)
        for function in graph.graph_def.library.function:
            names.update(node.op for node in function.node_def)
    return names


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
