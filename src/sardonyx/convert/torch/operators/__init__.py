"""The operators of ATen as functions over Core, one file a family; :mod:`.registry` finds them by name."""
