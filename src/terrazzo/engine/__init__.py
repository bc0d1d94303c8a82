"""Runs kernels over chains in chunks, within a budget."""
