"""First answers while native code is compiled."""
