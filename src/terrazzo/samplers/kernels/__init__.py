"""The algorithms, one a file: each a factory `target -> SamplingAlgorithm`."""
