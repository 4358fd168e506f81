"""Read-only analyses of Core graphs: views, constants, patterns, control flow, shape stability."""
