"""The laws of transports on mixed spaces as functions that return a violation: members and mutants are judged alike."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from terrazzo.spaces import Configuration
from terrazzo.transports import FlowTransport, cells, normal
from terrazzo.transports.dequantizers import FlowDequantizer
from transport_laws import box_masses, lift_all, push_all


def configurations(space, reals):
    """Every theta with every row of reals."""
    theta = space.discrete.enumerate()
    rows = np.repeat(np.arange(len(theta)), len(reals))
    return Configuration(jnp.asarray(theta[rows]), jnp.asarray(np.tile(reals, (len(theta), 1))))


def quadrature_gap(transport, reals):
    """max over theta and y of |integral of exp(v) over the z of theta and y, in coordinates of y, - 1|."""
    gap = flow_gap if isinstance(transport, FlowTransport) else box_gap
    return gap(transport, configurations(transport.space, reals))


@eqx.filter_jit
def _slopes(transport, z):
    return jax.vmap(jax.jacfwd(lambda z: transport.decode(z)[0].reals))(z)


def box_gap(transport, where):
    """Cells of sites are intervals of their z given the rest; what the reals contribute is autodiff's dy / dz."""
    d = transport.space.num_dims
    z = lift_all(transport, jax.random.split(jax.random.key(0), len(where.theta)), where)
    log_mass, log_volume = box_masses(transport, z, where.theta)
    jacobian = _slopes(transport, z)
    log_det = np.linalg.slogdet(np.asarray(jacobian)[:, :, d:])[1]
    ratio = log_volume - stats.norm.logpdf(np.asarray(z)[:, :d]).sum(axis=1) - log_det
    return np.abs(np.exp(log_mass + ratio) - 1.0).max()


@eqx.filter_jit
def _flow_integral(transport, theta, y, grid):
    """Sum over the grid of exp(v(z)) |dz / d(e, y)|, where e parametrises the offsets by the dequantizer's own map."""
    real, d = theta.astype(grid.dtype), theta.size

    def place(point):
        e, y = point[:d], point[d:]
        dequantizer = transport.dequantizer
        if isinstance(dequantizer, FlowDequantizer):
            context = dequantizer.context_net(transport._context(real, y))
            e = dequantizer.bijection.transform_and_log_det(e, context)[0]
        w = normal.normal_to_logistic(e)[0]
        return transport._inverse(jnp.concatenate([cells.embed(real, w, transport._sizes()), y]))[0]

    def one(e):
        point = jnp.concatenate([e, y])
        slopes, z = jax.jacfwd(lambda point: (place(point),) * 2, has_aux=True)(point)
        pushed = transport.push(z)
        same = jnp.all(pushed.theta.theta == theta)
        volume = jnp.abs(jnp.linalg.det(slopes))
        return jnp.where(same, jnp.exp(pushed.log_volume) * volume, 0.0)

    return jnp.sum(jax.lax.map(jax.vmap(one), grid))


def flow_gap(transport, where):
    d = transport.space.num_dims
    nodes, step = np.linspace(-5.6, 5.6, 2_001 if d == 1 else 201, retstep=True)
    grid = jnp.asarray(np.stack(np.meshgrid(*[nodes] * d, indexing="ij"), -1).reshape(-1, len(nodes), d))
    found = [float(_flow_integral(transport, *one, grid)) for one in zip(*where, strict=True)]
    return np.abs(np.array(found) * step**d - 1.0).max()


def round_trip_gap(transport, num_draws, seed=0):
    """The largest change of a real by `push(lift(.))`, against its size; infinite if a theta changes or is lost."""
    theta_key, real_key, lift_key = jax.random.split(jax.random.key(seed), 3)
    space = transport.space
    y = 3.0 * jax.random.normal(real_key, (num_draws, space.num_reals))
    where = Configuration(space.discrete.random(theta_key, (num_draws,)), y)
    z = lift_all(transport, jax.random.split(lift_key, num_draws), where)
    back = push_all(transport, z)
    is_good = jnp.all(back.theta.theta == where.theta) & jnp.all(jnp.isfinite(back.log_volume))
    gap = jnp.abs(back.theta.reals - y) / (1.0 + jnp.abs(y))
    return float(gap.max()) if bool(is_good) else np.inf


def volume_gap(transport, num_draws, seed=0):
    """The largest difference between v(z) of `push` and log p(z) - log q by the parallel pass (exact dequantizers)."""
    z = jax.random.normal(jax.random.key(seed), (num_draws, transport.num_dims))
    pushed = push_all(transport, z)
    log_q = eqx.filter_jit(lambda t, x: jax.vmap(t.log_prob)(x))(transport, pushed.theta)
    return float(jnp.abs(jax.vmap(normal.log_density)(z) - pushed.log_volume - log_q).max())
