"""Latent samplers, one a file: ordinary samplers whose position is theta and whose moves are made in z."""
