"""The definitions, one file a family."""
