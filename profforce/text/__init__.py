"""Text front end: normalisation, symbols, tokenizer."""
