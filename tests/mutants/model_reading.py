"""Mistakes in reading NumPyro models."""

import jax.numpy as jnp

from mutants import Mutant
from terrazzo.models.numpyro_model import Density
from terrazzo.models.numpyro_sites import TransformBijection

_sum = Density._sum


def _only_latent(self, values, is_counted, *, is_normalised=False):
    return _sum(self, values, lambda site: site["name"] in self.reading.names, is_normalised=is_normalised)


def _everything(self, values, is_counted, *, is_normalised=False):
    return _sum(self, values, lambda site: True, is_normalised=is_normalised)


def _never_normalised(self, values, is_counted, *, is_normalised=False):
    return _sum(self, values, is_counted)


MUTANTS = (
    Mutant("the data are forgotten", "joint", ((Density, "_sum", _only_latent),)),
    Mutant("the prior counts the data", "prior", ((Density, "_sum", _everything),)),
    Mutant("a cut prior is not normalised", "prior", ((Density, "_sum", _never_normalised),)),
    Mutant(
        "the Jacobian of a bijection is forgotten", "jacobian",
        ((TransformBijection, "log_jacobian", lambda self, y: jnp.zeros(())),),
    ),
)  # fmt: skip
