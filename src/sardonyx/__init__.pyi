# Generated from the table of names in __init__.py by tools/make_api_stub.py.

from sardonyx.compress.evidence import metric as metric
from sardonyx.compress.float16 import auto_mixed_precision as auto_mixed_precision
from sardonyx.compress.float16 import convert_bfloat16 as convert_bfloat16
from sardonyx.compress.float16 import convert_float16 as convert_float16
from sardonyx.compress.quantization import quantize as quantize
from sardonyx.compress.search import Budget as Budget
from sardonyx.compress.search import compress as compress
from sardonyx.errors import SardonyxError as SardonyxError
from sardonyx.model import load as load
from sardonyx.model import save as save
from sardonyx.model import to_proto as to_proto
from sardonyx.model.check import check as check
from sardonyx.ops import host_operator as host_operator
from sardonyx.ops import operator as operator
from sardonyx.report.accuracy import compare as compare
from sardonyx.report.bench import bench as bench
from sardonyx.report.diff import diff as diff
from sardonyx.report.listing import list_nodes as list_nodes
from sardonyx.report.listing import list_weights as list_weights
from sardonyx.report.non_finite import non_finite as non_finite
from sardonyx.report.reduction import reduce as reduce
from sardonyx.report.summary import summary as summary
from sardonyx.rewrite.inference import infer_shapes as infer_shapes
from sardonyx.rewrite.language import Refusal as Refusal
from sardonyx.rewrite.language import rule as rule
from sardonyx.rewrite.opset import convert_opset as convert_opset
from sardonyx.rewrite.optimize import Optimized as Optimized
from sardonyx.rewrite.optimize import optimize as optimize
from sardonyx.rewrite.reshape_inputs import make_dynamic as make_dynamic
from sardonyx.rewrite.reshape_inputs import set_batch as set_batch
from sardonyx.rewrite.reshape_inputs import set_input_shapes as set_input_shapes
from sardonyx.rewrite.surgery import extract as extract
from sardonyx.rewrite.surgery import merge as merge
from sardonyx.rewrite.surgery import rename as rename
from sardonyx.runtime.dlpack_value import Value as Value
from sardonyx.runtime.node import Node as Node
from sardonyx.runtime.options import SessionOptions as SessionOptions
from sardonyx.runtime.run_options import RunOptions as RunOptions
from sardonyx.runtime.session import Session as Session
from sardonyx.runtime.shortcuts import compile as compile
from sardonyx.runtime.shortcuts import explain as explain
from sardonyx.runtime.shortcuts import profile as profile
from sardonyx.runtime.shortcuts import run as run
from sardonyx.train.gradient import gradient as gradient

__version__: str
