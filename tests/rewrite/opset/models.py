"""Models in text form shared by the tests of opset conversion."""

from __future__ import annotations

SOFTMAX = """
<ir_version: 8, opset_import: ["" : 13]>
agraph (float[2, 3, 4] x) => (float[2, 3, 4] y) { y = Softmax<axis = 1>(x) }
"""

BRANCHES = """
<ir_version: 8, opset_import: ["" : 18]>
agraph (bool c, float[2, 3] x) => (float[2] y)
<int64[1] axes = {-1}>
{
  y = If (c) <
    then_branch = yes () => (float[2] a) { a = ReduceMean<keepdims = 0>(x, axes) },
    else_branch = no () => (float[2] b) { b = ReduceMax<keepdims = 0>(x, axes) }
  >
}
"""

FUNCTION = """
<ir_version: 8, opset_import: ["" : 18, "own" : 1]>
agraph (float[2, 3] x) => (float[2, 3] y) { h = own.center(x)  y = Relu(h) }
<domain: "own", opset_import: ["" : 18]>
center (x) => (y)
{
  axes = Constant<value_ints = [-1]>()
  mean = ReduceMean(x, axes)
  y = Sub(x, mean)
}
"""
