"""Which modules define an operator, so that no others are imported for it.

Made by tools/make_operator_index.py.
"""

from __future__ import annotations

from collections.abc import Mapping

_FAMILIES: dict[str, dict[str, str]] = {
    "": {
        "activations": (
            "Celu Elu Gelu HardSigmoid HardSwish Hardmax LeakyRelu LogSoftmax Mish PRelu Relu Selu Shrink Sigmoid "
            "Softmax Softplus Softsign SwiGLU Swish ThresholdedRelu"
        ),
        "arithmetic": "Add And Div Equal Greater GreaterOrEqual Less LessOrEqual Mul Not Or Pow Sub Xor",
        "attention": "Attention LinearAttention RotaryEmbedding",
        "control_flow": "If Loop Scan",
        "convolution": "CausalConvWithState Conv ConvInteger ConvTranspose DeformConv QLinearConv",
        "detection": "NonMaxSuppression",
        "elementwise": (
            "Abs Acos Acosh Asin Asinh Atan Atanh BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Ceil Clip "
            "Cos Cosh Erf Exp Floor IsInf IsNaN Log Max Mean Min Mod Neg Reciprocal Round Sign Sin Sinh Sqrt Sum "
            "Tan Tanh Where"
        ),
        "experimental": "Affine Crop GivenTensorFill ImageScaler ParametricSoftplus ScaledTanh",
        "grids": "AffineGrid GridSample",
        "images": "ImageDecoder",
        "indexing": (
            "Compress Gather GatherElements GatherND NonZero Scatter ScatterElements ScatterND TensorScatter TopK "
            "Unique"
        ),
        "losses": "NegativeLogLikelihoodLoss SoftmaxCrossEntropyLoss",
        "microsoft.normalization": "SimplifiedLayerNormalization",
        "movement": (
            "Col2Im Concat DepthToSpace Expand Flatten Identity Reshape ReverseSequence SpaceToDepth Split "
            "Squeeze Tile Transpose Trilu Unsqueeze"
        ),
        "normalization": (
            "BatchNormalization GroupNormalization InstanceNormalization LRN LayerNormalization LpNormalization "
            "MeanVarianceNormalization RMSNormalization"
        ),
        "pooling": "AveragePool GlobalAveragePool GlobalLpPool GlobalMaxPool LpPool MaxPool MaxUnpool",
        "products": "Det Einsum Gemm MatMul MatMulInteger QLinearMatMul",
        "quantization": "DequantizeLinear DynamicQuantizeLinear QuantizeLinear",
        "random": "Bernoulli Dropout Multinomial RandomNormal RandomNormalLike RandomUniform RandomUniformLike",
        "recurrent": "GRU LSTM RNN",
        "reductions": (
            "ArgMax ArgMin CumProd CumSum ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean "
            "ReduceMin ReduceProd ReduceSum ReduceSumSquare"
        ),
        "regions": "CenterCropPad Pad Slice",
        "regions_of_interest": "MaxRoiPool RoiAlign",
        "resampling": "Resize Upsample",
        "sequences": (
            "ConcatFromSequence Optional OptionalGetElement OptionalHasElement SequenceAt SequenceConstruct "
            "SequenceEmpty SequenceErase SequenceInsert SequenceLength SequenceMap SplitToSequence"
        ),
        "signal": "BlackmanWindow DFT HammingWindow HannWindow MelWeightMatrix STFT",
        "sources": "BitCast Cast CastLike Constant ConstantOfShape EyeLike OneHot Range Shape Size",
        "strings": "RegexFullMatch StringConcat StringNormalizer StringSplit TfIdfVectorizer",
    },
    "ai.onnx.ml": {
        "ml.labels": "CategoryMapper LabelEncoder OneHotEncoder",
        "ml.linear": "LinearClassifier LinearRegressor",
        "ml.maps": "CastMap DictVectorizer ZipMap",
        "ml.preprocessing": "ArrayFeatureExtractor Binarizer FeatureVectorizer Imputer Normalizer Scaler",
        "ml.svm": "SVMClassifier SVMRegressor",
        "ml.trees": "TreeEnsemble TreeEnsembleClassifier TreeEnsembleRegressor",
    },
    "ai.onnx.preview": {
        "preview": "FlexAttention",
    },
    "ai.onnx.preview.training": {
        "gradient": "Gradient",
        "training": "Adagrad Adam Momentum",
    },
    "com.microsoft": {
        "microsoft.attention": (
            "Attention DecoderMaskedMultiHeadAttention MultiHeadAttention PackedMultiHeadAttention QAttention "
            "RotaryEmbedding"
        ),
        "microsoft.experts": "MoE",
        "microsoft.fusions": (
            "BiasGelu BiasSoftmax BiasSplitGelu FastGelu FusedConv FusedGemm FusedMatMul Gelu QuickGelu"
        ),
        "microsoft.grouped_queries": "GroupQueryAttention",
        "microsoft.normalization": (
            "EmbedLayerNormalization GroupNorm SkipLayerNormalization SkipSimplifiedLayerNormalization"
        ),
        "microsoft.quantization": (
            "DequantizeLinear NhwcMaxPool QLinearAdd QLinearAveragePool QLinearConcat QLinearGlobalAveragePool "
            "QLinearLeakyRelu QLinearMul QLinearReduceMean QLinearSigmoid QLinearSoftmax QLinearWhere "
            "QuantizeLinear"
        ),
        "microsoft.quantized_products": (
            "DynamicQuantizeLSTM DynamicQuantizeMatMul GatherBlockQuantized MatMulIntegerToFloat MatMulNBits "
            "QGemm QLinearConv"
        ),
        "microsoft.strings": "Tokenizer",
        "microsoft.tensors": (
            "CropAndResize ExpandDims GridSample Inverse Irfft NGramRepeatBlock Pad Range Rfft Unique"
        ),
        "movement": "Trilu",
    },
}


def _by_operator(families: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """For each operator of a domain, the modules that define it."""
    found: dict[str, tuple[str, ...]] = {}
    for module, names in families.items():
        for name in names.split():
            found[name] = (*found.get(name, ()), f"sardonyx.ops.definitions.{module}")
    return found


INDEX = {domain: _by_operator(families) for domain, families in _FAMILIES.items()}
"""By domain and name of an operator: the modules that define it."""
