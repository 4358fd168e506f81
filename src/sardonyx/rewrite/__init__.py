"""The optimizer: rules and the engine that applies them, inference, verification, conversion, surgery."""
