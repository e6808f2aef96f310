"""ONNX files as networks: read without weights, and run as operators of aten."""
