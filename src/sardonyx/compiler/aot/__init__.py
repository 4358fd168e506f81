"""C libraries: a program as a shared library that needs neither Python nor LLVM.

The duties of a session (tape, memory, threads, calls) are generated code here, and the tape is data with relocations,
which the linker fills with addresses.
"""
