"""Pairwise targets: fields on sites, couplings between equal neighbours, given or found from log pi.

    log pi(theta) = constant + sum_i h_i(theta_i) + sum_(i,j) J_ij [theta_i = theta_j]

This is the Potts form; for binary variables it is every pairwise model (Ising, Boltzmann machine, QUBO). The terms come
from the target's own function if that is an `AbstractPairModel`, else from what is read of
it (`targets.structure`), else by finite differences: with f_i = f(theta_i = 1) and f_ij = f(theta_i = theta_j = 1), all
else 0, J_ij = (f_ij - f_i - f_j + f_0) / 2. They are verified on random configurations before use.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from terrazzo.errors import OptionError, UnsupportedError
from terrazzo.errors.arguments import shown
from terrazzo.runtime.compilation import jit
from terrazzo.targets.interactions import evaluate
from terrazzo.targets.pair_models import AbstractPairModel, Pairwise, energy_of
from terrazzo.targets.reading import structure_of
from terrazzo.targets.target import Target

NUM_VERIFIED = 64
TOLERANCE = 1000.0  # units in the last place of the largest |log pi|


def fields_of_base(target: Target) -> Array | None:
    """(1 - beta) times the fields of what a ladder starts from; None where that is the counting measure."""
    if target.base is not None and target.base.has_edges:
        raise UnsupportedError("reference", "ties sites together", "use the kernel swendsen_wang, or a Gibbs sweep")
    return target.of_base(lambda q0: q0.terms.fields)


def binary_form(terms: Pairwise) -> tuple[Float[Array, " dim"], Float[Array, "dim dim"]]:
    """(a, W) with log pi = constant + a's + s'Ws / 2 for s in {0, 1}^d; W symmetric with zero diagonal.

    From [s_i = s_j] = 1 - s_i - s_j + 2 s_i s_j: W_ij = 2 J_ij and a_i = h_i(1) - h_i(0) - sum_j J_ij.
    """
    fields, couplings = jnp.asarray(terms.fields), jnp.asarray(terms.couplings)
    i, j = terms.edges[:, 0], terms.edges[:, 1]
    num_dims = fields.shape[0]
    dense = jnp.zeros((num_dims, num_dims), fields.dtype).at[i, j].add(couplings).at[j, i].add(couplings)
    return fields[:, 1] - fields[:, 0] - dense.sum(axis=1), 2 * dense


def untempered(target: Target) -> Target:
    """The target at inverse temperature 1."""
    if target.inverse_temperature is None:
        return target
    return eqx.tree_at(lambda t: t.inverse_temperature, target, None, is_leaf=lambda x: x is None)


def inverse_temperature(target: Target) -> Float[Array, ""]:
    """The target's inverse temperature, 1 if it has none."""
    beta = 1.0 if target.inverse_temperature is None else target.inverse_temperature
    return jnp.asarray(beta, jnp.result_type(float))


def _differences(target: Target) -> tuple[Array, Array]:
    """Fields (d, K) and dense couplings (d, d) by finite differences from the configuration 0."""
    num_dims, size = target.space.num_dims, target.space.max_size
    zero = jnp.zeros(num_dims, jnp.int32)
    sites = jnp.arange(num_dims, dtype=jnp.int32)

    @jax.jit
    def tables() -> tuple[Array, Array, Array]:
        values = jnp.arange(size, dtype=jnp.int32)
        singles = jax.vmap(lambda i: jax.vmap(lambda k: target.log_prob(zero.at[i].set(k)))(values))(sites)
        both = lambda i, j: target.log_prob(zero.at[i].set(1).at[j].set(1))
        pairs = jax.lax.map(lambda i: jax.vmap(lambda j: both(i, j))(sites), sites)
        return target.log_prob(zero), singles, pairs

    base, singles, pairs = tables()
    first = singles[:, 1]
    couplings = (pairs - first[:, None] - first[None, :] + base) / 2
    couplings = jnp.where(jnp.eye(num_dims, dtype=bool), 0.0, (couplings + couplings.T) / 2)
    shift = jnp.where(jnp.arange(size)[None, :] == 0, 0.0, couplings.sum(axis=1)[:, None])
    return singles - base + shift, couplings


