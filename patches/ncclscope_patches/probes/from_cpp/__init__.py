"""Record collectives that C++ posts inside torch, without a Python function to patch."""
