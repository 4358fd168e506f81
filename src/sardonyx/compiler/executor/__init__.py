"""Generated code that executes a tape: fork-join workers, memory planning and sizes."""
