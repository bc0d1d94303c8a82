"""The paper's experiments, their report, and the demonstration."""
