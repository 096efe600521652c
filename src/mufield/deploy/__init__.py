"""Policies that leave the laboratory: array files for NumPy alone, and ONNX graphs."""
