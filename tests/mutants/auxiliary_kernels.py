"""Planted mistakes in samplers with auxiliary variables, clusters and temperatures.

The law of a mutant is a key of `LAWS` in `test_auxiliary_laws.py`.
"""

import jax
import jax.numpy as jnp

from mutants import Mutant, sampler_module
from terrazzo.runtime.compilation import jit
from terrazzo.samplers.parts.energy import log_change
from terrazzo.targets.target import Target

dhmc, binary, integral, cluster, tempering, smc = map(
    sampler_module,
    ("discontinuous_hmc", "binary_hmc", "gaussian_integral_hmc", "swendsen_wang", "tempering", "smc"),
)
AT_WALL, HIT_WALL, POSSIBLE, TEMPERED = dhmc.at_wall, binary.hit_wall, smc._possible_particles, Target.tempered
DRAW, HMC, ROOT = integral.draw_auxiliary, integral.blackjax.hmc, integral.square_root
LOG_BOND, LOG_SWAP, EXCHANGED = cluster.log_bond_probability, tempering.log_swap, tempering.exchanged


def free_jump(speed, change, is_inside):
    is_crossed, _ = AT_WALL(speed, change, is_inside)
    return is_crossed, jnp.where(is_crossed, speed, -speed)


def stopped_at_the_border(speed, change, is_inside):
    return AT_WALL(speed, change, jnp.ones_like(is_inside))


def free_hit(target, site, state, energy):
    new, _, is_crossed = HIT_WALL(target, site, state, energy)
    return new, energy, is_crossed


def bold_hit(target, site, state, energy):
    new, paid, is_crossed = HIT_WALL(target, site, state, energy.at[site].add(1e6))
    return new, paid.at[site].add(-1e6), is_crossed


def half_squared_normal(key, shape, dtype):
    return jax.random.normal(key, shape, dtype) ** 2 / 2


def always_accepting_hmc(*arguments):
    good = HMC(*arguments)

    def step(key, state):
        _, info = good.step(key, state)
        return info.proposal, info

    return good._replace(step=step)


def once_lowered(edges, is_open, num_sites, table=None):
    """Labels of neighbours only: chains of open edges fall apart."""
    i, j = jnp.asarray(edges)[:, 0], jnp.asarray(edges)[:, 1]
    low = jnp.where(is_open, jnp.minimum(i, j).astype(jnp.int32), num_sites)
    return jnp.arange(num_sites, dtype=jnp.int32).at[i].min(low).at[j].min(low)


def log_prob_left_behind(is_swapped, places, *rows):
    return (*EXCHANGED(is_swapped, places), *rows)


def without_volume(key, target, num_particles):
    theta, log_count = POSSIBLE(key, target, num_particles)
    return theta, log_count - jnp.log(jnp.asarray(target.space.sizes, log_count.dtype)).sum()


def as_if_all_were_possible(key, target, num_particles):
    theta, log_count = POSSIBLE(key, target, num_particles)
    return theta, jnp.log(jnp.asarray(target.space.sizes, log_count.dtype)).sum()


def in_smc(*change):
    """The loop of SMC is compiled once for all targets of a shape: a mutant needs one of its own."""
    return change, (smc, "_run", jit(smc._run.__wrapped__))


# fmt: off
MUTANTS = [
    Mutant("the jump is not paid for", "discontinuous_hmc", ((dhmc, "at_wall", free_jump),)),
    Mutant("stops at the border instead of turning back", "discontinuous_hmc",
           ((dhmc, "at_wall", stopped_at_the_border),)),
    Mutant("Gaussian momentum", "discontinuous_hmc", ((jax.random, "laplace", jax.random.normal),)),
    Mutant("energy with the wrong sign", "discontinuous_hmc", ((dhmc, "log_change", lambda a, b: log_change(b, a)),)),
    Mutant("the jump is not paid for", "binary_hmc", ((binary, "hit_wall", free_hit),)),
    Mutant("energy of one normal only", "binary_hmc", ((jax.random, "exponential", half_squared_normal),)),
    Mutant("crosses whatever it costs", "binary_hmc", ((binary, "hit_wall", bold_hit),)),
    Mutant("speed of the wrong law", "binary_hmc exponential", ((jax.random, "normal", jax.random.laplace),)),
    Mutant("the diagonal is not taken back", "gaussian_integral_hmc",
           ((integral, "square_root", lambda couplings: (ROOT(couplings)[0], jnp.zeros((), couplings.dtype))),)),
    Mutant("half the noise in v", "gaussian_integral_hmc",
           ((integral, "draw_auxiliary",
             lambda key, root, spins: 0.5 * (DRAW(key, root, spins) + spins @ root)),)),
    Mutant("always accepts", "gaussian_integral_hmc", ((integral.blackjax, "hmc", always_accepting_hmc),)),
    Mutant("bonds of twice the coupling", "swendsen_wang",
           ((cluster, "log_bond_probability", lambda couplings: LOG_BOND(2 * couplings)),)),
    Mutant("fields ignored", "swendsen_wang", ((cluster, "cluster_sums", lambda labels, gain: jnp.zeros_like(gain)),)),
    Mutant("fields overlooked", "swendsen_wang", ((cluster, "_has_fields", lambda terms: False),)),
    Mutant("labels not followed to their root", "swendsen_wang", ((cluster, "clusters", once_lowered),)),
    Mutant("bonds on unsatisfied edges", "swendsen_wang",
           ((cluster, "satisfied", lambda theta, edges, couplings: jnp.ones(couplings.shape, bool)),)),
    Mutant("swap ratio inverted", "parallel_tempering",
           ((tempering, "log_swap", lambda betas, log_probs, *rest: LOG_SWAP(betas, -log_probs, *rest)),)),
    Mutant("log pi stays behind at a swap", "parallel_tempering",
           ((tempering, "exchanged", log_prob_left_behind),)),
    Mutant("overlapping swaps", "parallel_tempering",
           ((tempering, "tried_pairs", lambda num_pairs, parity: jnp.ones(num_pairs, bool)),)),
    Mutant("tempered log pi in the swap", "parallel_tempering",
           ((tempering, "untempered_log_prob", lambda beta, log_prob, of_base: log_prob),)),
    Mutant("the impossible reaches the cold end", "softened tempering",
           ((tempering, "kept_possible", lambda log_rates, log_prob_below: log_rates),)),
    Mutant("the volume of the space forgotten", "smc", in_smc(smc, "_possible_particles", without_volume)),
    Mutant("impossible starts not counted", "smc", in_smc(smc, "_possible_particles", as_if_all_were_possible)),
    Mutant("one temperature too cold", "smc",
           in_smc(Target, "tempered", lambda target, beta: TEMPERED(target, 0.5 + 0.5 * beta))),
]
# fmt: on
