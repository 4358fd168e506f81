"""The Open Inference Protocol without a wire: requests, answers, element types, limits, refusals."""
