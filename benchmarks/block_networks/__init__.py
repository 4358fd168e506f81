"""Small networks of common building blocks, as PyTorch modules with example inputs, for ``blocks.py``.

Each network is one block of a family of architectures, at the sizes of a small model of this family, so that a slow
kernel or a missing fusion is visible beside the peers.
"""

from block_networks import images, sequences, structures
from block_networks.registry import NETWORKS

__all__ = ["NETWORKS", "images", "sequences", "structures"]
