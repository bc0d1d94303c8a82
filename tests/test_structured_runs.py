"""Exact answers through `tz.sample` from plain functions, against recursions written here. False-alarm rate: 1e-6."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from scipy.special import logsumexp

import terrazzo as tz
from terrazzo.errors import StartError, TargetError, UnsupportedError
from terrazzo.inference.call import _may_enumerate
from terrazzo.inference.requests import as_request
from terrazzo.samplers.kernels import exact
from terrazzo.targets import structure
from terrazzo.targets.reading import structure_of

ALPHA = 1e-6


def run(log_prob, space, **options):
    return tz.sample(log_prob, space, seed=0, **{"progress": "off", "draws": 250, **options})


def check(result, log_z, marginals=None):
    """The verdict, log Z, marginals of the first value where given, and independence along a chain."""
    assert result.verdict.grade == result.log_z_verdict.grade == "exact"
    assert "treewidth" in result.verdict.reason
    assert "summed out" in result.choice
    assert result.log_z_standard_error == 0.0
    assert result.log_z == pytest.approx(log_z, rel=1e-6)
    theta = np.asarray(result.theta)
    if marginals is not None:
        number = theta.shape[0] * theta.shape[1]
        seen = (theta == 0).sum(axis=(0, 1))
        low, high = (stats.binom.ppf(q, number, marginals) for q in (ALPHA / len(seen) / 2, 1 - ALPHA / len(seen) / 2))
        assert ((seen >= low) & (seen <= high)).all()
    energy = np.asarray(result.log_prob)
    centred = energy - energy.mean()
    lagged = (centred[:, 1:] * centred[:, :-1]).mean() / max(centred.var(), 1e-30)
    assert abs(lagged) < stats.norm.isf(ALPHA / 2) / np.sqrt(centred.size)


def hmm(num_steps, num_states=4):
    rng = np.random.default_rng(num_steps)
    step, seen = rng.dirichlet(np.ones(num_states), num_states), rng.dirichlet(np.ones(num_states), num_steps).T
    log_step, log_seen = np.log(step), np.log(seen)

    def log_prob(theta):
        return (
            jnp.asarray(log_step)[theta[:-1], theta[1:]].sum()
            + jnp.asarray(log_seen)[theta, np.arange(num_steps)].sum()
        )

    forward, backward = [log_seen[:, 0]], [np.zeros(num_states)]
    for t in range(1, num_steps):
        forward.append(logsumexp(forward[-1][:, None] + log_step, axis=0) + log_seen[:, t])
        backward.append(logsumexp(log_step + log_seen[:, -t] + backward[-1], axis=1))
    log_z = logsumexp(forward[-1])
    marginals = np.exp(np.array(forward) + np.array(backward)[::-1] - log_z)[:, 0]
    return log_prob, tz.categorical(num_states, shape=num_steps), log_z, marginals


def strip(width, length, coupling=0.4, field=0.1):
    """Its log Z by adding one spin after the other to the state of the last `width` spins."""

    def log_prob(theta):
        s = (2 * theta - 1).reshape(width, length).astype(float)
        return coupling * ((s[1:] * s[:-1]).sum() + (s[:, 1:] * s[:, :-1]).sum()) + field * s.sum()

    states = 2 * ((np.arange(2**width)[:, None] >> np.arange(width)) & 1) - 1.0
    column = coupling * (states[:, 1:] * states[:, :-1]).sum(axis=1) + field * states.sum(axis=1)
    pair = coupling * np.array([[1.0, -1.0], [-1.0, 1.0]])
    message = column
    for _ in range(length - 1):
        message = message.reshape((2,) * width)
        for axis in range(width):
            last = np.moveaxis(message, axis, -1)
            message = np.moveaxis(logsumexp(last[..., None, :] + pair, axis=-1), -1, axis)
        message = message.ravel() + column
    return log_prob, tz.binary(width * length), logsumexp(message)


def tree(num_nodes):
    rng = np.random.default_rng(num_nodes)
    parent, coupling = np.array([rng.integers(0, i) for i in range(1, num_nodes)]), rng.normal(size=num_nodes - 1)

    def log_prob(theta):
        s = (2 * theta - 1).astype(float)
        return (jnp.asarray(coupling) * s[1:] * s[parent]).sum() + 0.3 * s.sum()

    message = np.tile([-0.3, 0.3], (num_nodes, 1))
    sign = np.array([[1.0, -1.0], [-1.0, 1.0]])
    for i in range(num_nodes - 1, 0, -1):
        message[parent[i - 1]] += logsumexp(message[i] + coupling[i - 1] * sign, axis=1)
    return log_prob, tz.binary(num_nodes), logsumexp(message[0])


def change_points(num_steps):
    """A state among five at each time, which rarely changes; Gaussian observations around its level."""
    rng = np.random.default_rng(num_steps)
    levels = np.arange(5.0)
    data = np.repeat(rng.integers(0, 5, num_steps // 50 + 1), 50)[:num_steps] + rng.normal(size=num_steps)
    fit = -0.5 * (data[:, None] - levels) ** 2

    def log_prob(theta):
        is_change = theta[1:] != theta[:-1]
        return (
            jnp.where(is_change, np.log(0.02 / 4), np.log(0.98)).sum()
            - 0.5 * ((jnp.asarray(data) - jnp.asarray(levels)[theta]) ** 2).sum()
        )

    step = np.log(np.where(np.eye(5), 0.98, 0.02 / 4))
    message = fit[0]
    for row in fit[1:]:
        message = logsumexp(message[:, None] + step, axis=0) + row
    return log_prob, tz.categorical(5, shape=num_steps), logsumexp(message)


def network(num_nodes):
    """Tables given up to three near parents; every fifth is a deterministic or; some nodes are observed."""
    rng = np.random.default_rng(num_nodes)
    parents = [
        sorted(rng.choice(np.arange(max(0, i - 6), i), min(i, 1 + i % 3), replace=False)) for i in range(num_nodes)
    ]
    tables = [rng.dirichlet(np.ones(2), (2,) * len(p)) for p in parents]
    for i in range(5, num_nodes, 5):
        tables[i] = np.zeros((2,) * (len(parents[i]) + 1))
        is_on = np.indices((2,) * len(parents[i])).any(axis=0)
        tables[i][..., 1], tables[i][..., 0] = is_on, ~is_on
    evidence = {num_nodes - 1: 1, num_nodes // 2: 0}
    with np.errstate(divide="ignore"):
        logs = [np.log(t) for t in tables]

    def log_prob(theta):
        total = 0.0
        for i, p in enumerate(parents):
            total = total + jnp.asarray(logs[i])[(*[theta[j] for j in p], theta[i])]
        for i, value in evidence.items():
            total = total + jnp.where(theta[i] == value, 0.0, -jnp.inf)
        return total

    operands = [x for i, p in enumerate(parents) for x in (tables[i], [*map(int, p), i])]
    for i, value in evidence.items():
        operands += [np.eye(2)[value], [i]]
    return log_prob, tz.binary(num_nodes), float(np.log(np.einsum(*operands, [], optimize="greedy")))


def test_a_hidden_markov_model_is_summed():
    *model, log_z, marginals = hmm(200)
    check(run(*model), log_z, marginals)


QUICK = {"strip": strip(4, 60), "tree": tree(300), "change points": change_points(100), "network 30": network(30)}


@pytest.mark.parametrize("name", QUICK)
def test_small_treewidth_is_summed(name):
    *model, log_z = QUICK[name]
    check(run(*model), log_z)


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [lambda: hmm(2000)[:3], lambda: strip(12, 400), lambda: tree(10_000), lambda: change_points(1000),
     lambda: network(20), lambda: network(40)],
    ids=["hmm", "strip", "tree", "change points", "network 20", "network 40"],
)  # fmt: skip
def test_large_models_of_small_treewidth_are_summed(make):
    *model, log_z = make()
    check(run(*model), log_z)


BLOCKS = np.random.default_rng(8).normal(size=(30, 10, 10))


@pytest.mark.parametrize("is_dense", [False, True])
def test_independent_parts_are_summed_each_by_itself(is_dense):
    """30 parts of ten bits: pairs of all, or one term on all ten."""

    def terms(s, weights):
        if is_dense:
            return jnp.log1p((jnp.einsum("...bi,bij->...bj", s, weights) ** 2).sum(axis=-1)).sum(axis=-1)
        return 0.3 * jnp.einsum("...bi,bij,...bj->...", s, weights, s)

    states = 2.0 * ((np.arange(1024)[:, None] >> np.arange(10)) & 1) - 1.0
    each = [np.asarray(terms(jnp.asarray(states)[:, None], jnp.asarray(BLOCKS[b : b + 1]))) for b in range(30)]
    log_prob = lambda theta: terms(2.0 * theta.reshape(30, 10).astype(float) - 1.0, jnp.asarray(BLOCKS))
    check(run(log_prob, tz.binary(300)), sum(map(logsumexp, each)))


def test_the_asia_network_is_exact():
    """Lauritzen & Spiegelhalter (1988): asia, tuberculosis, smoking, lung, bronchitis, either, x-ray, dyspnoea."""
    tables = {
        "a": [0.99, 0.01], "at": [[0.99, 0.01], [0.95, 0.05]], "s": [0.5, 0.5], "sl": [[0.99, 0.01], [0.9, 0.1]],
        "sb": [[0.7, 0.3], [0.4, 0.6]], "tle": [[[1, 0], [0, 1]], [[0, 1], [0, 1]]], "ex": [[0.95, 0.05], [0.02, 0.98]],
        "ebd": [[[0.9, 0.1], [0.2, 0.8]], [[0.3, 0.7], [0.1, 0.9]]],
    }  # fmt: skip
    places = {name: i for i, name in enumerate("atslbexd")}
    arrays = {name: np.asarray(table, float) for name, table in tables.items()}
    with np.errstate(divide="ignore"):
        logs = {name: np.log(table) for name, table in arrays.items()}

    def log_prob(theta):
        seen = jnp.where((theta[places["a"]] == 1) & (theta[places["d"]] == 1), 0.0, -jnp.inf)
        return seen + sum(jnp.asarray(t)[tuple(theta[places[c]] for c in name)] for name, t in logs.items())

    joint = np.einsum(",".join(arrays) + "->atslbexd", *arrays.values())[1, ..., 1]
    for sampler in (tz.Auto(), "exact"):
        result = run(log_prob, tz.binary(8), draws=2000, sampler=sampler)
        assert result.verdict.grade == "exact"
        assert result.log_z == pytest.approx(np.log(joint.sum()), rel=1e-9)
        share, expected = result.theta[..., places["t"]].mean(), joint[1].sum() / joint.sum()
        assert abs(share - expected) < stats.norm.isf(ALPHA / 2) * np.sqrt(expected * (1 - expected) / 16_000)


def test_single_precision_is_enough():
    *model, log_z, marginals = hmm(200)
    with jax.enable_x64(False):
        result = run(*model)
    check(result, log_z, marginals)


def test_terms_that_do_not_add_up_are_never_exact(monkeypatch):
    """The mutant: tables that miss a part of log pi, everywhere or at one configuration of one term."""
    *model, _, _ = hmm(60)
    target = tz.Target(*model)
    right = structure.factor_tables
    key = jax.random.key(0)
    assert exact.eliminated(key, target, 2, 50) is not None

    def shifted(*args):
        factors, constant = right(*args)
        return factors, constant + 1e-5

    def forgotten(*args):
        factors, constant = right(*args)
        return [f._replace(tables=np.where(np.arange(len(f.tables)).reshape(-1, *[1] * (f.tables.ndim - 1)) == 7,
                                           0.0, f.tables)) for f in factors], constant  # fmt: skip

    for mutant in (shifted, forgotten):
        monkeypatch.setattr(structure, "factor_tables", mutant)
        fresh = tz.Target(*hmm(60)[:2])
        assert exact.eliminated(key, fresh, 2, 50) is None
        assert exact.maximum(fresh) is None


def test_other_paths_do_not_eliminate():
    *model, _ = tree(60)
    assert run(*model, sampler="systematic_gibbs").verdict.grade != "exact"
    assert _may_enumerate(as_request(tz.Auto()))
    assert not _may_enumerate(as_request(tz.Auto(exploration=tz.Exploration(max_rounds=20))))
    target = tz.Target(*model)
    assert exact.eliminated(jax.random.key(0), target.tempered(0.5), 2, 10) is None


def test_what_exact_does_not_reach_is_said():
    def lattice(theta):
        s = (2 * theta - 1).reshape(40, 40).astype(float)
        return 0.3 * (s * (jnp.roll(s, 1, 0) + jnp.roll(s, 1, 1))).sum()

    with pytest.raises(UnsupportedError, match=r"2\^1600.*"):
        run(lattice, tz.binary(1600), sampler="exact")
    with pytest.raises(UnsupportedError, match="no terms"):
        run(tz.blackbox(lambda theta: 0.0), tz.binary(60), sampler="exact")
    with pytest.raises(StartError, match="all configurations"):
        run(lambda theta: jnp.where(theta[:-1] != theta[1:] , 0.0, -jnp.inf).sum()
            + jnp.where(theta[0] == theta[1], 0.0, -jnp.inf), tz.binary(60))  # fmt: skip


def test_a_black_box_is_enumerated_by_name():
    result = run(tz.blackbox(lambda theta: float(theta.sum())), tz.binary(6), sampler="exact")
    assert result.verdict.grade == "exact"
    assert result.log_z == pytest.approx(6 * np.log1p(np.e), rel=1e-12)


def test_a_target_is_read_once(monkeypatch):
    from terrazzo.targets import reading

    count = []
    monkeypatch.setattr(reading, "read", lambda *a, **k: count.append(1) or structure.read(*a, **k))
    target = tz.Target(*tree(40)[:2])
    assert structure_of(target) is structure_of(target)
    assert len(count) == 1


def test_the_maximum_is_proven():
    *model, _ = tree(300)
    best = tz.maximize(*model, seed=0, progress="off")
    assert best.is_proven
    coupling = np.random.default_rng(300)
    parent = np.array([coupling.integers(0, i) for i in range(1, 300)])
    coupling = coupling.normal(size=299)
    message = np.tile([-0.3, 0.3], (300, 1))
    for i in range(299, 0, -1):
        message[parent[i - 1]] += (message[i] + coupling[i - 1] * np.array([[1.0, -1.0], [-1.0, 1.0]])).max(axis=1)
    assert best.log_prob == pytest.approx(message[0].max(), rel=1e-12)


def test_explain_says_what_was_found():
    *model, _ = QUICK["strip"]
    found = tz.explain(*model)
    assert (found.num_colours, found.treewidth, found.arity) == (2, 4, 2)
    assert tz.explain(tz.Target(*model)) == found
    with pytest.raises(UnsupportedError, match="black box"):
        tz.explain(tz.blackbox(lambda theta: 0.0), tz.binary(3))
    with pytest.raises(TargetError, match="space"):
        tz.explain(model[0])
