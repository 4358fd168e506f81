"""The engine that applies rules: index of rules, worklist, patches."""
