"""The intermediate representation: types, values, primitives and the printed form."""
