"""Common ways of programs to call a session, on the model that the command line names."""

import json
import sys

import numpy as np
import onnxruntime
from onnxruntime import InferenceSession, SessionOptions, get_available_providers


class Base:
    """Wrapper of a session that reads names and sizes once, as libraries do."""

    def __init__(self, path: str) -> None:
        options = SessionOptions()
        options.intra_op_num_threads = 1
        options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
        providers = [
            name for name in ("CUDAExecutionProvider", "CPUExecutionProvider") if name in get_available_providers()
        ]
        self.session = InferenceSession(path, sess_options=options, providers=providers)
        first = self.session.get_inputs()[0]
        self.input_name, self.input_shape = first.name, first.shape
        self.output_names = [output.name for output in self.session.get_outputs()]
        self.dynamic = any(isinstance(size, str) or size is None for size in self.input_shape)

    def blob(self, batch: int) -> np.ndarray:
        sizes = [batch, *(size if isinstance(size, int) else 16 for size in self.input_shape[1:])]
        return np.random.default_rng(batch).standard_normal(sizes).astype(np.float32)


base = Base(sys.argv[1])
session, x = base.session, base.blob(2 if base.dynamic else 1)
results = {"none": session.run(None, {base.input_name: x})}
results["names"] = session.run(base.output_names, {base.input_name: x})
results["keyword"] = session.run(output_names=base.output_names[:1], input_feed={base.input_name: x})
binding = session.io_binding()
binding.bind_cpu_input(base.input_name, np.ascontiguousarray(x))
for name in base.output_names:
    binding.bind_output(name, "cpu")
session.run_with_iobinding(binding)
results["binding"] = binding.copy_outputs_to_cpu()
value = onnxruntime.OrtValue.ortvalue_from_numpy(x, "cpu", 0)
results["values"] = [
    fetched.numpy() for fetched in session.run_with_ort_values(base.output_names, {base.input_name: value})
]
assert session.get_modelmeta().custom_metadata_map is not None
numbers = [np.asarray(array, np.float64).ravel().tolist() for arrays in results.values() for array in arrays]
texts = [f"{key} {array.dtype} {array.shape}" for key, arrays in results.items() for array in arrays]
print(json.dumps({"module": onnxruntime.__name__, "texts": texts, "numbers": numbers}))