def _is_concrete(target: Target) -> bool:
    return not any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(target))


def _read_terms(target: Target) -> Pairwise | None:
    """The terms as they are read from a plain function: no d^2 evaluations; None where it has no such form."""
    structure = structure_of(target)
    form = None if structure is None or structure.is_whole else structure.potts
    if form is None or not np.isfinite(form.fields[:, 0]).all():
        return None
    dtype = jnp.result_type(float)
    fields = form.fields - form.fields[:, :1]
    return Pairwise(fields.astype(dtype), form.edges.astype(np.int32), form.couplings.astype(dtype))


def pairwise_terms(target: Target) -> Pairwise:
    """The terms of a target, verified; raises `UnsupportedError` if it is not pairwise.

    Inside a compiled function whose *target* is an argument nothing can be verified or left out; the terms are then
    dense. `prepare` of the samplers, which the runner calls beforehand, avoids that.

    >>> import terrazzo as tz
    >>> target = tz.Target(lambda s: 1.5 * s[0] * s[1] - s[2], tz.binary(3))
    >>> terms = pairwise_terms(target)
    >>> terms.edges.tolist(), terms.couplings.tolist()
    ([[0, 1]], [0.75])
    """
    target = untempered(target)
    sizes = target.space.sizes
    if (sizes != sizes[0]).any():
        raise UnsupportedError("target", "has variables of different sizes", "pairwise methods need one size for all")
    if isinstance(target.log_prob_fn, AbstractPairModel):
        terms = Pairwise(*target.log_prob_fn.pairwise())
        if _is_concrete(target):
            with jax.ensure_compile_time_eval():
                _verify(target, terms)
        return terms
    rows, columns = np.triu_indices(target.space.num_dims, 1)
    if not _is_concrete(target):
        traced, dense = _differences(target)
        return Pairwise(traced, np.stack([rows, columns], axis=1).astype(np.int32), dense[rows, columns])
    with jax.ensure_compile_time_eval():
        read = _read_terms(target)
        if read is not None:
            _verify(target, read)
            return read
        tables = _differences(target)
        fields, couplings = np.asarray(tables[0]), np.asarray(tables[1])
        if not (np.isfinite(fields).all() and np.isfinite(couplings).all()):
            raise UnsupportedError("target", "has impossible configurations", "pairwise methods need finite terms")
        noise = 16 * np.finfo(fields.dtype).eps * max(1.0, np.abs(fields).max())
        is_edge = np.abs(couplings[rows, columns]) > noise
        edges = np.stack([rows[is_edge], columns[is_edge]], axis=1).astype(np.int32)
        terms = Pairwise(fields, edges, couplings[rows, columns][is_edge])
        _verify(target, terms)
    return terms


def checked_terms(target: Target, terms: Any) -> Pairwise:
    """Terms that the user gives, verified; those of the target itself if there are none."""
    if terms is None:
        return pairwise_terms(target)
    if not isinstance(terms, Pairwise):
        raise OptionError("terms", f"must be Pairwise terms, got {shown(terms)}", "leave them out to have them found")
    if _is_concrete(target):
        with jax.ensure_compile_time_eval():
            _verify(untempered(target), terms)
    return terms


@jit
def _energies(terms: Pairwise, theta: Array) -> Array:
    return jax.vmap(lambda one: energy_of(terms, one))(theta)


def _verify(target: Target, terms: Pairwise) -> None:
    rng = np.random.default_rng(0)
    points = rng.integers(0, target.space.sizes, (NUM_VERIFIED, target.space.num_dims)).astype(np.int32)
    exact, ours = evaluate(target, points), np.asarray(_energies(terms, jnp.asarray(points)), float)
    with np.errstate(invalid="ignore"):
        gap = np.ptp(exact - ours)
    eps = np.finfo(jnp.result_type(float)).eps
    if not gap <= TOLERANCE * eps * max(1.0, np.abs(exact).max()):
        raise UnsupportedError(
            "target",
            f"is not a sum of fields and pair couplings (terms differ from log_prob by {gap:.3g})",
            "use a general sampler such as gibbs",
        )


def check_pairwise(target: Target) -> None:
    """Raises unless the target is pairwise."""
    pairwise_terms(target)
