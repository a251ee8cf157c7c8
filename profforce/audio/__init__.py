"""Mel definition, audio files, vocoders."""
