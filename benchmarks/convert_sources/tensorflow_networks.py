"""Networks of Keras on TensorFlow, and modules of TensorFlow with several functions or with state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from convert_sources.tensorflow_programs import tf, weight

layers = tf.keras.layers
NETWORKS: dict[str, Callable[[], Any]] = {}
STATEFUL: dict[str, Callable[[], Any]] = {}


def network(function: Callable[[], Any]) -> Callable[[], Any]:
    """Register a function that builds a network."""
    NETWORKS[function.__name__.replace("_", "-")] = function
    return function


def stateful(kind: type[Any]) -> type[Any]:
    """Register a module."""
    STATEFUL[kind.__doc__.split(".")[0].split(",")[0].lower().replace(" ", "-")] = kind  # type: ignore[union-attr]
    return kind


def _chain(shape: tuple[int | None, ...], *parts: Any) -> Any:
    return tf.keras.Sequential([layers.Input(shape), *parts])


@network
def perceptron() -> Any:
    """Return dense layers."""
    return _chain((8,), layers.Dense(16, "relu"), layers.Dense(12, "tanh"), layers.Dense(4, "softmax"))


@network
def convolutional() -> Any:
    """Return convolutions and pools."""
    return _chain(
        (12, 12, 3),
        layers.Conv2D(8, 3, padding="same", activation="relu"),
        layers.BatchNormalization(),
        layers.MaxPooling2D(),
        layers.Conv2D(8, 3, strides=2, activation="relu6"),
        layers.Flatten(),
        layers.Dense(5),
    )


@network
def separable() -> Any:
    """Return a block of MobileNetV2 with a mean."""
    x = layers.Input((8, 8, 4))
    y = layers.Conv2D(12, 1, activation="relu6")(x)
    y = layers.DepthwiseConv2D(3, padding="same", activation="relu6")(y)
    y = layers.Add()([x, layers.Conv2D(4, 1)(y)])
    return tf.keras.Model(x, layers.Dense(3)(layers.GlobalAveragePooling2D()(y)))


@network
def excited() -> Any:
    """Return a block of MobileNetV3: hard-swish, squeeze and excitation."""
    x = layers.Input((8, 8, 4))
    y = layers.Conv2D(8, 3, padding="same", activation="hard_silu")(x)
    gate = layers.Conv2D(8, 1, activation="hard_sigmoid")(layers.GlobalAveragePooling2D(keepdims=True)(y))
    return tf.keras.Model(x, layers.Conv2D(2, 1)(layers.Multiply()([y, gate])))


@network
def hourglass() -> Any:
    """Return an encoder and a decoder with transposed convolutions and resizing."""
    x = layers.Input((8, 8, 3))
    y = layers.Conv2D(6, 3, 2, padding="same", activation="relu")(x)
    z = layers.Conv2DTranspose(3, 3, 2, padding="same")(y)
    up = layers.UpSampling2D(2, interpolation="bilinear")(y)
    return tf.keras.Model(x, [layers.Concatenate()([x, z]), up])


def _sequences(batch: int | None, *parts: Any) -> Any:
    return tf.keras.Sequential([layers.Input(batch_shape=(batch, 5, 4)), *parts, layers.Dense(2)])


@network
def long_short() -> Any:
    """Return an LSTM over one sequence."""
    return _sequences(1, layers.LSTM(5, return_sequences=True), layers.LSTM(3))


@network
def long_short_open() -> Any:
    """Return an LSTM over any number of sequences."""
    return _sequences(None, layers.LSTM(5, return_sequences=True), layers.LSTM(3))


@network
def gated() -> Any:
    """Return a GRU in both directions."""
    return _sequences(1, layers.Bidirectional(layers.GRU(3)))


@network
def gated_open() -> Any:
    """Return a GRU in both directions, over any number of sequences."""
    return _sequences(None, layers.Bidirectional(layers.GRU(3)))


@network
def transformer() -> Any:
    """Return a block of a transformer."""
    x = layers.Input((5, 8))
    y = layers.LayerNormalization()(x + layers.MultiHeadAttention(2, 4)(x, x))
    return tf.keras.Model(x, layers.LayerNormalization()(y + layers.Dense(8)(layers.Dense(16, "gelu")(y))))


@network
def leaky() -> Any:
    """Return activations with parameters, padding, a merge and movements."""
    x = layers.Input((6, 6, 4))
    y = layers.PReLU(shared_axes=(1, 2))(layers.ZeroPadding2D(1)(layers.Conv2D(4, 3, padding="same")(x)))
    z = layers.LeakyReLU(0.2)(layers.AveragePooling2D(2, padding="same")(y))
    w = layers.Permute((2, 1, 3))(layers.Subtract()([z, layers.Maximum()([z, 2 * z])]))
    return tf.keras.Model(x, layers.Reshape((-1, 8))(w))


@network
def two_inputs() -> Any:
    """Return a network of two inputs and two outputs."""
    x, y = layers.Input((6,)), layers.Input((4,))
    both = layers.Concatenate()([layers.Dense(5, "elu")(x), layers.Dense(5, "sigmoid")(y)])
    return tf.keras.Model([x, y], [layers.Dense(3)(both), layers.Dot(1)([both, both])])


@stateful
class Counter(tf.Module):  # type: ignore[misc]
    """Counter, a variable that is read alone."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = tf.Variable(weight(6))

    def functions(self) -> list[Any]:
        """Return the functions of the file."""
        return [self.call]

    @tf.function(input_signature=[tf.TensorSpec((None, 6), tf.float32, name="x")])  # type: ignore[untyped-decorator]
    def call(self, x: Any) -> Any:
        """Return scaled rows."""
        return {"scaled": x * self.scale, "total": tf.reduce_sum(self.scale)}


