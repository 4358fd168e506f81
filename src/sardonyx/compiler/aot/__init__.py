"""C libraries: a program as a shared library that needs neither Python nor LLVM.

What a session does around a program (the tape, its memory, the threads, the call) is generated code here, and the tape
is data that the linker fills with addresses.
"""
