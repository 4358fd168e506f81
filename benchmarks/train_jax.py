"""The networks of the training benchmark in JAX, with the weights of the ONNX files: a jitted step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import optax

import train_networks
from train_networks import CONTEXT, HEADS, LAYERS, VOCABULARY, WIDTH

Weights = dict[str, Any]
LAYOUT = ("NCHW", "OIHW", "NCHW")


def linear(w: Weights, name: str, x: Any) -> Any:
    y = x @ w[f"{name}.weight"].T
    return y + w[f"{name}.bias"] if f"{name}.bias" in w else y


def conv(w: Weights, name: str, x: Any, stride: int = 1, pad: int = 0) -> Any:
    y = jax.lax.conv_general_dilated(x, w[f"{name}.weight"], (stride,) * 2, [(pad, pad)] * 2, dimension_numbers=LAYOUT)
    return y + w[f"{name}.bias"][:, None, None] if f"{name}.bias" in w else y


def pool(x: Any, size: int = 2, stride: int = 2, pad: int = 0) -> Any:
    edges = [(0, 0), (0, 0), (pad, pad), (pad, pad)]
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 1, size, size), (1, 1, stride, stride), edges)


def norm(w: Weights, name: str, x: Any) -> Any:
    """Return the batch normalization of a batch."""
    mean, var = x.mean((0, 2, 3), keepdims=True), x.var((0, 2, 3), keepdims=True)
    scale, shift = (w[f"{name}.{part}"][:, None, None] for part in ("weight", "bias"))
    return (x - mean) * jax.lax.rsqrt(var + 1e-5) * scale + shift


def layer_norm(w: Weights, name: str, x: Any) -> Any:
    mean, var = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(var + 1e-5) * w[f"{name}.weight"] + w[f"{name}.bias"]


def mlp(w: Weights, x: Any) -> Any:
    return linear(w, "4", jax.nn.relu(linear(w, "2", jax.nn.relu(linear(w, "0", x)))))


def lenet(w: Weights, x: Any) -> Any:
    x = pool(jax.nn.relu(conv(w, "0", x, pad=2)))
    x = pool(jax.nn.relu(conv(w, "3", x)))
    x = jax.nn.relu(linear(w, "7", x.reshape(len(x), -1)))
    return linear(w, "11", jax.nn.relu(linear(w, "9", x)))


def cnn(w: Weights, x: Any) -> Any:
    x = pool(jax.nn.relu(conv(w, "2", jax.nn.relu(conv(w, "0", x)))))
    return linear(w, "8", jax.nn.relu(linear(w, "6", x.reshape(len(x), -1))))


def resnet18(w: Weights, x: Any) -> Any:
    x = pool(jax.nn.relu(norm(w, "1", conv(w, "0", x, 2, 3))), 3, 2, 1)
    for number in range(8):
        name, stride = str(4 + number), 2 if number in (2, 4, 6) else 1
        y = jax.nn.relu(norm(w, f"{name}.bn1", conv(w, f"{name}.conv1", x, stride, 1)))
        y = norm(w, f"{name}.bn2", conv(w, f"{name}.conv2", y, 1, 1))
        if f"{name}.shortcut.0.weight" in w:
            x = norm(w, f"{name}.shortcut.1", conv(w, f"{name}.shortcut.0", x, stride))
        x = jax.nn.relu(y + x)
    return linear(w, "14", x.mean((2, 3)))


def gpt(w: Weights, x: Any) -> Any:
    x = w["tokens.weight"][x] + w["positions"]
    for layer in range(LAYERS):
        name = f"blocks.{layer}"
        parts = linear(w, f"{name}.attention.qkv", layer_norm(w, f"{name}.norm1", x))
        q, k, v = jnp.moveaxis(parts.reshape(-1, CONTEXT, 3, HEADS, WIDTH // HEADS), 2, 0)
        y = jax.nn.dot_product_attention(q, k, v, is_causal=True).reshape(-1, CONTEXT, WIDTH)
        x = x + linear(w, f"{name}.attention.out", y)
        y = jax.nn.gelu(linear(w, f"{name}.feed.0", layer_norm(w, f"{name}.norm2", x)), approximate=False)
        x = x + linear(w, f"{name}.feed.2", y)
    return linear(w, "head", layer_norm(w, "norm", x)).reshape(-1, VOCABULARY)


def lstm(w: Weights, x: Any) -> Any:
    size = w["lstm.weight_hh_l0"].shape[1]
    before = jnp.moveaxis(x, 1, 0) @ w["lstm.weight_ih_l0"].T + w["lstm.bias_ih_l0"] + w["lstm.bias_hh_l0"]
    zeros = jnp.zeros((len(x), size), x.dtype)

    def cell(state: Any, row: Any) -> Any:
        h, c = state
        i, f, g, o = jnp.split(row + h @ w["lstm.weight_hh_l0"].T, 4, axis=1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        return (jax.nn.sigmoid(o) * jnp.tanh(c), c), None

    (h, _), _ = jax.lax.scan(cell, (zeros, zeros), before)
    return linear(w, "head", h)


def gnn(w: Weights, x: Any, sources: Any, targets: Any) -> Any:
    for name in ("first", "second", "third"):
        total = jnp.zeros_like(x).at[targets].add(x[sources])
        count = jnp.zeros_like(x[:, :1]).at[targets].add(1)
        x = linear(w, f"{name}.own", x) + linear(w, f"{name}.others", total / jnp.maximum(count, 1))
        x = x if name == "third" else jax.nn.relu(x)
    return x


FORWARD: dict[str, Callable[..., Any]] = {
    "mlp": mlp, "mlp-batch-1": mlp, "lenet": lenet, "cnn": cnn, "resnet18-64": resnet18, "resnet18-224": resnet18,
    "gpt": gpt, "lstm": lstm, "gnn": gnn,
}  # fmt: skip


def step_of(network: train_networks.Network, model: Path, precision: str) -> Callable[[train_networks.Batch], float]:
    """Return a step of JAX, which donates the state to the next one; each batch size is compiled once.

    Raises:
        ValueError: The network or the precision is not written in JAX.
    """
    if network.name not in FORWARD or precision != "float32":
        raise ValueError(f"{network.name} in {precision} is not written in JAX")
    forward = FORWARD[network.name]
    stored = {one.name: onnx.numpy_helper.to_array(one) for one in onnx.load(model).graph.initializer}
    weights: Weights = {
        name: jnp.asarray(array)
        for name, array in stored.items()
        if array.dtype == np.float32 and "running_" not in name and array.size > 1
    }
    optimizer = {
        "adam": lambda: optax.adam(network.rate),
        "adamw": lambda: optax.adamw(network.rate, weight_decay=0.01),
        "sgd": lambda: optax.sgd(network.rate, momentum=0.9),
        "plain": lambda: optax.sgd(network.rate),
    }[network.optimizer]()
    state = optimizer.init(weights)

    def loss_of(w: Weights, inputs: Any, labels: Any) -> Any:
        return optax.softmax_cross_entropy_with_integer_labels(forward(w, *inputs), labels).mean()

    def update(w: Weights, state: Any, inputs: Any, labels: Any) -> Any:
        loss, gradients = jax.value_and_grad(loss_of)(w, inputs, labels)
        changes, state = optimizer.update(gradients, state, w)
        return optax.apply_updates(w, changes), state, loss

    jitted = jax.jit(update, donate_argnums=(0, 1))

    def step(batch: train_networks.Batch) -> float:
        nonlocal weights, state
        *inputs, labels = batch.values()
        weights, state, loss = jitted(weights, state, tuple(inputs), labels)
        return float(loss)

    return step
