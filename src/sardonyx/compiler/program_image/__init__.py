"""Program images: serialized programs, which another process restores without compiling.

An image has a head in JSON (values, launches, sizes), object code, and arrays (prepared constants). The head has only
the parts of values needed for execution: for values in memory, the types without the computation; for interpreted
values, the full definition. Host functions are stored by name.
"""
