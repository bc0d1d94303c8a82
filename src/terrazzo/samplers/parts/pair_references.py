"""What ladders of discrete variables may start from, in place of the uniform law.

   pi_beta(theta) is proportional to q0(theta)^(1 - beta) pi(theta)^beta

q0 is a product of sites, the prior or one that is fitted in warm-up, or a part of a pair model that can be summed out.
The nearer it is to pi, the fewer temperatures lie between them. It is normalised, so a ladder still gives log Z.

Reference: Surjanovic, Syed, Bouchard-Cote, Campbell (2022), Parallel tempering with a variational reference.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from terrazzo.samplers.parts.pairwise import Pairwise, pairwise_terms
from terrazzo.targets.interactions import evaluate, tolerance
from terrazzo.targets.mixed import of_reference
from terrazzo.targets.pair_models import PairReference
from terrazzo.targets.reading import structure_of
from terrazzo.targets.structure.halving import log_sum, parts
from terrazzo.targets.target import Target

UNIFORM_SHARE = 0.05  # of every site: what the cold chains have not shown, or a prior excludes, stays within reach
NUM_COMPARED = 64  # random configurations at which a prior is compared with the product that was read from it


def product_reference(log_probs: Any) -> PairReference:
    """A product of sites.

    Args:
        log_probs: Normalised, (site, value); 0 at what is no value.
    """
    dtype = jnp.result_type(float)
    terms = Pairwise(jnp.asarray(log_probs, dtype), np.zeros((0, 2), np.int32), jnp.zeros(0, dtype))
    return PairReference(terms, jnp.zeros((), dtype), has_fields=True)


def mixed_log_probs(weights: Float[Array, "site value"], sizes: np.ndarray) -> Float[Array, "site value"]:
    """Log-probabilities in proportion to weights, mixed with the uniform law at every site; without weights that law.

    >>> print(jnp.exp(mixed_log_probs(jnp.array([[9.0, 0.0, 0.0]]), np.array([2]))).round(3)[0, :2])
    [0.975 0.025]
    """
    is_value = jnp.asarray(np.arange(weights.shape[1]) < np.asarray(sizes)[:, None])
    uniform = is_value.astype(weights.dtype) / jnp.asarray(sizes, weights.dtype)[:, None]
    total = weights.sum(axis=1, keepdims=True)
    share = jnp.where(total > 0, weights / jnp.where(total > 0, total, 1.0), uniform)
    return jnp.where(is_value, jnp.log((1 - UNIFORM_SHARE) * share + UNIFORM_SHARE * uniform), 0.0)


def prior_reference(target: Target) -> PairReference | None:
    """The target's own reference, mixed with the uniform law; None where it has none, or none that is a product."""
    if target.reference is None:
        return None
    prior, sizes = of_reference(target), target.space.sizes
    structure = structure_of(prior)
    pairs = None if structure is None or structure.is_whole else structure.pairs
    if pairs is None or len(pairs.edges):
        return None
    theta = np.random.default_rng(0).integers(0, sizes, (NUM_COMPARED, len(sizes))).astype(np.int32)
    ours, exact = pairs.unary[np.arange(len(sizes)), theta].sum(axis=1) + pairs.constant, evaluate(prior, theta)
    is_possible = np.isfinite(exact)
    if (np.isfinite(ours) != is_possible).any():
        return None
    if np.abs(ours[is_possible] - exact[is_possible]).max(initial=0.0) > tolerance(exact[is_possible]):
        return None
    top = pairs.unary.max(axis=1, keepdims=True)
    weights = jnp.asarray(np.exp(pairs.unary - np.where(np.isfinite(top), top, 0.0)), jnp.result_type(float))
    return product_reference(mixed_log_probs(weights, sizes))


def parts_reference(target: Target) -> PairReference | None:
    """A pair model without the couplings between parts that can be summed out; None where that leaves none out.

    The couplings that are left out are those along which a recursive halving cuts the graph (`structure.halving`).
    """
    fields, edges, couplings = (np.asarray(x) for x in pairwise_terms(target))
    numbers = parts(len(fields), edges, couplings, fields.shape[1]) if len(edges) else None
    if numbers is None:
        return None
    is_inside = numbers[edges[:, 0]] == numbers[edges[:, 1]]
    if is_inside.all():
        return None
    log_z = log_sum(fields, edges[is_inside], couplings[is_inside])
    dtype = jnp.result_type(float)
    kept = Pairwise(
        jnp.asarray(fields, dtype), edges.astype(np.int32), jnp.asarray(np.where(is_inside, couplings, 0.0), dtype)
    )
    return PairReference(kept, jnp.asarray(log_z, dtype), has_fields=bool(np.ptp(fields, axis=1).any()))
