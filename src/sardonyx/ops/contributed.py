"""Element types of ONNX Runtime's contributed operators, for which the standard has no schemas.

Source: the schemas of ONNX Runtime 1.32. Each line lists a type or a type variable for every input, then the
types of each variable. Dots after the last input mark a variadic input, each operand of any of its types.
"""

from __future__ import annotations

CONTRIBUTED = {
    "": {
        "SimplifiedLayerNormalization": "T V; T: bfloat16 double float float16; V: bfloat16 double float float16",
    },
    "com.microsoft": {
        "Attention": "T T T M T T M; T: bfloat16 float float16; M: int32",
        "BeamSearch": ("F I I I I T T M M I I I; F: float float16 int32; I: int32; M: int32; T: float float16"),
        "BiasGelu": "T T; T: bfloat16 double float float16",
        "BiasSoftmax": "T T; T: double float float16",
        "BiasSplitGelu": "T T; T: float float16",
        "CDist": "T T; T: double float",
        "CropAndResize": "T1 T1 T2 T2; T1: double float float16; T2: int32",
        "DecoderMaskedMultiHeadAttention": "T T T M T T T M M M T; T: float float16; M: int32",
        "DequantizeLinear": "T1 T2 T1; T1: int16 int32 int4 int8 uint16 uint4 uint8; T2: float float16",
        "DynamicQuantizeLSTM": "T T2 T2 T T1 T T T T T2 T T2; T: float; T2: int8 uint8; T1: int32",
        "DynamicQuantizeMatMul": "T1 T2 T1 T2 T1; T1: float; T2: int8 uint8",
        "EmbedLayerNormalization": "T1 T1 T T T T T T1 T1; T1: int32; T: float float16",
        "ExpandDims": (
            "T int32; T: bool complex128 complex64 double float float16 int16 int32 int64 int8 string uint16 uint32 "
            "uint64 uint8"
        ),
        "FastGelu": "T T; T: bfloat16 double float float16",
        "FusedConv": "T T T T; T: double float float16",
        "FusedGemm": "T T T; T: double float float16 int32 int64 uint32 uint64",
        "FusedMatMul": "T T; T: bfloat16 double float float16",
        "GatherBlockQuantized": (
            "T1 Tind T2 T1; T1: float4e2m1 float8e4m3fn float8e4m3fnuz float8e5m2 float8e5m2fnuz int4 uint4 uint8; "
            "Tind: int32 int64; T2: bfloat16 float float16"
        ),
        "Gelu": "T; T: bfloat16 double float float16",
        "GreedySearch": "I I I T I I I; T: float; I: int32",
        "GridSample": (
            "T1 T1; T1: bool complex128 complex64 double float float16 int16 int32 int64 int8 string uint16 uint32 "
            "uint64 uint8"
        ),
        "GroupNorm": "T M M; T: float float16; M: float float16",
        "GroupQueryAttention": (
            "T T T T_CACHE T_CACHE M M T T int64 T T T_KV_SCALE T_KV_SCALE T T M; T: bfloat16 float float16; "
            "T_CACHE: bfloat16 float float16 float8e4m3fn int8 uint8; M: int32; T_KV_SCALE: float"
        ),
        "Inverse": "T; T: double float float16",
        "Irfft": "T; T: double float float16",
        "MatMulBnb4": "T1 T2 T1; T1: bfloat16 float float16; T2: uint8",
        "MatMulIntegerToFloat": "T1 T2 T3 T3 T1 T2 T3; T1: int8 uint8; T2: int8 uint8; T3: float float16",
        "MatMulNBits": (
            "T1 T2 T1 T3 T4 T1; T1: bfloat16 float float16; T2: uint8; T3: bfloat16 float float16 uint8; T4: int32"
        ),
        "MoE": "T T T T T T T T; T: bfloat16 float float16",
        "MurmurHash3": "T1; T1: double float int32 int64 string uint32 uint64",
        "MultiHeadAttention": "T T T T M T T T M M; T: bfloat16 float float16; M: int32",
        "NGramRepeatBlock": "Tid T; Tid: int64; T: float",
        "NhwcMaxPool": "T; T: int8 uint8",
        "PackedMultiHeadAttention": "T T T T M M T; T: float float16; M: int32",
        "Pad": "T int64 T; T: double float float16",
        "QAttention": "T1 T2 T3 T3 T3 T4 T1 T2 T3; T1: int8 uint8; T2: int8 uint8; T3: float float16; T4: int32",
        "QEmbedLayerNormalization": (
            "T1 T1 T2 T2 T2 T2 T2 T1 T T T T T T2 T2 T2 T2 T2; T1: int32; T2: int8 uint8; T: float"
        ),
        "QGemm": "TA T TA TB T TB TC T TYZ; TA: int8 uint8; T: float; TB: int8 uint8; TC: int32; TYZ: int8 uint8",
        "QLinearAdd": "T float T T float T float T; T: int8 uint8",
        "QLinearAveragePool": "T float T float T; T: int8 uint8",
        "QLinearConcat": "TF T8 TV...; TF: float; T8: int8 uint8; TV: float int8 uint8",
        "QLinearConv": "T1 float T1 T2 float T2 float T3 T4; T1: int8 uint8; T2: int8 uint8; T3: int8 uint8; T4: int32",
        "QLinearGlobalAveragePool": "T float T float T; T: int8 uint8",
        "QLinearLeakyRelu": "T float T float T; T: int8 uint8",
        "QLinearMul": "T float T T float T float T; T: int8 uint8",
        "QLinearReduceMean": "T float T float T; T: int8 uint8",
        "QLinearSigmoid": "T float T float T; T: int8 uint8",
        "QLinearSoftmax": "T float T float T; T: int8 uint8",
        "QLinearWhere": "B T TF T T TF T TF T; B: bool; T: int8 uint8; TF: float",
        "QuantizeLinear": "T1 T1 T2; T1: float float16; T2: int16 int4 int8 uint16 uint4 uint8",
        "QuickGelu": "T; T: bfloat16 double float float16",
        "Range": "T T T; T: double float int16 int32 int64",
        "Rfft": "T; T: double float float16",
        "RotaryEmbedding": "T M T T; T: bfloat16 float float16; M: int64",
        "Sampling": "I I I T I I I I I; T: float; I: int32",
        "SkipLayerNormalization": "T T T T T; T: bfloat16 float float16",
        "SkipSimplifiedLayerNormalization": "T T T T; T: bfloat16 float float16",
        "Tokenizer": "T; T: string",
        "Trilu": "T int64; T: bfloat16 bool double float float16 int16 int32 int64 int8 uint16 uint32 uint64 uint8",
        "Unique": (
            "T; T: bool complex128 complex64 double float float16 int16 int32 int64 int8 string uint16 uint32 "
            "uint64 uint8"
        ),
    },
}
"""Signature lines by domain and operator."""
