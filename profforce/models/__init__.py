"""Batch model, recurrent mirror, discriminators, losses."""
