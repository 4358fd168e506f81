"""LLVM: IR text, object code, linking and parallel compilation."""
