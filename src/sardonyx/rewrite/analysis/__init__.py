"""Questions about models: facts, types, sizes, names, structure, counts."""
