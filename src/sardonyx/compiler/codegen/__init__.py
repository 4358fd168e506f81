"""Scalar and vector code for elements: loads, stores, arithmetic, vector math and loop nests."""
