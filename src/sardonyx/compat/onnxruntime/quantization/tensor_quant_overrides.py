"""Overrides of the quantization of single tensors, by ONNX Runtime's names."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

from sardonyx.compat.onnxruntime.quantization.arithmetic import normalize_axis

_EXCLUDED_BY_SCALE = ("symmetric", "reduce_range", "rmax", "rmin")
_SAME_IN_ALL_CHANNELS = ("quant_type", "symmetric", "reduce_range")
_PAIRS = (("scale", "zero_point"), ("rmin", "rmax"))


@dataclass
class QuantTypeInfo:
    """The type of a tensor; None stands for the default."""

    quant_type: Any
    symmetric: bool | None = None
    reduce_range: bool | None = None
    axis: int | None = None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, QuantTypeInfo):
            return NotImplemented
        pairs = (self.symmetric, other.symmetric), (self.reduce_range, other.reduce_range)
        is_alike = all(None in pair or pair[0] == pair[1] for pair in pairs)
        return is_alike and self.quant_type == other.quant_type and self.axis == other.axis

    __hash__ = None  # type: ignore[assignment]

    @staticmethod
    def load_from_dict(
        raw_dict: Mapping[str, Any],
        default_qtype: Any = None,
        default_symmetric: bool | None = None,
        default_reduce_range: bool | None = None,
    ) -> QuantTypeInfo:
        """Return the type that an override states."""
        return QuantTypeInfo(
            raw_dict.get("quant_type", default_qtype), raw_dict.get("symmetric", default_symmetric),
            raw_dict.get("reduce_range", default_reduce_range), raw_dict.get("axis"),
        )  # fmt: skip

    def save_to_dict(self, raw_dict: MutableMapping[str, Any]) -> None:
        """Store the type in an override."""
        raw_dict["quant_type"] = self.quant_type
        for name in ("symmetric", "reduce_range", "axis"):
            if getattr(self, name) is not None:
                raw_dict[name] = getattr(self, name)


class TensorQuantOverridesHelper(MutableMapping[str, list[dict[str, Any]]]):
    """Overrides by tensor: one mapping for a tensor, or one for each channel, the first with ``axis``.

    Args:
        raw_overrides: The overrides, which edits change.
    """

    def __init__(self, raw_overrides: dict[str, list[dict[str, Any]]]) -> None:
        self.overrides = raw_overrides

    def _first(self, tensor_name: str) -> Mapping[str, Any] | None:
        channels = self.overrides.get(tensor_name)
        return channels[0] if channels else None

    def has_per_tensor_overrides(self, tensor_name: str) -> bool:
        """Return True if a tensor has overrides without channels."""
        first = self._first(tensor_name)
        return first is not None and "axis" not in first

    def has_per_channel_overrides(self, tensor_name: str) -> bool:
        """Return True if a tensor has overrides of channels."""
        first = self._first(tensor_name)
        return first is not None and "axis" in first

    def overrides_scale_zp(self, tensor_name: str) -> bool:
        """Return True if the scale and the zero point of a tensor are set."""
        first = self._first(tensor_name)
        return first is not None and "scale" in first and "zero_point" in first

    def get_per_tensor_overrides(self, tensor_name: str, default_val: Any = None) -> Any:
        """Return the overrides of a tensor without channels.

        Raises:
            ValueError: The overrides are those of channels.
        """
        channels = self.overrides.get(tensor_name, None if default_val is None else [default_val])
        if channels and "axis" in channels[0]:
            raise ValueError(
                f"Expected tensor '{tensor_name}' to use per-tensor quantization overrides, but found per-channel ones."
            )
        return channels[0] if channels else None

    def get_per_channel_overrides(self, tensor_name: str, default_val: Any = None) -> Any:
        """Return the overrides of the channels of a tensor.

        Raises:
            ValueError: The axis is missing.
        """
        channels = self.overrides.get(tensor_name, default_val)
        if channels and "axis" not in channels[0]:
            raise ValueError(
                f"Expected tensor '{tensor_name}' to have per-channel quantization overrides (axis value is missing)."
            )
        return channels or None

    def get_quant_types(self) -> set[Any]:
        """Return the types that overrides state, those of conversions too."""
        return {
            one["quant_type"]
            for channels in self.overrides.values()
            for channel in channels
            for one in (channel, channel.get("convert") or {})
            if "quant_type" in one
        }

    def is_valid(
        self, initializers: Mapping[str, Any], activation_names: Any, default_activation_qtype: Any
    ) -> tuple[bool, str | None]:
        """Return True, or False with the problem."""
        unchecked: Mapping[str, Any] = self.overrides  # Not checked yet.
        for name, channels in unchecked.items():
            if name not in initializers and name not in activation_names:
                return False, f"Tensor '{name}' in TensorQuantOverrides is not present in the model"
            if not isinstance(channels, list):
                return False, f"Tensor quantization overrides for '{name}' are not in a list"
            for index, channel in enumerate(channels):
                if not isinstance(channel, dict):
                    return False, f"Tensor quantization overrides at index {index} for '{name}' are not in a dict"
            if not channels or not channels[0]:
                continue
            is_per_channel = len(channels) > 1 or channels[0].get("axis") is not None
            problem = (
                self._problem_of_channels(name, channels, initializers)
                if is_per_channel
                else self._problem(name, channels[0], name in initializers)
                or self._problem_of_conversion(name, channels[0], name in initializers, default_activation_qtype)
            )
            if problem is not None:
                return False, problem
        return True, None

    @staticmethod
    def _problem(name: str, override: Mapping[str, Any], is_initializer: bool) -> str | None:
        if ("scale" in override) != ("zero_point" in override):
            return f"Must provide both 'scale' and 'zero_point' if one of the overrides is provided (tensor '{name}')"
        excluded = [key for key in _EXCLUDED_BY_SCALE if key in override]
        if "scale" in override and excluded:
            keys = ", ".join(excluded)
            return f"Tensor override option(s) [{keys}] are invalid with 'scale' and 'zero_point' (tensor '{name}')"
        if "reduce_range" in override and not is_initializer:
            return f"Option 'reduce_range' is only supported for initializers, not for activation {name}"
        return None

    def _problem_of_conversion(
        self, name: str, override: Mapping[str, Any], is_initializer: bool, default_type: Any
    ) -> str | None:
        if "convert" not in override:
            return None
        convert = override["convert"]
        if is_initializer:
            return f"Cannot use 'convert' override for initializers, such as {name}."
        if "quant_type" not in convert:
            return f"'convert' options (tensor '{name}') must specify a 'quant_type'"
        if convert["quant_type"] == (override.get("quant_type") or default_type):
            return f"'convert' quant_type must differ from original quant_type (tensor '{name}')"
        return self._problem(name, convert, is_initializer)

    def _problem_of_channels(
        self, name: str, channels: Sequence[Mapping[str, Any]], initializers: Mapping[str, Any]
    ) -> str | None:
        if name not in initializers:
            return f"Tensor '{name}' has per-channel overrides, but is not an initializer"
        first = channels[0]
        if first.get("axis") is None:
            return (
                f"Per-channel overrides for tensor {name} is missing an 'axis' value in the first channel dictionary."
            )
        shape = list(initializers[name].dims)
        is_inside, axis = normalize_axis(first["axis"], len(shape))
        if not is_inside:
            return f"Axis override value is out-of-bounds for tensor {name} (rank {len(shape)})"
        if len(channels) > 1 and len(channels) != shape[axis]:
            return (
                f"Incorrect number of channel overrides for tensor {name} (axis {first['axis']}), "
                f"expected {shape[axis]}, but found {len(channels)}."
            )
        for index, channel in enumerate(channels):
            if "convert" in channel:
                return f"Cannot use 'convert' override for initializers, such as {name}."
            if (problem := self._problem(name, channel, True)) is not None:
                return problem
            for low, high in _PAIRS:
                if (low in channel) != (high in channel):
                    return f"Must provide both '{low}' and '{high}' if one is provided (tensor '{name}')"
                if low in first and low not in channel:
                    return (
                        f"Per-channel overrides that specify {low}/{high} must do so for all channels, "
                        f"but tensor '{name}' is missing them at index {index}."
                    )
            if normalize_axis(channel.get("axis", axis), len(shape))[1] != axis:
                return f"Channel axis for tensor '{name}' does not match at index {index}."
            for key in _SAME_IN_ALL_CHANNELS:
                if key in channel and channel[key] != first.get(key):
                    return f"Channel {key} value for tensor '{name}' does not match at index {index}."
        return None

    def update_tensor_overrides(
        self,
        tensor_name: str,
        new_vals: Mapping[str, Any],
        channels: Sequence[int] | None = None,
        overwrite: bool = True,
    ) -> bool:
        """Set options of a tensor; return False if nothing is set, or would overwrite an option where it must not."""
        if not new_vals:
            return False
        present = self.overrides.get(tensor_name) or []
        chosen = [one for index, one in enumerate(present) if channels is None or index in channels]
        if not overwrite and any(set(new_vals) & set(one) for one in chosen):
            return False
        if not present:
            self.overrides[tensor_name] = present = [{}]
            chosen = [one for index, one in enumerate(present) if channels is None or index in channels]
        for one in chosen:
            one.update(new_vals)
        return True

    def get_node_output_qtype_info(
        self, output_name: str, default_qtype: Any, default_symmetric: bool | None = None
    ) -> QuantTypeInfo:
        """Return the type of an output of a node."""
        first = self._first(output_name) or {}
        return QuantTypeInfo(first.get("quant_type", default_qtype), first.get("symmetric", default_symmetric))

    def get_node_input_qtype_info(
        self,
        input_name: str,
        node_name: str,
        default_qtype: Any,
        default_symmetric: bool | None = None,
        default_reduce_range: bool | None = None,
    ) -> QuantTypeInfo:
        """Return the type of an input of a node, which conversions of the tensor may change."""
        first = self._first(input_name)
        if first is None:
            return QuantTypeInfo(default_qtype, default_symmetric, default_reduce_range)
        if "convert" not in first:
            return QuantTypeInfo.load_from_dict(first, default_qtype, default_symmetric, default_reduce_range)
        convert = first["convert"]
        info = QuantTypeInfo(first.get("quant_type", default_qtype), convert.get("symmetric", default_symmetric))
        if "recv_nodes" not in convert or node_name in convert["recv_nodes"]:
            info.quant_type = convert["quant_type"]
        return info

    def pprint_str(self, indent: int | None = None) -> str:
        """Return the overrides as text."""
        return json.dumps(self.overrides, default=str, indent=indent)

    def empty(self) -> bool:
        """Return True if there are no overrides."""
        return not self.overrides

    def get_dict(self) -> dict[str, list[dict[str, Any]]]:
        """Return the overrides."""
        return self.overrides

    def __setitem__(self, key: str, value: list[dict[str, Any]]) -> None:
        self.overrides[key] = value

    def __getitem__(self, key: str) -> list[dict[str, Any]]:
        return self.overrides[key]

    def __delitem__(self, key: str) -> None:
        del self.overrides[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.overrides)

    def __len__(self) -> int:
        return len(self.overrides)

    def __str__(self) -> str:
        return str(self.overrides)
