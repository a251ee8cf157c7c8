"""Corpora: manifests, feature cache, batches, recipes."""
