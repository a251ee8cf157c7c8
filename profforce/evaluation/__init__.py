"""How a free run fails: symbols, stops and distances against a known truth, without any ASR."""
