"""Tables from primitive to rule: types, sizes and numpy results."""
