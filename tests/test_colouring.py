"""Colourings: found, verified, refused; and coloured Gibbs where colours really share sites."""

from functools import partial
from itertools import pairwise

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import terrazzo as tz
from scripted import stationary, transition_matrices
from small_targets import log_table
from terrazzo import samplers
from terrazzo.errors import UnsupportedError
from terrazzo.samplers.parts.colouring import find_colours, greedy_colours, verify_colours

SPACE = tz.Space(a=tz.binary(), b=tz.categorical(3), c=tz.integers(-1, 2))


def real(theta):
    return theta.astype(float)


class Chain(eqx.Module):
    """a - b - c: the ends do not interact. The cheap conditionals are off by a constant that depends on the rest."""

    left: jax.Array
    right: jax.Array

    def __call__(self, values):
        return self.left[values["a"], values["b"]] + self.right[values["b"], values["c"] + 1]

    def site_logits(self, theta, i):
        of_a = jnp.concatenate([self.left[:, theta[1]], jnp.zeros(2)])
        of_b = jnp.concatenate([self.left[theta[0]] + self.right[:, theta[2]], jnp.zeros(1)])
        return jnp.stack([of_a, of_b, self.right[theta[1]]])[i] + 3.0 * theta[(i + 1) % 3].astype(self.left.dtype)


def chain_target(seed=0, *, with_logits=False, impossible=False):
    rng = np.random.default_rng(seed)
    left, right = rng.normal(size=(2, 3)), rng.normal(size=(3, 4))
    if impossible:
        left[1, 0] = -np.inf
    fn = Chain(jnp.asarray(left), jnp.asarray(right))
    return tz.Target(fn, SPACE, site_logits=fn.site_logits if with_logits else None)


def stacked(targets):
    return jax.tree.map(lambda *a: jnp.stack(a), *[eqx.filter(t, eqx.is_array) for t in targets])


@pytest.mark.parametrize("with_logits", [False, True])
@pytest.mark.parametrize("name", ["gibbs", "metropolised_gibbs", "coloured_gibbs", "locally_balanced"])
def test_invariance_with_shared_colours_and_cheap_conditionals(name, with_logits):
    targets = [chain_target(seed, with_logits=with_logits, impossible=seed == 1) for seed in range(3)]
    options = {"colours": (0, 1, 0), "verify": False} if name == "coloured_gibbs" else {}
    P = transition_matrices(partial(samplers.get(name).factory, **options), targets[0], stacked(targets))
    pi = stationary(np.stack([log_table(t) for t in targets]))
    assert np.abs(np.einsum("ts,tsu->tu", pi, P) - pi).max() <= 1e-12


@pytest.mark.parametrize(
    "name", ["gibbs", "systematic_gibbs", "metropolised_gibbs", "coloured_gibbs", "locally_balanced"]
)
def test_cheap_conditionals_leave_the_true_log_prob_in_the_state(name):
    target = chain_target(with_logits=True)
    sampler = samplers.get(name).factory(target)
    state = sampler.init(jnp.zeros(3, jnp.int32), None)
    step = jax.jit(sampler.step)
    for number in range(20):
        state, info = step(jax.random.key(number), state)
        assert np.isclose(state.log_prob, target.log_prob(state.position), atol=1e-12)
    assert int(info.num_evaluations) == 1


def test_finds_the_graph_by_differences_and_by_the_hessian():
    assert find_colours(chain_target()) == (1, 0, 1)
    assert find_colours(chain_target(impossible=True)) == (1, 0, 1)
    smooth = tz.Target(lambda t: real(t).sum() - 0.1 * (real(t)[1:] * real(t)[:-1]).sum(), tz.integers(0, 4, shape=7))
    assert smooth.has_gradient
    colours = find_colours(smooth)
    assert max(colours) == 1
    assert all(a != b for a, b in pairwise(colours))


def test_an_interaction_the_hessian_cannot_see_is_found_by_verification():
    def log_prob(t):  # rounding hides the product from the derivative
        return 0.2 * real(t).sum() + 0.5 * jnp.round(real(t)[0]) * jnp.round(real(t)[2])

    target = tz.Target(log_prob, tz.integers(0, 3, shape=3))
    assert target.has_gradient
    colours = find_colours(target)
    assert colours[0] != colours[2]


def test_colours_that_share_interacting_sites_are_refused():
    target = chain_target()
    assert verify_colours(target, (0, 1, 0))
    assert not verify_colours(target, (0, 0, 1))
    with pytest.raises(UnsupportedError, match="sites 0 and 1 share colour 0 but interact"):
        samplers.coloured_gibbs.factory(target, colours=(0, 0, 1))
    wrong = tz.Target(lambda t: real(t)[0] * real(t)[1], tz.binary(2), colours=[0, 0], probe=False)
    with pytest.raises(UnsupportedError, match="sites 0 and 1"):
        samplers.coloured_gibbs.factory(wrong)


def test_greedy_colours_are_proper():
    rng = np.random.default_rng(0)
    graph = rng.random((30, 30)) < 0.15
    graph = (graph | graph.T) & ~np.eye(30, dtype=bool)
    colours = np.array(greedy_colours(graph))
    assert not (graph & (colours[:, None] == colours[None])).any()
