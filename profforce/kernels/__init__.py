"""Causal linear attention: reference, fast forms and dispatch."""
