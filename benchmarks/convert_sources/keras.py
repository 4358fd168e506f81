"""Models of Keras 3: all applications at small sizes, and small programs over the layers."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "torch")

import keras
import numpy as np
from keras import layers

Case = Callable[[], tuple[Any, tuple[Any, ...]]]
_programs: dict[str, Callable[[], Any]] = {}

SIZES = {"NASNetLarge": 96, "NASNetMobile": 96, "InceptionV3": 75, "InceptionResNetV2": 75, "Xception": 71}
"""Sizes of images, where 32 is too small."""


def cases() -> dict[str, Case]:
    """Return models with example inputs, by name."""
    result: dict[str, Case] = {name: _built(make) for name, make in _programs.items()}
    result["subclassed"] = _subclassed
    for name, make in vars(keras.applications).items():
        if inspect.isfunction(make) and name[0].isupper():
            result[f"applications.{name}"] = _application(name, make)
    return result


def _built(make: Callable[[], Any]) -> Case:
    def build() -> tuple[Any, tuple[Any, ...]]:
        keras.utils.set_random_seed(0)
        return make(), ()

    return build


def _application(name: str, make: Callable[..., Any]) -> Case:
    def build() -> tuple[Any, tuple[Any, ...]]:
        keras.utils.set_random_seed(0)
        size = SIZES.get(name, 32)
        options: dict[str, Any] = {"weights": None, "input_shape": (size, size, 3), "classes": 10}
        parameters = inspect.signature(make).parameters
        if "include_top" in parameters and name.startswith(("VGG", "MobileNet")):
            options["include_top"] = True
        model = make(**options)
        generator = np.random.default_rng(0)
        # Statistics of noise: without them, deep networks answer one number, or none, for all inputs.
        for layer in model._flatten_layers():
            if isinstance(layer, layers.BatchNormalization):
                layer.momentum = 0.0
        model(generator.uniform(0, 255, (8, size, size, 3)).astype(np.float32), training=True)
        return model, (generator.uniform(0, 255, (2, size, size, 3)).astype(np.float32),)

    return build


def program(function: Callable[[], Any]) -> Callable[[], Any]:
    """Register a function that builds a model."""
    _programs[function.__name__] = function
    return function


def _chain(shape: tuple[int | None, ...], *parts: Any, dtype: str = "float32") -> Any:
    return keras.Sequential([layers.Input(shape, dtype=dtype), *parts])


@program
def mlp() -> Any:
    """Return dense layers."""
    return _chain((8,), layers.Dense(16, "gelu"), layers.Dropout(0.5), layers.Dense(4, "softmax"))


@program
def convolutions() -> Any:
    """Return convolutions of every kind."""
    return _chain(
        (16, 16, 3),
        layers.Conv2D(8, 3, padding="same", strides=2),
        layers.BatchNormalization(),
        layers.SeparableConv2D(8, 3, padding="same"),
        layers.DepthwiseConv2D(3),
        layers.Conv2DTranspose(4, 3, strides=2, padding="same"),
        layers.GlobalMaxPooling2D(),
    )


@program
def fully_convolutional() -> Any:
    """Return convolutions of images of any size."""
    return _chain((None, None, 3), layers.Conv2D(4, 3, padding="same"), layers.ReLU(), layers.Conv2D(2, 1))


@program
def dilated_convolution() -> Any:
    """Return a causal dilated convolution over time."""
    return _chain((20, 4), layers.Conv1D(6, 3, padding="causal", dilation_rate=2), layers.GlobalAveragePooling1D())


@program
def volumes() -> Any:
    """Return layers over volumes."""
    return _chain((8, 8, 8, 2), layers.Conv3D(4, 3), layers.MaxPooling3D(2), layers.UpSampling3D(2), layers.Flatten())


@program
def pools() -> Any:
    """Return windows and resizing."""
    return _chain(
        (12, 12, 3),
        layers.ZeroPadding2D(1),
        layers.AveragePooling2D(2, padding="same"),
        layers.Cropping2D(1),
        layers.UpSampling2D(2, interpolation="bilinear"),
        layers.MaxPooling2D(3, 2, padding="same"),
    )


@program
def normalizations() -> Any:
    """Return layers of normalization."""
    return _chain(
        (6, 6, 8),
        layers.LayerNormalization(),
        layers.GroupNormalization(4),
        layers.UnitNormalization(),
        layers.RMSNormalization(),
    )


@program
def adapted_normalization() -> Any:
    """Return a Normalization layer with statistics of data."""
    layer = layers.Normalization()
    layer.adapt(np.random.default_rng(0).normal(3, 2, (32, 5)))
    return _chain((5,), layer, layers.Dense(3))


@program
def lstm() -> Any:
    """Return an LSTM over sequences of any length."""
    return _chain((None, 6), layers.LSTM(8), layers.Dense(2))


@program
def lstm_stack() -> Any:
    """Return two LSTMs."""
    return _chain((7, 6), layers.LSTM(8, return_sequences=True), layers.LSTM(4, go_backwards=True))


@program
def bidirectional_lstm() -> Any:
    """Return an LSTM in both directions."""
    return _chain((None, 6), layers.Bidirectional(layers.LSTM(5, return_sequences=True)), layers.Dense(3))


@program
def gru() -> Any:
    """Return a GRU."""
    return _chain((None, 6), layers.GRU(5, return_sequences=True), layers.Bidirectional(layers.GRU(4)))


@program
def gru_reset_before() -> Any:
    """Return a GRU of the older form."""
    return _chain((None, 6), layers.GRU(5, reset_after=False))


@program
def simple_rnn() -> Any:
    """Return a recurrent layer with ReLU."""
    return _chain((None, 6), layers.SimpleRNN(5, activation="relu", return_sequences=True))


@program
def masked_lstm() -> Any:
    """Return an LSTM over padded tokens."""
    return _chain((None,), layers.Embedding(20, 6, mask_zero=True), layers.LSTM(5), dtype="int32")


@program
def masking() -> Any:
    """Return a masked recurrent layer in both directions."""
    return _chain((9, 4), layers.Masking(0.0), layers.Bidirectional(layers.GRU(5)))


@program
def conv_lstm() -> Any:
    """Return a convolutional LSTM."""
    return _chain((5, 8, 8, 2), layers.ConvLSTM2D(3, 3, padding="same", return_sequences=True))


@program
def stacked_cells() -> Any:
    """Return a layer of stacked cells."""
    return _chain((None, 4), layers.RNN([layers.LSTMCell(5), layers.GRUCell(3)]))


@program
def time_distributed() -> Any:
    """Return a layer at each step."""
    return _chain((5, 8, 8, 3), layers.TimeDistributed(layers.Conv2D(4, 3)), layers.Flatten())


@program
def attention() -> Any:
    """Return a block of a transformer."""
    x = layers.Input((None, 8))
    y = layers.LayerNormalization()(x + layers.MultiHeadAttention(2, 4)(x, x, use_causal_mask=True))
    return keras.Model(x, layers.LayerNormalization()(y + layers.Dense(8)(layers.Dense(16, "gelu")(y))))


@program
def grouped_attention() -> Any:
    """Return attention with grouped queries."""
    x = layers.Input((None, 8), name="queries")
    return keras.Model(x, layers.GroupQueryAttention(4, 4, 2)(x, x))


@program
def dot_attention() -> Any:
    """Return attention of two inputs."""
    x, y = layers.Input((5, 8), name="query"), layers.Input((7, 8), name="value")
    return keras.Model([x, y], [layers.Attention(use_scale=True)([x, y]), layers.AdditiveAttention()([x, y])])


@program
def tokens() -> Any:
    """Return embeddings of tokens."""
    return _chain(
        (12,), layers.Embedding(50, 8), layers.SpatialDropout1D(0.3), layers.GlobalMaxPooling1D(), dtype="int32"
    )


@program
def activations() -> Any:
    """Return one dense layer for each activation."""
    x = layers.Input((6,))
    names = ("relu6", "elu", "selu", "silu", "mish", "hard_sigmoid", "hard_silu", "softplus", "softsign", "exponential",
             "leaky_relu", "log_softmax", "celu", "glu", "squareplus", "sparsemax", "tanh_shrink")  # fmt: skip
    return keras.Model(x, [layers.Activation(name)(layers.Dense(4)(x)) for name in names])


@program
def activation_layers() -> Any:
    """Return activations with weights or options."""
    return _chain((6, 4), layers.PReLU(), layers.LeakyReLU(0.2), layers.ELU(), layers.Softmax(1), layers.ReLU(2.0, 0.1))


@program
def merges() -> Any:
    """Return a model with two named inputs and several outputs."""
    x, y = layers.Input((4,), name="left"), layers.Input((4,), name="right")
    both = [
        layers.Add()([x, y]),
        layers.Concatenate()([x, y]),
        layers.Dot(1, normalize=True)([x, y]),
        layers.Maximum()([x, y]),
        layers.Multiply()([x, layers.Subtract()([x, y])]),
        layers.Average()([x, y]),
    ]
    return keras.Model([x, y], both)


@program
def shapes() -> Any:
    """Return movements."""
    return _chain(
        (4, 6),
        layers.Permute((2, 1)),
        layers.Reshape((3, 8)),
        layers.Flatten(),
        layers.RepeatVector(3),
        layers.Cropping1D(1),
    )


@program
def images() -> Any:
    """Return preprocessing of images."""
    return _chain(
        (20, 24, 3),
        layers.Rescaling(1 / 127.5, -1),
        layers.Resizing(16, 16),
        layers.CenterCrop(12, 12),
        layers.RandomFlip(),
        layers.RandomRotation(0.1),
    )


@program
def categories() -> Any:
    """Return preprocessing of numbers to categories."""
    x, n = layers.Input((3,), name="amounts"), layers.Input((1,), dtype="int32", name="codes")
    edges = layers.Discretization(bin_boundaries=[-1.0, 0.0, 0.5])(x)
    return keras.Model(
        [x, n], [edges, layers.CategoryEncoding(5, "multi_hot")(n), layers.CategoryEncoding(4, "one_hot")(n)]
    )


@program
def spectrogram() -> Any:
    """Return spectra of sound."""
    return _chain((400, 1), layers.STFTSpectrogram(frame_length=64, frame_step=16, fft_length=64))


@program
def mel_spectrogram() -> Any:
    """Return mel spectra of sound."""
    return _chain(
        (800,), layers.MelSpectrogram(fft_length=128, sequence_stride=64, num_mel_bins=16, sampling_rate=8000)
    )


@program
def operations() -> Any:
    """Return functions of `keras.ops`."""
    from keras import ops

    x = layers.Input((5, 6))
    y = ops.where(x > 0, ops.sin(x), ops.log1p(ops.abs(x)))
    top, index = ops.top_k(x, 2)
    return keras.Model(x, [ops.einsum("bij,bkj->bik", x, y), ops.cumsum(x, 1), top, index, ops.logsumexp(x, -1)])


@program
def nested() -> Any:
    """Return a model of models with a mapping of inputs."""
    encoder = keras.Sequential([layers.Input((4,)), layers.Dense(5, "relu")], name="encoder")
    inputs = {"a": layers.Input((4,), name="a"), "b": layers.Input((4,), name="b")}
    return keras.Model(inputs, {"sum": encoder(inputs["a"]) + encoder(inputs["b"]), "a": layers.Dense(2)(inputs["a"])})


class Residual(keras.Model):  # type: ignore[misc]
    """A subclassed model."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = layers.Dense(6, "relu"), layers.Dense(6)
        self.norm = layers.BatchNormalization()

    def call(self, x: Any, training: bool = False) -> Any:
        """Return the block's result."""
        return self.norm(x + self.second(self.first(x)), training=training)


def _subclassed() -> tuple[Any, tuple[Any, ...]]:
    keras.utils.set_random_seed(0)
    return Residual(), (np.random.default_rng(0).normal(size=(3, 6)).astype(np.float32),)


@program
def mixed_precision() -> Any:
    """Return layers in float16 with weights in float32."""
    return _chain((8,), layers.Dense(16, "relu", dtype="mixed_float16"), layers.Dense(4, dtype="float32"))