@stateful
class Assigned(tf.Module):  # type: ignore[misc]
    """Assigned variable, written by each call before it is read."""

    def __init__(self) -> None:
        super().__init__()
        self.last = tf.Variable(tf.zeros((4, 6)))

    def functions(self) -> list[Any]:
        """Return the functions of the file."""
        return [self.call]

    @tf.function(input_signature=[tf.TensorSpec((4, 6), tf.float32, name="x")])  # type: ignore[untyped-decorator]
    def call(self, x: Any) -> Any:
        """Return twice the rows, by way of the variable."""
        self.last.assign(x * 2)
        return {"last": self.last.read_value() + x}


@stateful
class Signatures(tf.Module):  # type: ignore[misc]
    """Several signatures, of which the first is converted."""

    def functions(self) -> list[Any]:
        """Return the functions of the file."""
        return [self.encode, self.decode]

    @tf.function(input_signature=[tf.TensorSpec((None, 6), tf.float32, name="x")])  # type: ignore[untyped-decorator]
    def encode(self, x: Any) -> Any:
        """Return rows of three columns."""
        return {"code": x @ weight(6, 3)}

    @tf.function(input_signature=[tf.TensorSpec((None, 3), tf.float32, name="code")])  # type: ignore[untyped-decorator]
    def decode(self, code: Any) -> Any:
        """Return rows of six columns."""
        return {"x": code @ weight(3, 6)}


@stateful
class Averaged(tf.Module):  # type: ignore[misc]
    """Running mean, a variable that loops and branches assign."""

    def __init__(self) -> None:
        super().__init__()
        self.mean, self.steps = tf.Variable(tf.zeros(6)), tf.Variable(0)

    def functions(self) -> list[Any]:
        """Return the functions of the file."""
        return [self.call]

    @tf.function(input_signature=[tf.TensorSpec((4, 6), tf.float32, name="x")])  # type: ignore[untyped-decorator]
    def call(self, x: Any) -> Any:
        """Return the mean of rows, by way of the variable."""
        for row in x:
            self.mean.assign(self.mean * 0.5 + row)
            if tf.reduce_sum(row) > 0:
                self.steps.assign_add(1)
        return {"mean": self.mean + 0.0, "steps": self.steps + 0}


@stateful
class Numbered(tf.Module):  # type: ignore[misc]
    """Table from texts to numbers."""

    def __init__(self) -> None:
        super().__init__()
        contents = tf.lookup.KeyValueTensorInitializer(["a", "b", "c"], tf.constant([5, 6, 7], tf.int64))
        self.table = tf.lookup.StaticHashTable(contents, -1)

    def functions(self) -> list[Any]:
        """Return the functions of the file."""
        return [self.call]

    @tf.function(input_signature=[tf.TensorSpec((2, 3), tf.float32, name="x")])  # type: ignore[untyped-decorator]
    def call(self, x: Any) -> Any:
        """Return numbers of constant texts beside an input."""
        numbers = self.table.lookup(tf.constant(["b", "z", "a"]))
        return {"sum": x + tf.cast(numbers, tf.float32)}
