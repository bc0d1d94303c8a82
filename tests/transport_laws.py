"""The laws of transports as functions that return a violation, so that the same code judges members and mutants."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from terrazzo.transports import FlowTransport, cells, normal
from terrazzo.transports.dequantizers import FlowDequantizer

ALPHA = 1e-6


@eqx.filter_jit
def push_all(transport, z):
    return jax.vmap(transport.push)(z)


@eqx.filter_jit
def lift_all(transport, keys, theta):
    return jax.vmap(transport.lift)(keys, theta)


@eqx.filter_jit
def lift_in_parts(transport, keys, theta):
    """All of a batch wait for its last rejection: so only those of one part do."""
    return jax.lax.map(lambda part: jax.vmap(transport.lift)(*part), (keys, theta))


def quadrature_gap(transport):
    """max over theta of |integral of exp(v) over the cell - 1|, for d <= 2."""
    gap = flow_quadrature_gap if isinstance(transport, FlowTransport) else box_quadrature_gap
    return gap(transport)


@eqx.filter_jit
def _flow_integral(transport, theta, grid):
    """Sum over the grid of exp(v(z)) |dz/de|, where e parametrises the cell through the dequantizer's own map.

    The Jacobian of the grid's map is autodiff's, not the transport's own. In e the integrand is as smooth as a
    Gaussian, however sharp the dequantizer is.
    """
    real = theta.astype(grid.dtype)
    dequantizer = transport.inner.dequantizer if hasattr(transport, "inner") else transport.dequantizer

    def place(e):
        if isinstance(dequantizer, FlowDequantizer):
            context = dequantizer.context_net(2.0 * real / (transport._sizes() - 1.0) - 1.0)
            e = dequantizer.bijection.transform_and_log_det(e, context)[0]
            w = normal.normal_to_logistic(e)[0] if dequantizer.is_gaussian_tailed else e
        else:
            w = normal.normal_to_logistic(e)[0]
        return transport._inverse(cells.embed(real, w, transport._sizes()))[0]

    def one(e):
        slopes, z = jax.jacfwd(lambda e: (place(e),) * 2, has_aux=True)(e)
        pushed = transport.push(z)
        same = jnp.all(pushed.theta == theta)
        volume = jnp.abs(jnp.linalg.det(slopes))
        return jnp.where(same, jnp.exp(pushed.log_volume) * volume, 0.0)

    return jnp.sum(jax.lax.map(jax.vmap(one), grid))


def flow_quadrature_gap(transport):
    space = transport.space
    nodes, step = np.linspace(-5.6, 5.6, 2_001 if space.num_dims == 1 else 201, retstep=True)
    grid = jnp.asarray(
        np.stack(np.meshgrid(*[nodes] * space.num_dims, indexing="ij"), -1).reshape(-1, len(nodes), space.num_dims)
    )
    integrals = [float(_flow_integral(transport, jnp.asarray(theta), grid)) for theta in space.enumerate()]
    return np.abs(np.array(integrals) * step**space.num_dims - 1.0).max()


def box_masses(transport, z, theta):
    """(log mass, v) of cells whose sites have intervals of their own z given the rest: bisection with `push`.

    All sides of all cells are halved together, so that `push` is compiled once.
    """
    num_states, d = theta.shape
    theta, z = np.asarray(theta), np.tile(np.asarray(z), (2 * d, 1))
    row, site = np.arange(len(z)), np.repeat(np.arange(d), 2 * num_states)
    inside, outside = z[row, site], np.tile(np.repeat([-40.0, 40.0], num_states), d)
    log_volume = np.asarray(push_all(transport, jnp.asarray(z)).log_volume)[:num_states]
    for _ in range(80):
        middle = 0.5 * (inside + outside)
        moved = z.copy()
        moved[row, site] = middle
        found = push_all(transport, jnp.asarray(moved)).theta
        is_same = np.asarray(getattr(found, "theta", found))[row, site] == np.tile(theta, (2 * d, 1))[row, site]
        inside, outside = np.where(is_same, middle, inside), np.where(is_same, outside, middle)
    low, high = np.moveaxis(inside.reshape(d, 2, num_states), 1, 0)
    upper, lower = np.where(low > 0, -low, high), np.where(low > 0, -high, low)
    return np.log(stats.norm.cdf(upper) - stats.norm.cdf(lower)).sum(axis=0), log_volume


def box_quadrature_gap(transport):
    """Cells of inverse-CDF transports are boxes given the earlier coordinates: their mass is Phi(b) - Phi(a) each."""
    theta = jnp.asarray(transport.space.enumerate())
    z = lift_all(transport, jax.random.split(jax.random.key(0), len(theta)), theta)
    log_mass, log_volume = box_masses(transport, z, theta)
    return np.abs(np.exp(log_mass + log_volume - stats.norm.logpdf(z).sum(axis=1)) - 1.0).max()


def identity_z_scores(transport, *, num_draws=2**18, seed=0):
    """z-scores of E_p[exp(v) / p ; theta] = 1 for every theta of a small space that p visits at least 1000 times.

    The weight exp(v) / p must have a variance for a z-score to mean anything: mild weights only. Sharp ones are judged
    by quadrature.
    """
    z = jax.random.normal(jax.random.key(seed), (num_draws, transport.num_dims))
    theta, log_volume = push_all(transport, z)
    weight = np.exp(np.asarray(log_volume) - np.asarray(jax.jit(jax.vmap(normal.log_density))(z)))
    index = np.asarray(transport.space.index(theta))
    num = transport.space.num_states
    mean = np.bincount(index, weight, num) / num_draws
    square = np.bincount(index, weight**2, num) / num_draws
    is_visited = np.bincount(index, minlength=num) >= 1000
    mean, square = mean[is_visited], square[is_visited]
    return (mean - 1.0) / np.sqrt((square - mean**2) / num_draws)


def lift_z_scores(transport, *, num_draws=2**16, seed=0):
    """z-scores of moments of lifted z against importance-weighted draws of p, per theta and moment.

    E_lift[h(z)] = E_p[h(z) exp(v)/p ; theta]. The moments h are bounded: tanh of coordinates, and products of them.
    """
    space = transport.space
    z = jax.random.normal(jax.random.key(seed + 1), (16 * num_draws, transport.num_dims))
    theta, log_volume = push_all(transport, z)
    weight = np.exp(np.asarray(log_volume) - np.asarray(jax.jit(jax.vmap(normal.log_density))(z)))
    index = np.asarray(space.index(theta))
    scores = []
    for k, state in enumerate(space.enumerate()):
        lifted = lift_all(
            transport, jax.random.split(jax.random.key(seed + 2 + k), num_draws), jnp.tile(state, (num_draws, 1))
        )
        h_lift, h_push = _moments(np.asarray(lifted)), _moments(np.asarray(z)) * (weight * (index == k))[:, None]
        variance = h_lift.var(0) / len(h_lift) + h_push.var(0) / len(h_push)
        scores.append((h_lift.mean(0) - h_push.mean(0)) / np.sqrt(variance))
    return np.array(scores)


def _moments(z):
    t = np.tanh(z)
    pairs = [t[:, i] * t[:, j] for i in range(z.shape[1]) for j in range(i, z.shape[1])]
    return np.stack([*t.T, *pairs], axis=1)


def limit(num_tests, alpha=ALPHA):
    """The |z| that some of `num_tests` standard normals exceed with probability alpha."""
    return float(stats.norm.isf(alpha / 2 / num_tests))


def round_trip_failures(transport, num_draws, seed=0):
    """How many of `num_draws` lifted points are pushed elsewhere or have no density."""
    theta = transport.space.random(jax.random.key(seed), (num_draws,))
    keys = jax.random.split(jax.random.key(seed + 1), num_draws)
    z = lift_in_parts(transport, keys.reshape(100, -1), theta.reshape(100, -1, theta.shape[1])).reshape(theta.shape)
    pushed = push_all(transport, z)
    is_good = (np.asarray(pushed.theta) == np.asarray(theta)).all(axis=1) & np.isfinite(pushed.log_volume)
    return int(num_draws - is_good.sum())


def log_det_gap(transport, num_points=64, seed=0):
    """|log-determinant of T_phi - log |det jacfwd||, at random points (flows only)."""
    z = jax.random.normal(jax.random.key(seed), (num_points, transport.num_dims)) * 2.0
    forward = eqx.filter_jit(lambda t, z: jax.vmap(lambda z: t._forward(z)[1])(z))(transport, z)
    jacobian = eqx.filter_jit(lambda t, z: jax.vmap(jax.jacfwd(lambda z: t._forward(z)[0]))(z))(transport, z)
    return float(jnp.abs(forward - jnp.linalg.slogdet(jacobian)[1]).max())


def perturbed(transport, scale, seed=0):
    """The transport with noise on every weight: the law must not depend on them, but for what floating point loses.

    Affine couplings can put mass so near to a border that no float holds it: other seeds of the same scale lose more.
    """
    arrays, static = eqx.partition(transport, eqx.is_inexact_array)
    leaves, tree = jax.tree.flatten(arrays)
    keys = jax.random.split(jax.random.key(seed), len(leaves))
    noisy = [x + scale * jax.random.normal(k, x.shape, x.dtype) for x, k in zip(leaves, keys, strict=True)]
    return eqx.combine(jax.tree.unflatten(tree, noisy), static)
