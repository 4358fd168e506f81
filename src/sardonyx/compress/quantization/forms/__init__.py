"""Forms of quantized nodes beside QuantizeLinear and DequantizeLinear: operators on integers, packed weights."""
