"""Planted mistakes in the discrete kernels. The law of a mutant is that of its sampler in `test_discrete_laws.py`."""

import jax
import jax.numpy as jnp
import numpy as np

from mutants import Mutant, sampler_module
from terrazzo.samplers.parts import acceptance, informed, randomness
from terrazzo.samplers.parts.ratios import site_log_probs


def no_hastings(key, state, proposed, log_hastings=0.0, *, num_evaluations):
    return acceptance.metropolis_hastings(key, state, proposed, 0.0, num_evaluations=num_evaluations)


def always_accepts(key, state, proposed, log_hastings=0.0, *, num_evaluations):
    _, info = acceptance.metropolis_hastings(key, state, proposed, log_hastings, num_evaluations=num_evaluations)
    return proposed, info


def inverted(key, state, proposed, log_hastings=0.0, *, num_evaluations):
    return acceptance.metropolis_hastings(key, state, proposed, -log_hastings, num_evaluations=num_evaluations)


def reflects_past_the_wall(key, space, theta, probability, boundary):
    """-1 goes to +1: the wall stands on a value, and its neighbour is proposed twice as often."""
    move_key, way_key = randomness.split(key, 2)
    is_moving = randomness.bernoulli_rows(move_key, jnp.full(space.num_dims, jnp.log(probability)))
    stepped = theta + 2 * randomness.uniform_rows(way_key, np.full(space.num_dims, 2)) - 1
    sizes = jnp.asarray(space.sizes)
    stepped = jnp.where(stepped < 0, 1, jnp.where(stepped >= sizes, sizes - 2, stepped))
    return jnp.where(is_moving, stepped, theta)


def tempered_conditionals(target, theta, log_prob, i):
    return 0.9 * site_log_probs(target, theta, log_prob, i)


class StaleGradient:
    """The proposal is given the gradient of the state before it."""

    def __init__(self):
        self.last = None

    def at_start(self, target, position):
        state = informed.GradientState(position, target.log_prob(position), informed.gradient(target, position))
        self.last = state.gradient
        return state

    def at_proposal(self, target, position):
        return informed.GradientState(position, target.log_prob(position), self.last)


def with_stale_gradient(name, sampler):
    stale = StaleGradient()
    changes = ((informed, "evaluate", stale.at_start), (sampler_module(sampler), "evaluate", stale.at_proposal))
    return Mutant(name, sampler, changes)


def broken(name, sampler, module, attribute, replacement, options={}, *, is_sampled=False):  # noqa: B006
    return Mutant(name, sampler, ((sampler_module(module), attribute, replacement),), options, is_sampled)


def log_path_with_replacement(log_weights, is_visited, log_never, reverse):
    total = jnp.logaddexp(log_never, jax.nn.logsumexp(jnp.where(is_visited, log_weights, -jnp.inf)))
    return jnp.sum(jnp.where(is_visited, log_weights - total, 0.0))


def log_path_one_way(log_weights, is_visited, log_never, reverse):
    return jnp.zeros(()) if reverse else LOG_PATH(log_weights, is_visited, log_never, reverse)


def reflected(moved, sizes, boundary):
    """Reflection at both walls: fine for independent coordinates, wrong for correlated steps."""
    folded = moved % (2 * sizes)
    return jnp.where(folded >= sizes, 2 * sizes - 1 - folded, folded), jnp.asarray(True)


