"""Read-only questions about Core graphs: views, constants, patterns, control flow, loops of stable shape."""
