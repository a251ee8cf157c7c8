"""A trained run as ONNX graphs, and a loop over them that needs NumPy and ONNX Runtime alone."""