def directed_generators(moves, sizes, theta):
    """One switch per move and not per exchange: undoing a move is no longer its own generator."""
    return jnp.arange(moves.num_moves) % int((sizes * (sizes - 1) // 2).sum())


LOG_PATH = sampler_module("path_auxiliary").log_path
CORRELATED = {"scale": 3.0, "factor": np.array([[1.0, 0, 0], [1.0, 0.2, 0], [-0.9, -0.3, 0.3]])}
SAME_KEY = lambda key, num=2: [key] * num

# fmt: off
MUTANTS = [
    broken("metropolis always accepts", "metropolis", "metropolis", "metropolis_hastings", always_accepts),
    broken("reflection past the wall", "metropolis", "metropolis", "propose", reflects_past_the_wall,
           {"probability": 0.4}),
    broken("floor instead of round", "integer_metropolis", "integer_metropolis", "whole",
           lambda change: jnp.floor(change).astype(jnp.int32)),
    broken("reflection of correlated steps", "integer_metropolis", "integer_metropolis", "bounded", reflected,
           CORRELATED),
    broken("tempered conditionals", "gibbs", "gibbs", "site_log_probs", tempered_conditionals),
    broken("reused key", "gibbs_with_gradients", "parts.randomness", "split", SAME_KEY, is_sampled=True),
    broken("liu without its ratio", "metropolised_gibbs", "gibbs", "log_sum_without",
           lambda logits, index: jnp.zeros(())),
    broken("interacting sites in one colour", "coloured_gibbs", "coloured_gibbs", "checked_colours",
           lambda target, colours: tuple(colours), {"colours": (0, 0, 0)}),
    broken("values beyond the range", "block_gibbs", "blocks", "_is_offset",
           lambda grid, sizes: jnp.ones(len(grid), bool), {"block_size": 2}),
    broken("ball not re-centred", "hamming_ball", "blocks", "draw_centre",
           lambda key, grid, is_valid: jnp.zeros(grid.shape[1], jnp.int32)),
    broken("swaps always accepted", "swap", "pairs", "metropolis_hastings", always_accepts),
    broken("a line drawn without its weights", "pair_gibbs", "blocks", "candidate_log_probs",
           lambda target, theta, sites, values, known, value: jnp.zeros(values.shape[0]) + value, {"reach": "line"}),
    broken("slice too deep", "slice_gibbs", "slice_gibbs", "draw_level",
           lambda key, log_prob: log_prob - 1.5 * jax.random.exponential(key, (), log_prob.dtype)),
    broken("locally balanced without Z", "locally_balanced", "locally_balanced", "metropolis_hastings", no_hastings),
    broken("locally balanced with Z inverted", "locally_balanced", "locally_balanced", "metropolis_hastings", inverted),
    broken("unbalanced function", "zanella", "locally_balanced", "balancing_function",
           lambda name: lambda log_ratio: 0.7 * log_ratio),
    broken("holding time ignored", "zanella", "zanella", "holding_time", lambda key, log_rate: jnp.full((), 0.3)),
    broken("switches flip when enough are on", "tabu", "tabu", "flip_log_rate",
           lambda on, off: jnp.where(on > off, on, -jnp.inf)),
    broken("directed generators", "tabu", "tabu", "generators", directed_generators, {"duration": 5.0}),
    with_stale_gradient("stale gradient", "gibbs_with_gradients"),
    with_stale_gradient("stale gradient along a path", "path_auxiliary"),
    broken("gradient proposal taken for symmetric", "gibbs_with_gradients", "gibbs_with_gradients",
           "metropolis_hastings", no_hastings),
    broken("langevin without correction", "discrete_langevin", "parts.informed", "metropolis_hastings", always_accepts),
    broken("langevin without hastings", "discrete_langevin", "parts.informed", "metropolis_hastings", no_hastings),
    broken("dlmc without hastings", "dlmc", "parts.informed", "metropolis_hastings", no_hastings),
    broken("reverse path forgotten", "path_auxiliary", "path_auxiliary", "log_path", log_path_one_way),
    broken("path with replacement", "path_auxiliary", "path_auxiliary", "log_path", log_path_with_replacement),
    broken("noise not seen from there", "any_scale", "any_scale", "tilt_from_there",
           lambda tilt, pull, e: (tilt, jnp.sum(e * (tilt - 0.5 * pull))), {"scale": 2.5, "curvature": "steep"}),
    broken("density of the noise forgotten", "any_scale", "any_scale", "tilt_from_there",
           lambda tilt, pull, e: (tilt - pull, jnp.zeros(())), {"scale": 2.5, "curvature": "steep"}),
]
# fmt: on
