"""Kernel Ladder: for every layer of GPT-2, kernels that get faster one idea at a time."""
