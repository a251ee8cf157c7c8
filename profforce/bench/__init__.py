"""Benchmarks: each suite times several forms of one computation in turn and checks them."""
