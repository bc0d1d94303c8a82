"""Ten models with discrete and real latent variables, written twice, with answers known by marginalisation.

Each is a NumPyro model and a plain function on a `tz.Space`. The answers are posterior means of the reals: the discrete
variables are summed out by hand in NumPy, and the reals that are left are integrated on a grid around the mode, or all
of it is done by conjugacy. Nothing of JAX or NumPyro is used for the answers.
"""

import itertools
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.scipy.special import gammaln, xlog1py, xlogy
from numpyro.contrib.control_flow import scan
from scipy import optimize, special, stats

import terrazzo as tz


class MixedModel(NamedTuple):
    """A model in two forms.

    Attributes:
        name: What it is called.
        model: The NumPyro model.
        args: Its arguments.
        space: The space of the plain function.
        log_prob: The plain function.
        truth: Gives posterior means by name.
        marginal: The NumPyro model with the discrete variables summed out by hand, where that is what people do.
        possible: Makes a configuration of the prior one that the data allow.
    """

    name: str
    model: Callable
    args: tuple
    space: Any
    log_prob: Callable
    truth: Callable[[], dict[str, Any]]
    marginal: Callable | None = None
    possible: Callable[[dict], dict] = dict


def normal(x, mean, sd):
    return -0.5 * jnp.square((x - mean) / sd) - jnp.log(sd * jnp.sqrt(2 * jnp.pi))


def bernoulli(y, logit):
    return y * logit - jax.nn.softplus(logit)


def grid_mean(log_density, start, functions, num_points=25, reach=6.0):
    """Posterior means of functions of m <= 4 unconstrained reals, by the trapezoid rule around the mode.

    Args:
        log_density: Of points (n, m), with Jacobians: one number a point.
        start: Where to look for the mode.
        functions: By name: what to average, at points (n, m).
        num_points: Of the grid, along each axis.
        reach: How far it goes, in standard deviations at the mode.
    """
    start = np.asarray(start, float)
    found = optimize.minimize(lambda x: -log_density(x[None])[0], start, method="BFGS")
    step, m = 1e-3, len(start)
    hessian = np.zeros((m, m))
    for i, j in itertools.product(range(m), range(m)):
        signs = np.array(list(itertools.product([1, -1], [1, -1])))
        points = found.x + step * (signs[:, :1] * np.eye(m)[i] + signs[:, 1:] * np.eye(m)[j])
        hessian[i, j] = -(signs.prod(axis=1) @ log_density(points)) / (4 * step**2)
    root = np.linalg.cholesky(np.linalg.inv(hessian))
    axis = np.linspace(-reach, reach, num_points)
    white = np.stack(np.meshgrid(*[axis] * m, indexing="ij"), axis=-1).reshape(-1, m)
    return _means(log_density, found.x + white @ root.T, functions)


def box_mean(log_density, low, high, functions, num_points):
    """The same on a grid over a box: for densities with several modes."""
    axes = [np.linspace(a, b, num_points) for a, b in zip(low, high, strict=True)]
    points = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, len(axes))
    return _means(log_density, points, functions)


