"""Variable orders: a scrambled chain is unscrambled, and a small network learns it better for that."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import terrazzo as tz
from terrazzo.errors import OptionError
from terrazzo.problems import ising_torus
from terrazzo.targets.interactions import mixed_differences
from terrazzo.transports import deserialise, serialise
from terrazzo.transports.ordering import adjacency_order, coupling_order, coupling_strengths

NUM_SITES = 24
PLACES = np.random.default_rng(5).permutation(NUM_SITES)  # the chain runs through the coordinates in this order


def chain_log_prob(theta):
    spins = 2.0 * theta.astype(float)[PLACES] - 1.0
    return 0.9 * jnp.sum(spins[1:] * spins[:-1])


def chain_target(kind):
    space = tz.binary(NUM_SITES)
    if kind == "blackbox":
        return tz.Target(tz.blackbox(lambda t: float(np.sum(np.abs(np.diff(t[PLACES].astype(float))) * -1.8))), space)
    if kind == "categorical":
        table = jnp.asarray(np.random.default_rng(0).normal(size=(3, 3)))
        return tz.Target(lambda t: table[t[PLACES][1:], t[PLACES][:-1]].sum(), tz.categorical(3, NUM_SITES))
    return tz.Target(chain_log_prob, space)


@pytest.mark.parametrize("kind", ["differentiable", "blackbox", "categorical"])
def test_a_scrambled_chain_is_unscrambled(kind):
    """Every coordinate but the first is placed next to one that is placed already."""
    target = chain_target(kind)
    order = coupling_order(target)
    assert sorted(order) == list(range(NUM_SITES))
    where = np.argsort(PLACES)[order]  # places along the chain
    for n in range(1, NUM_SITES):
        assert np.abs(where[:n] - where[n]).min() == 1
    # ties follow the chain: at most one jump, from the end back to where it started
    assert (np.abs(np.diff(where)) > 1).sum() <= (1 if kind != "categorical" else NUM_SITES)


def test_differences_and_second_derivatives_agree():
    target = chain_target("differentiable")
    theta = np.zeros(NUM_SITES, np.int32)
    by_differences, noise = mixed_differences(target, theta, 1 - theta)
    by_hessian = coupling_strengths(target)
    assert noise < 1e-10
    np.testing.assert_allclose(by_differences, 4 * by_hessian, atol=1e-9)  # the spread of a bit is 1/2


def test_hard_constraints_are_the_strongest_couplings():
    def log_prob(t):
        return jnp.where(t[0] == t[3], -jnp.inf, 0.0) + jnp.where(t[0] == t[1], 1.0, 0.0)

    strengths = coupling_strengths(tz.Target(log_prob, tz.categorical(3, 4)), num_points=8)
    assert strengths[0, 3] > strengths[0, 1] > 0
    assert strengths[0, 2] == strengths[1, 2] == strengths[2, 3] == 0


def test_lattices_grow_as_one_piece():
    target = ising_torus(6, 0.4).target
    order = coupling_order(target)
    graph = coupling_strengths(target) > 0
    assert all(graph[order[n], order[:n]].any() for n in range(1, 36))


def test_parts_come_one_after_the_other():
    strengths = np.zeros((6, 6))
    strengths[0, 2] = strengths[2, 4] = 1.0
    strengths[1, 3] = 0.5
    order = adjacency_order(strengths + strengths.T).tolist()
    assert set(order[:3]) == {0, 2, 4}
    assert set(order[3:5]) == {1, 3}


def test_budget_points_and_bad_options():
    target = chain_target("blackbox")
    assert coupling_order(target, max_evaluations=10).tolist() == list(range(NUM_SITES))
    ones = np.ones((2, 3, NUM_SITES), np.uint8)
    assert sorted(coupling_order(target, theta=ones)) == list(range(NUM_SITES))
    with pytest.raises(OptionError, match="theta"):
        coupling_order(target, theta=np.ones((2, 5)))
    with pytest.raises(OptionError, match="num_points"):
        coupling_order(target, num_points=0)


def test_a_small_network_learns_more_in_this_order():
    """Held-out loss on exact draws of a scrambled forest of hubs with leaves, after the same short training.

    Leaves are independent given their hub, and hard to predict before it is known. Measured: 30.09 against 30.18 to
    30.43 over four random orders and two seeds (the entropy is 29.93). On a chain every order is about as good: there
    the conditionals of any order are linear in the neighbours.
    """
    num_hubs, num_leaves, coupling, rng = 4, 15, 0.8, np.random.default_rng(0)
    num_sites = num_hubs * (num_leaves + 1)
    places = rng.permutation(num_sites)
    hubs = np.repeat(np.arange(num_hubs), num_leaves)
    leaves = np.arange(num_hubs, num_sites)

    def log_prob(theta):
        spins = 2.0 * theta.astype(float)[places] - 1.0
        return coupling * jnp.sum(spins[hubs] * spins[leaves])

    target = tz.Target(log_prob, tz.binary(num_sites))
    spins = rng.choice([-1, 1], (24_000, num_sites))
    agrees = rng.random((24_000, len(leaves))) < np.exp(coupling) / (2 * np.cosh(coupling))
    spins[:, leaves] = spins[:, hubs] * np.where(agrees, 1, -1)
    draws = np.empty(spins.shape, np.int32)
    draws[:, places] = spins > 0
    train, test = draws[:20_000], jnp.asarray(draws[20_000:])
    orders = {
        "found": coupling_order(target),
        "random": rng.permutation(num_sites),
        "other": rng.permutation(num_sites),
    }
    loss = {}
    for name, order in orders.items():
        transport = tz.transports.autoregressive_transport(
            target.space, key=jax.random.key(0), width=8, num_blocks=0, order=order
        )
        options = {"num_steps": 800, "batch_size": 128, "learning_rate": 5e-3}
        fitted = tz.fit(jax.random.key(1), transport, target, objective=tz.forward_kl(train), **options)
        loss[name] = -float(jax.jit(jax.vmap(fitted.transport.log_prob))(test).mean())
    assert loss["found"] < min(loss["random"], loss["other"]) - 0.04


def test_the_order_is_stored():
    target = chain_target("differentiable")
    transport = tz.transports.autoregressive_transport(
        target.space, key=jax.random.key(0), order=coupling_order(target)
    )
    back = deserialise(*serialise(transport), target.space)
    assert (np.asarray(back.order) == coupling_order(target)).all()
    z = jax.random.normal(jax.random.key(1), (NUM_SITES,))
    assert (back.push(z).theta == transport.push(z).theta).all()
