"""Plain functions whose structure is known: (log_prob, sizes, largest arity of a term)."""

import jax
import jax.numpy as jnp
import numpy as np

import terrazzo as tz

RNG = np.random.default_rng(7)


def spins(theta, *shape):
    return (2.0 * theta.astype(float) - 1.0).reshape(shape or theta.shape)


def torus(theta):
    s = spins(theta, 4, 4)
    return 0.3 * jnp.sum(s * (jnp.roll(s, 1, 0) + jnp.roll(s, 1, 1))) + 0.1 * s.sum()


def potts(theta):
    grid = jax.nn.one_hot(theta, 3, dtype=float).reshape(2, 3, 3)
    near = jnp.roll(grid, 1, 0) + jnp.roll(grid, 1, 1)
    return jnp.sum(grid * (0.7 * near + jnp.array([0.1, -0.2, 0.3])))


def potts_by_equality(theta):
    return 0.8 * (theta[1:] == theta[:-1]).sum().astype(float) - 0.1 * theta[0].astype(float)


START, STEP = np.log(RNG.dirichlet(np.ones(3))), np.log(RNG.dirichlet(np.ones(3), 3))
SEEN = np.log(RNG.dirichlet(np.ones(3), 7))


def hmm(theta):
    return (
        jnp.asarray(START)[theta[0]]
        + jnp.asarray(STEP)[theta[:-1], theta[1:]].sum()
        + jnp.asarray(SEEN)[np.arange(7), theta].sum()
    )


def hmm_by_scan(theta):
    def step(carry, x):
        before, total = carry
        now, seen = x
        return (now, total + jnp.asarray(STEP)[before, now] + seen[now]), None

    first = jnp.asarray(START)[theta[0]] + jnp.asarray(SEEN)[0, theta[0]]
    return jax.lax.scan(step, (theta[0], first), (theta[1:], jnp.asarray(SEEN)[1:]))[0][1]


COUPLINGS = RNG.normal(size=(8, 8))


def dense_glass(theta):
    s = spins(theta)
    return 0.5 * s @ jnp.asarray(COUPLINGS) @ s + 0.2 * s.sum()


BONDS = np.array([(0, 1), (1, 2), (2, 3), (3, 0), (0, 4), (4, 5), (2, 5)])


def glass(theta):
    s = spins(theta)
    signs = np.where(np.arange(len(BONDS)) % 2, 1.2, -1.2)
    return (jnp.asarray(signs) * s[BONDS[:, 0]] * s[BONDS[:, 1]]).sum()


def graph_colouring(theta):
    return jnp.where(theta[BONDS[:, 0]] == theta[BONDS[:, 1]], -jnp.inf, 0.0).sum() + 0.3 * (theta == 0).sum().astype(
        float
    )


def all_or_nothing(theta):
    return jnp.where(
        jnp.all(theta[1:] != theta[:-1]) & ~jnp.any(theta[2:] + theta[:-2] == 3),
        0.5 * theta.sum().astype(float),
        -jnp.inf,
    )


PARENTS = [(), (0,), (0,), (1, 2), (3,), (3, 4), ()]
TABLES = [np.log(RNG.dirichlet(np.ones(2), (2,) * len(p))) for p in PARENTS]
with np.errstate(divide="ignore"):
    TABLES[5] = np.log(np.eye(2)[np.array([[0, 1], [1, 1]])])  # deterministic: an or


def network(theta):
    total = jnp.where(theta[4] == 1, 0.0, -jnp.inf)  # evidence
    for i, parents in enumerate(PARENTS):
        total = total + jnp.asarray(TABLES[i])[(*[theta[p] for p in parents], theta[i])]
    return total


def qubo_penalty(theta):
    return -1.5 * (theta.sum().astype(float) - 3.0) ** 2 + 0.4 * theta[0].astype(float)


def three_body(theta):
    s = spins(theta)
    return 0.4 * (s[2:] * s[1:-1] * s[:-2]).sum() - 0.2 * (s[1:] == s[:-1]).sum().astype(float)


X, Y = RNG.normal(size=(12, 6)), RNG.integers(0, 2, 12)


def logistic(theta):
    logits = (2.0 * jnp.asarray(Y).astype(float) - 1.0) * (jnp.asarray(X) @ theta.astype(float))
    return jax.nn.log_sigmoid(logits).sum() - 0.1 * (theta.astype(float) ** 2).sum()


W, HIDDEN, VISIBLE = RNG.normal(size=(6, 4)), RNG.normal(size=4), RNG.normal(size=6)


def rbm(theta):
    v = theta.astype(float)
    return jax.nn.softplus(v @ jnp.asarray(W) + jnp.asarray(HIDDEN)).sum() + v @ jnp.asarray(VISIBLE)


MIXED = np.array([2, 3, 4, 2, 3])
MIXED_TABLE = RNG.normal(size=(4, 4))


def mixed(theta):
    return jnp.asarray(MIXED_TABLE)[theta[1:], theta[:-1]].sum() + jnp.where(theta[2] == 3, -jnp.inf, 0.0)


def nothing_but_one(theta):
    return jnp.log1p(jnp.sum(theta.astype(float)) + jnp.exp(0.1 * theta[0].astype(float)))


MODELS = {
    "torus": (torus, np.full(16, 2), 2),
    "potts": (potts, np.full(6, 3), 2),
    "potts_by_equality": (potts_by_equality, np.full(6, 3), 2),
    "hmm": (hmm, np.full(7, 3), 2),
    "hmm_by_scan": (hmm_by_scan, np.full(7, 3), 2),
    "dense_glass": (dense_glass, np.full(8, 2), 2),
    "glass": (glass, np.full(6, 2), 2),
    "graph_colouring": (graph_colouring, np.full(6, 3), 2),
    "all_or_nothing": (all_or_nothing, np.full(6, 3), 2),
    "network": (network, np.full(7, 2), 3),
    "qubo_penalty": (qubo_penalty, np.full(6, 2), 2),
    "three_body": (three_body, np.full(7, 2), 3),
    "logistic": (logistic, np.full(6, 2), 6),
    "rbm": (rbm, np.full(6, 2), 6),
    "mixed": (mixed, MIXED, 2),
    "nothing_but_one": (nothing_but_one, np.full(5, 2), 5),
}


def states_of(sizes):
    """All configurations."""
    return np.stack(np.unravel_index(np.arange(int(np.prod(sizes))), tuple(sizes)), axis=1).astype(np.int32)


def log_table(log_prob, sizes):
    """log pi of all configurations."""
    return np.asarray(jax.jit(jax.vmap(log_prob))(jnp.asarray(states_of(sizes))))


def target_of(name):
    """The target of a model, on sites of one size or on a variable a site."""
    log_prob, sizes, _ = MODELS[name]
    variables = {f"x{i}": tz.categorical(int(k)) for i, k in enumerate(sizes)}
    flat = lambda values: log_prob(jnp.stack([values[f"x{i}"].reshape(()) for i in range(len(sizes))]))
    same = len(set(map(int, sizes))) == 1
    return tz.Target(log_prob, tz.categorical(int(sizes[0]), shape=len(sizes))) if same else tz.Target(flat, variables)
