"""Live models: immutable versions, transactions and recompilation."""
