"""What can be wrong with a corpus: the kinds of defects, where each is found, what mends it."""
