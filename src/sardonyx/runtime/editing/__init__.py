"""Drafts of live edits: validation, attachment and history."""
