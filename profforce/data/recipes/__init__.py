"""Recipes that make or fetch a corpus."""
