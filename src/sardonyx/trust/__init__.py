"""Trust in model files: encryption, signatures, bills of materials."""