def _means(log_density, points, functions):
    values = np.concatenate([log_density(part) for part in np.array_split(points, max(1, len(points) // 20_000))])
    weights = np.exp(values - values.max())
    weights /= weights.sum()
    return {name: np.tensordot(weights, function(points), 1) for name, function in functions.items()}


# ---- 1. Gaussian mixture with unknown means and labels


def gaussian_mixture():
    rng = np.random.default_rng(1)
    y = np.where(rng.random(30) < 0.3, rng.normal(-1.5, 1.0, 30), rng.normal(1.5, 1.0, 30))
    centre, log_weight = np.array([-2.0, 2.0]), np.log([0.3, 0.7])

    def model(y):
        mu = numpyro.sample("mu", dist.Normal(jnp.asarray(centre), 1.0).to_event(1))
        with numpyro.plate("point", len(y)):
            z = numpyro.sample("z", dist.Categorical(logits=jnp.asarray(log_weight)))
            numpyro.sample("y", dist.Normal(mu[z], 1.0), obs=y)

    def marginal(y):
        mu = numpyro.sample("mu", dist.Normal(jnp.asarray(centre), 1.0).to_event(1))
        parts = dist.MixtureSameFamily(dist.Categorical(logits=jnp.asarray(log_weight)), dist.Normal(mu, 1.0))
        with numpyro.plate("point", len(y)):
            numpyro.sample("y", parts, obs=y)

    def log_prob(v):
        each = jnp.asarray(log_weight)[v["z"]] + normal(jnp.asarray(y), v["mu"][v["z"]], 1.0)
        return normal(v["mu"], jnp.asarray(centre), 1.0).sum() + each.sum()

    def truth():
        def log_density(x):
            parts = log_weight[:, None] + stats.norm.logpdf(y, x[:, :, None], 1.0)
            return special.logsumexp(parts, axis=1).sum(axis=1) + stats.norm.logpdf(x, centre).sum(axis=1)

        return grid_mean(log_density, centre, {"mu": lambda x: x}, num_points=81, reach=8.0)

    space = tz.Space(mu=tz.real(2), z=tz.categorical(2, 30))
    return MixedModel("gaussian_mixture", model, (y,), space, log_prob, truth, marginal)


# ---- 2. coal-mining disasters: a change point

COAL = tz.problems.coal_disasters()[:-1]  # to 1961


def coal_mining():
    n = len(COAL)

    def model(counts):
        early = numpyro.sample("early", dist.Exponential(1.0))
        late = numpyro.sample("late", dist.Exponential(1.0))
        change = numpyro.sample("change", dist.DiscreteUniform(1, n - 1))
        with numpyro.plate("year", n):
            numpyro.sample("counts", dist.Poisson(jnp.where(jnp.arange(n) < change, early, late)), obs=counts)

    def marginal(counts):
        early = numpyro.sample("early", dist.Exponential(1.0))
        late = numpyro.sample("late", dist.Exponential(1.0))
        first = jnp.cumsum(dist.Poisson(early).log_prob(counts))[:-1]
        second = dist.Poisson(late).log_prob(counts)
        numpyro.factor("years", jax.nn.logsumexp(first + second.sum() - jnp.cumsum(second)[:-1]))

    def log_prob(v):
        rate = jnp.where(jnp.arange(n) < v["change"], v["early"], v["late"])
        return (jnp.asarray(COAL) * jnp.log(rate) - rate).sum() - v["early"] - v["late"]

    def truth():
        change = np.arange(1, n)
        first = np.cumsum(COAL)[:-1]
        second = COAL.sum() - first
        log_weight = (special.gammaln(first + 1) - (first + 1) * np.log(change + 1)
                      + special.gammaln(second + 1) - (second + 1) * np.log(n - change + 1))  # fmt: skip
        weight = special.softmax(log_weight)
        return {
            "change": weight @ change, "early": weight @ ((first + 1) / (change + 1)),
            "late": weight @ ((second + 1) / (n - change + 1)),
        }  # fmt: skip

    space = tz.Space(early=tz.real(low=0.0), late=tz.real(low=0.0), change=tz.integers(1, n - 1))
    return MixedModel("coal_mining", model, (COAL,), space, log_prob, truth, marginal)


# ---- 3. Markov-switching autoregression

STAY = np.array([[0.9, 0.1], [0.2, 0.8]])


def _forward(log_obs, log_stay, xp, logsumexp):
    """log p of all observations; log_obs (..., time, state)."""
    log_alpha = log_obs[..., 0, :] + np.log(0.5)
    for t in range(1, log_obs.shape[-2]):
        log_alpha = logsumexp(log_alpha[..., :, None] + log_stay, axis=-2) + log_obs[..., t, :]
    return logsumexp(log_alpha, axis=-1)


def markov_switching():
    rng, num_times = np.random.default_rng(3), 40
    state, y = 0, [0.0]
    for _ in range(num_times):
        state = rng.choice(2, p=STAY[state])
        y.append((-1.0, 1.5)[state] + 0.4 * y[-1] + rng.normal())
    y = np.array(y)
    centre = np.array([-1.0, 1.0])

    def model(y):
        mu = numpyro.sample("mu", dist.Normal(jnp.asarray(centre), 1.0).to_event(1))
        phi = numpyro.sample("phi", dist.Normal(0.0, 0.5))
        table = jnp.asarray(np.concatenate([STAY, np.full((1, 2), 0.5)]))  # the last row starts

        def step(before, seen):
            s = numpyro.sample("s", dist.Categorical(probs=table[before]))
            numpyro.sample("y", dist.Normal(mu[s] + phi * seen[0], 1.0), obs=seen[1])
            return s, None

        scan(step, jnp.asarray(2), jnp.stack([jnp.asarray(y[:-1]), jnp.asarray(y[1:])], axis=1))

    def marginal(y):
        mu = numpyro.sample("mu", dist.Normal(jnp.asarray(centre), 1.0).to_event(1))
        phi = numpyro.sample("phi", dist.Normal(0.0, 0.5))
        log_obs = dist.Normal(mu + phi * y[:-1, None], 1.0).log_prob(y[1:, None])
        log_stay = jnp.log(jnp.asarray(STAY))

        def step(log_alpha, now):
            return jax.nn.logsumexp(log_alpha[:, None] + log_stay, axis=0) + now, None

        last, _ = jax.lax.scan(step, log_obs[0] + jnp.log(0.5), log_obs[1:])
        numpyro.factor("y", jax.nn.logsumexp(last))

    def log_prob(v):
        mean = v["mu"][v["s"]] + v["phi"] * jnp.asarray(y[:-1])
        moves = jnp.log(jnp.asarray(STAY))[v["s"][:-1], v["s"][1:]].sum() + np.log(0.5)
        prior = normal(v["mu"], jnp.asarray(centre), 1.0).sum() + normal(v["phi"], 0.0, 0.5)
        return prior + moves + normal(jnp.asarray(y[1:]), mean, 1.0).sum()

    def truth():
        def log_density(x):
            mean = x[:, None, :2] + x[:, 2, None, None] * y[:-1, None]
            log_obs = stats.norm.logpdf(y[1:, None], mean, 1.0)
            prior = stats.norm.logpdf(x[:, :2], centre).sum(axis=1) + stats.norm.logpdf(x[:, 2], 0.0, 0.5)
            return _forward(log_obs, np.log(STAY), np, special.logsumexp) + prior

        means = {"mu": lambda x: x[:, :2], "phi": lambda x: x[:, 2]}
        return box_mean(log_density, [-4.0, -4.0, -1.2], [4.0, 4.0, 1.4], means, 41)  # states swapped: 0.7 %

    space = tz.Space(mu=tz.real(2), phi=tz.real(), s=tz.categorical(2, num_times))
    return MixedModel("markov_switching", model, (y,), space, log_prob, truth, marginal)


# ---- 4. occupancy


def occupancy():
    rng, num_sites, num_visits = np.random.default_rng(4), 40, 4
    seen = rng.binomial(num_visits, 0.35 * (rng.random(num_sites) < 0.6))

    def shares():
        return [numpyro.sample(name, dist.Beta(1.0, 1.0)) for name in ("psi", "p")]

    def model(seen):
        psi, p = shares()
        with numpyro.plate("site", num_sites):
            z = numpyro.sample("z", dist.Bernoulli(psi))
            numpyro.sample("seen", dist.Binomial(num_visits, z * p), obs=seen)

    def marginal(seen):
        psi, p = shares()
        there = jnp.log(psi) + dist.Binomial(num_visits, p).log_prob(seen)
        numpyro.factor("seen", jnp.logaddexp(there, jnp.where(jnp.asarray(seen) > 0, -jnp.inf, jnp.log1p(-psi))).sum())

    def log_prob(v):
        z = v["z"].astype(v["p"].dtype)
        k = jnp.asarray(seen).astype(z.dtype)
        there = xlogy(z, v["psi"]) + xlog1py(1 - z, -v["psi"])
        seen_there = xlogy(k, v["p"]) + xlog1py(num_visits - k, -v["p"])
        return there.sum() + jnp.where(z > 0, seen_there, jnp.where(k > 0, -jnp.inf, 0.0)).sum()

    def truth():
        def log_density(x):
            psi, p = special.expit(x.T)[:, :, None]
            there = np.log(psi) + stats.binom.logpmf(seen, num_visits, p)
            each = np.logaddexp(there, np.where(seen > 0, -np.inf, np.log1p(-psi)))
            return each.sum(axis=1) + (special.log_expit(x) + special.log_expit(-x)).sum(axis=1)

        means = {"psi": lambda x: special.expit(x[:, 0]), "p": lambda x: special.expit(x[:, 1])}
        return grid_mean(log_density, [0.3, -0.5], means, num_points=161, reach=14.0)

    space = tz.Space(psi=tz.real(0.0, 1.0), p=tz.real(0.0, 1.0), z=tz.binary(num_sites))
    possible = lambda v: {**v, "z": jnp.where(jnp.asarray(seen) > 0, 1, v["z"])}
    return MixedModel("occupancy", model, (seen,), space, log_prob, truth, marginal, possible)


# ---- 5. capture-recapture with heterogeneity


def capture_recapture():
    rng, num_occasions, num_all = np.random.default_rng(5), 6, 50
    caught = rng.binomial(num_occasions, special.expit(rng.normal(-0.8, 0.8, 30)))
    counts = np.concatenate([np.sort(caught[caught > 0])[::-1], np.zeros(num_all, int)])[:num_all]

    def parameters():
        omega = numpyro.sample("omega", dist.Uniform(0.0, 1.0))
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
        sigma = numpyro.sample("sigma", dist.LogNormal(-0.5, 0.5))
        return omega, mu, sigma

    def model(counts):
        omega, mu, sigma = parameters()
        with numpyro.plate("animal", num_all):
            effect = numpyro.sample("effect", dist.Normal(0.0, 1.0))
            z = numpyro.sample("z", dist.Bernoulli(omega))
            p = z * jax.nn.sigmoid(mu + sigma * effect)
            numpyro.sample("counts", dist.Binomial(num_occasions, p), obs=counts)

    def marginal(counts):
        omega, mu, sigma = parameters()
        with numpyro.plate("animal", num_all):
            effect = numpyro.sample("effect", dist.Normal(0.0, 1.0))
        there = dist.Binomial(num_occasions, logits=mu + sigma * effect).log_prob(counts) + jnp.log(omega)
        away = jnp.where(jnp.asarray(counts) > 0, -jnp.inf, jnp.log1p(-omega))
        numpyro.factor("counts", jnp.logaddexp(there, away).sum())

    def log_prob(v):
        z = v["z"].astype(v["mu"].dtype)
        k = jnp.asarray(counts).astype(z.dtype)
        p = jax.nn.sigmoid(v["mu"] + v["sigma"] * v["effect"])
        prior = normal(v["mu"], 0.0, 1.0) + normal(jnp.log(v["sigma"]), -0.5, 0.5) - jnp.log(v["sigma"])
        there = xlogy(z, v["omega"]) + xlog1py(1 - z, -v["omega"])
        found = jnp.where(z > 0, xlogy(k, p) + xlog1py(num_occasions - k, -p), jnp.where(k > 0, -jnp.inf, 0.0))
        return prior + normal(v["effect"], 0.0, 1.0).sum() + there.sum() + found.sum()

    def truth():
        nodes, weights = np.polynomial.hermite_e.hermegauss(25)
        weights = weights / weights.sum()
        levels, copies = np.unique(counts, return_counts=True)

        def log_density(x):
            omega, mu, sigma = special.expit(x[:, 0]), x[:, 1], np.exp(x[:, 2])
            p = special.expit(mu[:, None] + sigma[:, None] * nodes)[:, :, None]
            pmf = special.comb(num_occasions, levels) * p**levels * (1 - p) ** (num_occasions - levels)
            there = omega[:, None] * np.einsum("q,nql->nl", weights, pmf)
            each = np.log(there + np.where(levels > 0, 0.0, 1 - omega[:, None]))
            jacobian = special.log_expit(x[:, 0]) + special.log_expit(-x[:, 0])
            return each @ copies + stats.norm.logpdf(mu) + stats.norm.logpdf(x[:, 2], -0.5, 0.5) + jacobian

        means = {"omega": lambda x: special.expit(x[:, 0]), "mu": lambda x: x[:, 1], "sigma": lambda x: np.exp(x[:, 2])}
        return grid_mean(log_density, [0.0, -0.8, -0.5], means, num_points=51, reach=9.0)

    space = tz.Space(
        omega=tz.real(0.0, 1.0), mu=tz.real(), sigma=tz.real(low=0.0), effect=tz.real(num_all), z=tz.binary(num_all)
    )
    possible = lambda v: {**v, "z": jnp.where(jnp.asarray(counts) > 0, 1, v["z"])}
    return MixedModel("capture_recapture", model, (counts,), space, log_prob, truth, marginal, possible)


# ---- 6. spike-and-slab regression with continuous slabs


def spike_and_slab():
    rng, n, p = np.random.default_rng(6), 30, 8
    x = rng.normal(size=(n, p))
    x[:, 1] = 0.8 * x[:, 0] + 0.6 * x[:, 1]  # two that are easily mistaken for each other
    y = x @ np.array([0.7, 0, 1.0, 0, 0, -0.5, 0, 0]) + rng.normal(size=n)

    def model(x, y):
        with numpyro.plate("feature", p):
            on = numpyro.sample("on", dist.Bernoulli(0.3))
            beta = numpyro.sample("beta", dist.Normal(0.0, 1.0))
        with numpyro.plate("row", n):
            numpyro.sample("y", dist.Normal(jnp.asarray(x) @ (on * beta), 1.0), obs=y)

    def log_prob(v):
        on = v["on"].astype(v["beta"].dtype)
        prior = (on * np.log(0.3) + (1 - on) * np.log(0.7)).sum() + normal(v["beta"], 0.0, 1.0).sum()
        return prior + normal(jnp.asarray(y), jnp.asarray(x) @ (on * v["beta"]), 1.0).sum()

    def truth():
        states = np.array(list(itertools.product([0, 1], repeat=p)))
        log_weight, beta = np.zeros(len(states)), np.zeros((len(states), p))
        for i, on in enumerate(states.astype(bool)):
            part = x[:, on]
            precision = part.T @ part + np.eye(on.sum())
            mean = np.linalg.solve(precision, part.T @ y)
            log_weight[i] = -0.5 * np.linalg.slogdet(precision)[1] + 0.5 * (part.T @ y) @ mean
            log_weight[i] += on.sum() * np.log(0.3) + (~on).sum() * np.log(0.7)
            beta[i, on] = mean
        weight = special.softmax(log_weight)
        return {"on": weight @ states, "beta": weight @ beta}

    space = tz.Space(on=tz.binary(p), beta=tz.real(p))
    return MixedModel("spike_and_slab", model, (x, y), space, log_prob, truth)


# ---- 7. mixture of regressions


def mixture_of_regressions():
    rng, n = np.random.default_rng(7), 40
    x = rng.uniform(-2, 2, n)
    y = np.where(rng.random(n) < 0.4, -1.0 * x, 1.2 * x) + 0.7 * rng.normal(size=n)
    centre = np.array([-1.0, 1.0])

    def model(x, y):
        w = numpyro.sample("w", dist.Beta(2.0, 2.0))
        slope = numpyro.sample("slope", dist.Normal(jnp.asarray(centre), 1.0).to_event(1))
        with numpyro.plate("point", n):
            z = numpyro.sample("z", dist.Bernoulli(w))
            numpyro.sample("y", dist.Normal(slope[z] * x, 0.7), obs=y)

    def marginal(x, y):
        w = numpyro.sample("w", dist.Beta(2.0, 2.0))
        slope = numpyro.sample("slope", dist.Normal(jnp.asarray(centre), 1.0).to_event(1))
        each = dist.Normal(slope * x[:, None], 0.7).log_prob(y[:, None]) + jnp.stack([jnp.log1p(-w), jnp.log(w)])
        numpyro.factor("y", jax.nn.logsumexp(each, axis=1).sum())

    def log_prob(v):
        z, w = v["z"], v["w"]
        prior = jnp.log(w) + jnp.log1p(-w) + normal(v["slope"], jnp.asarray(centre), 1.0).sum()
        labels = jnp.where(z == 1, jnp.log(w), jnp.log1p(-w)).sum()
        return prior + labels + normal(jnp.asarray(y), v["slope"][z] * jnp.asarray(x), 0.7).sum()

    def truth():
        def log_density(u):
            w = special.expit(u[:, 0])
            parts = stats.norm.logpdf(y, u[:, 1:, None] * x, 0.7)
            each = np.logaddexp(np.log1p(-w)[:, None] + parts[:, 0], np.log(w)[:, None] + parts[:, 1])
            return each.sum(axis=1) + 2 * (np.log(w) + np.log1p(-w)) + stats.norm.logpdf(u[:, 1:], centre).sum(axis=1)

        means = {"w": lambda u: special.expit(u[:, 0]), "slope": lambda u: u[:, 1:]}
        return box_mean(log_density, [-5.0, -2.6, -2.6], [5.0, 2.6, 2.6], means, 61)  # labels swapped: 1.4 %

    space = tz.Space(w=tz.real(0.0, 1.0), slope=tz.real(2), z=tz.binary(n))
    return MixedModel("mixture_of_regressions", model, (x, y), space, log_prob, truth, marginal)


# ---- 8. Bernoulli factor model


def bernoulli_factors():
    rng, n = np.random.default_rng(8), 25
    centre = np.array([[1.5, 0.0], [0.0, 1.5]])
    y = rng.integers(0, 2, (n, 2)) @ centre + 0.7 * rng.normal(size=(n, 2))

    def model(y):
        loading = numpyro.sample("loading", dist.Normal(jnp.asarray(centre), 0.5).to_event(2))
        with numpyro.plate("row", n):
            z = numpyro.sample("z", dist.Bernoulli(0.5 * jnp.ones(2)).to_event(1))
            numpyro.sample("y", dist.Normal(z @ loading, 0.7).to_event(1), obs=y)

    def log_prob(v):
        z = v["z"].astype(v["loading"].dtype)
        prior = normal(v["loading"], jnp.asarray(centre), 0.5).sum() + 2 * n * np.log(0.5)
        return prior + normal(jnp.asarray(y), z @ v["loading"], 0.7).sum()

    def truth():
        codes = np.array(list(itertools.product([0, 1], repeat=2)))

        def log_density(u):
            loading = u.reshape(-1, 2, 2)
            mean = np.einsum("ck,nkd->ncd", codes, loading)
            square = np.square(y[:, None] - mean[:, None]).sum(axis=-1)
            each = special.logsumexp(-0.5 * square / 0.49, axis=-1)
            return each.sum(axis=1) - 0.5 * np.square((u - centre.ravel()) / 0.5).sum(axis=1)

        return grid_mean(log_density, centre.ravel(), {"loading": lambda u: u.reshape(-1, 2, 2)}, 17, 5.5)

    space = tz.Space(loading=tz.real((2, 2)), z=tz.binary((n, 2)))
    return MixedModel("bernoulli_factors", model, (y,), space, log_prob, truth)


# ---- 9. stochastic block model


def block_model():
    rng, n = np.random.default_rng(9), 12
    block = np.arange(n) % 2
    upper = np.triu_indices(n, 1)
    is_same = block[upper[0]] == block[upper[1]]
    edge = (rng.random(len(is_same)) < np.where(is_same, 0.6, 0.2)).astype(int)

    def model(edge):
        inside = numpyro.sample("inside", dist.Beta(2.0, 1.0))
        between = numpyro.sample("between", dist.Beta(1.0, 2.0))
        with numpyro.plate("node", n):
            z = numpyro.sample("z", dist.Categorical(probs=jnp.full(2, 0.5)))
        p = jnp.where(z[upper[0]] == z[upper[1]], inside, between)
        with numpyro.plate("pair", len(edge)):
            numpyro.sample("edge", dist.Bernoulli(p), obs=edge)

    def log_prob(v):
        p = jnp.where(v["z"][upper[0]] == v["z"][upper[1]], v["inside"], v["between"])
        seen = jnp.where(jnp.asarray(edge) == 1, jnp.log(p), jnp.log1p(-p)).sum()
        return seen + jnp.log(v["inside"]) + jnp.log1p(-v["between"])

    def truth():
        z = np.array(list(itertools.product([0, 1], repeat=n)))
        same = z[:, upper[0]] == z[:, upper[1]]
        a, b = 2 + same @ edge, 1 + same @ (1 - edge)
        c, d = 1 + ~same @ edge, 2 + ~same @ (1 - edge)
        weight = special.softmax(special.betaln(a, b) + special.betaln(c, d))
        return {"inside": weight @ (a / (a + b)), "between": weight @ (c / (c + d))}

    space = tz.Space(inside=tz.real(0.0, 1.0), between=tz.real(0.0, 1.0), z=tz.categorical(2, n))
    return MixedModel("block_model", model, (edge,), space, log_prob, truth)


# ---- 10. item response with levels of ability


def item_response():
    rng, num_people, num_levels = np.random.default_rng(10), 40, 5
    level = rng.binomial(num_levels - 1, 0.5, num_people)
    answer = (rng.random((num_people, 4)) < special.expit(level[:, None] - 2.0 - [-1.0, -0.3, 0.4, 1.2])).astype(int)

    def model(answer):
        with numpyro.plate("item", 4, dim=-1):
            hard = numpyro.sample("hard", dist.Normal(0.0, 1.5))
        with numpyro.plate("person", num_people, dim=-2):
            ability = numpyro.sample("ability", dist.Binomial(num_levels - 1, 0.5))
            with numpyro.plate("item", 4, dim=-1):
                numpyro.sample("answer", dist.Bernoulli(logits=ability - 2.0 - hard), obs=answer)

    def marginal(answer):
        with numpyro.plate("item", 4):
            hard = numpyro.sample("hard", dist.Normal(0.0, 1.5))
        levels = jnp.arange(num_levels)
        each = dist.Bernoulli(logits=levels[:, None] - 2.0 - hard).log_prob(answer[:, None]).sum(axis=-1)
        numpyro.factor("answer", jax.nn.logsumexp(each + dist.Binomial(num_levels - 1, 0.5).log_prob(levels), 1).sum())

    def log_prob(v):
        ability = v["ability"].astype(v["hard"].dtype)
        top = num_levels - 1.0
        prior = gammaln(top + 1) - gammaln(ability + 1) - gammaln(top - ability + 1) + top * np.log(0.5)
        seen = bernoulli(jnp.asarray(answer).astype(ability.dtype), ability - 2.0 - v["hard"])
        return normal(v["hard"], 0.0, 1.5).sum() + prior.sum() + seen.sum()

    def truth():
        patterns, copies = np.unique(answer, axis=0, return_counts=True)
        log_prior = stats.binom.logpmf(np.arange(num_levels), num_levels - 1, 0.5)

        def log_density(u):
            logit = np.arange(num_levels)[None, :, None] - 2.0 - u[:, None]
            right, wrong = special.log_expit(logit), special.log_expit(-logit)
            each = np.einsum("pj,nlj->nlp", patterns, right) + np.einsum("pj,nlj->nlp", 1 - patterns, wrong)
            found = special.logsumexp(each + log_prior[:, None], axis=1)
            return found @ copies + stats.norm.logpdf(u, 0.0, 1.5).sum(axis=1)

        return grid_mean(log_density, [-1.0, -0.3, 0.4, 1.2], {"hard": lambda u: u}, 17, 5.5)

    space = tz.Space(hard=tz.real(4), ability=tz.integers(0, num_levels - 1, (num_people, 1)))
    return MixedModel("item_response", model, (answer,), space, log_prob, truth, marginal)


MAKERS = (
    gaussian_mixture, coal_mining, markov_switching, occupancy, capture_recapture, spike_and_slab,
    mixture_of_regressions, bernoulli_factors, block_model, item_response,
)  # fmt: skip
NAMES = tuple(maker.__name__ for maker in MAKERS)


@lru_cache
def mixed_model(name):
    """One of the ten, by name; its plain function with JAX's usual promotion, as users write them."""
    found = next(maker for maker in MAKERS if maker.__name__ == name)()

    def log_prob(values):
        with jax.numpy_dtype_promotion("standard"):
            return found.log_prob(values)

    return found._replace(log_prob=log_prob)
