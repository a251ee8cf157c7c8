"""From text to audio."""
