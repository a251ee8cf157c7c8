"""Layers: each attention and block with its parallel and its step form side by side."""
