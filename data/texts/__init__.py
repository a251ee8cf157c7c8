"""Sentences of the demo corpus, shipped with the package as ``profforce.texts``."""
