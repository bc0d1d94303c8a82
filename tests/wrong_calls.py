"""A table of wrong calls over the whole public surface: the call, the error it must give, a word its message must hold.

`tests/test_bad_input.py` makes each of them. Values here are what users pass by mistake: numbers where objects belong,
zero and negative counts, text, NaN, infinities, arrays of wrong shapes, and sizes that no machine holds.
"""

import re

import jax
import jax.numpy as jnp
import numpy as np

import terrazzo as tz
from terrazzo import problems, samplers
from terrazzo.errors import OptionError, SpaceError, TargetError, TransportError, UnsupportedError
from terrazzo.runtime.progress import Progress
from terrazzo.transports import posterior_log_weights

SPACE = tz.binary(3)


def total(theta):
    return jnp.sum(theta.astype(float))


TARGET = tz.Target(total, SPACE)
PRODUCT = tz.transports.product_transport(SPACE)
NAMED = tz.Space(a=tz.binary(2), b=tz.integers(1, 3))
NAN, INF = float("nan"), float("inf")


def key():
    return jax.random.key(0)


def python_if(theta):
    if theta[0] > 0:
        return 1.0
    return 0.0


def sample(**options):
    return tz.sample(TARGET, **{"seed": 0, "sampler": "gibbs", "progress": "off", **options})


def auto(**options):
    return tz.sample(TARGET, seed=0, progress="off", sampler=tz.Auto(**options))


def maximize(**options):
    return tz.maximize(TARGET, **{"seed": 0, "progress": "off", "enumerate_up_to": 0, **options})


def tempering(**options):
    return sample(sampler=samplers.parallel_tempering(**options))


class Nothing:
    """A kernel that does not keep to the contract."""

    def init(self, position, rng_key):
        return None

    def step(self, rng_key, state):
        return None


class Real(Nothing):
    """A kernel on real numbers."""

    def init(self, position, rng_key):
        return samplers.State(position.astype(float), jnp.zeros(()))

    def step(self, rng_key, state):
        return state, None


def smc(**options):
    run = {name: options.pop(name) for name in ("chains", "draws") if name in options}
    return sample(sampler=tz.samplers.smc(**options), **run)


def fit(**options):
    return tz.fit(key(), PRODUCT, TARGET, **options)


def by_name(sampler, **options):
    return sample(sampler=samplers.get(sampler)(**options))


def words(value):
    """A value as part of a test's name: the same in every process."""
    return re.sub(r" at 0x\w+", "", " ".join(repr(value).split()))[:30]


def _table(call, kind, title=None, **wrong):
    """One row for each value of each argument: `name=[values]`."""
    rows = {}
    for name, values in wrong.items():
        for value in values:
            rows[f"{title or getattr(call, '__name__', call)} {name}={words(value)}"] = (
                lambda n=name, v=value: call(**{n: v}),
                kind,
                name,
            )
    return rows


ROWS = {
    **_table(
        sample,
        OptionError,
        chains=[-3, 2.0, "8", None, True, 10**9, 10**12, [8]],
        draws=[-1, None, "many", 10**12, NAN, True],
        warmup=[2.5, "long", 10**10, True],
        thin=[-2, 10**10, 1.5, "two"],
        seed=[-5, 2**64, 1.0, None, "seed", True, [0]],
        max_seconds=[0, -1, INF, NAN, "1 min", True, [3]],
        max_evaluations=[0, -1, INF, NAN, "many"],
        checkpoint=[3, "", True, ["run"]],
        sampler=[["gibbs"], None, "", "Gibbs sampler", 1.5, {"gibbs": 1}],
        progress=[3, None, "loud", ["off"], np.zeros(2)],
        precision=[64, "double", ["float64"], True],
    ),
    **{
        f"memory of {k}": (lambda o=o: sample(**o), OptionError, "memory")
        for k, o in {
            "chains": {"chains": 10**9},
            "draws": {"draws": 10**9, "chains": 1000},
            "latent": {
                "sampler": samplers.latent_pcn(transport=PRODUCT, training=False, keep_latent=True),
                "draws": 2**31 - 1,
                "chains": 100,
            },
        }.items()
    },
    **_table(sample, SpaceError, init=["zeros", [0, 1], [0, 1, NAN], [[0], [1, 2]], {"x": 1}, object(), [0, 1, None]]),
    **_table(auto, OptionError, exploration=["long", 3, {"max_rounds": 2}], training=["long", [1], {"num_steps": 2}]),
    **_table(tz.Exploration, OptionError, num_ladders=[1, 2.5, "two"], max_rounds=[0, "all"]),
    **_table(
        tz.Training,
        OptionError,
        num_steps=[0, 0.5, "many"],
        batch_size=[1, 2.5],
        learning_rate=[0, -1.0, "slow", NAN],
        clip_norm=[0, INF],
        start_beta=[-0.5, 2.0],
        anneal_steps=[-1],
        patience=[0],
        check_every=[0],
        num_groups=[0],
        objective=[3, "reverse"],
    ),
    **_table(samplers.latent_pcn, OptionError, wings=[2], colours=[[0, 1]]),
    **_table(tz.autoregressive, OptionError, wings=[2], space=[SPACE]),
    "keep_latent of text": (lambda: sample(sampler=samplers.latent_pcn(keep_latent="yes")), OptionError, "keep_latent"),
    "keep_latent without a latent": (lambda: samplers.gibbs(keep_latent=True), OptionError, "keep_latent"),
    "a transport for gibbs": (lambda: samplers.gibbs(transport="flow"), OptionError, "transport"),
    "positional options": (lambda: sample(sampler=samplers.smc, init=np.zeros(3)), OptionError, "init"),
    "a plan for smc": (lambda: sample(sampler=samplers.smc, plan=3), OptionError, "plan"),
    "importance without a transport": (lambda: sample(sampler=samplers.importance), TransportError, "transport"),
    "importance by a recipe": (
        lambda: sample(sampler=samplers.importance(transport=tz.flow())),
        TransportError,
        "trained",
    ),
    "a kernel that returns nothing": (lambda: sample(sampler=Nothing()), OptionError, "kernel of your own"),
    "a kernel of real positions": (lambda: sample(sampler=Real()), OptionError, "position"),
    **_table(
        maximize,
        OptionError,
        seed=[-1, 2**64, None, "0"],
        num_rounds=[0, -1, 2.5, "many"],
        patience=[0, "long"],
        chains=[0, -1, 10**10, "4"],
        num_temperatures=[0, 1.5],
        max_seconds=[0, -1, NAN, INF, "1"],
        max_evaluations=[0, -5, 1.5],
        max_inverse_temperature=[0, -1, NAN, INF],
        kernel=["gibs", 3, ["gibbs"], samplers.hybrid, samplers.smc()],
        enumerate_up_to=[-1, 0.5, 2**40],
        precision=["half", 32],
        progress=["loud"],
    ),
    **_table(maximize, SpaceError, init=["zeros", [0, 1], [0, 1, 7], object()]),
    **_table(
        tempering,
        OptionError,
        num_temperatures=[0, "16"],
        kernel=["gibs", 3, samplers.hybrid, samplers.smc()],
        num_moves=[0, "two"],
        wobble=[1],
        inverse_temperatures=[
            [0, 0.5],
            [0.5, 0.2, 1.0],
            [-0.1, 1.0],
            [0.0, NAN, 1.0],
            "hot",
            [],
            1.0,
            [0.0, 1.0, 1.0],
            [0.0, 1.0, 2.0],
            [[0.0, 1.0]],
        ],
    ),
    **_table(
        smc,
        OptionError,
        draws=[0, 1, -1, 2.5, "many", 10**10],
        chains=[0, "4"],
        num_moves=[0, 1.5],
        target_ess=[0, 1, -1, NAN, "half"],
        kernel=["gibs", 3],
    ),
    **_table(
        fit,
        OptionError,
        num_steps=[-1, "many", 10**10],
        batch_size=[0, 2.5, 10**12],
        learning_rate=[0, NAN, INF, "fast"],
        optimizer=["adam", 3],
        clip_norm=[0, NAN],
        start_beta=[-0.5, NAN, "cold"],
        anneal_steps=[-1, 0.5],
        patience=[0, -1, "long"],
        check_every=[0, 1.5],
        num_groups=[0, "two"],
        enough_is_ess=[0, 2, NAN],
        objective=["reverse_kl", 3],
        check_objective=["kl"],
        check_first=["yes"],
        should_stop=[3],
        progress=["off", 3],
    ),
    **_table(
        lambda **o: by_name("parallel_tempering", **o),
        OptionError,
        "parallel_tempering",
        inverse_temperatures=[[0, 0.5], [1.0, 0.0], "hot"],
        num_temperatures=[0, 2.5],
        num_moves=[0],
        kernel=["gibs", 3],
        kernel_options=[3],
    ),
    # keys, targets and transports of other kinds
    **{
        f"key of {name} = {value!r}": (lambda c=call, v=value: c(v), OptionError, "key")
        for value in (0, None, "key", 1.5)
        for name, call in {
            "fit": lambda k: tz.fit(k, PRODUCT, TARGET),
            "sample_transport": lambda k: tz.transports.sample_transport(k, PRODUCT, TARGET, 10),
            "transport.sample": lambda k: PRODUCT.sample(k, 10),
            "flow_transport": lambda k: tz.transports.flow_transport(SPACE, key=k),
            "autoregressive_transport": lambda k: tz.transports.autoregressive_transport(SPACE, key=k),
        }.items()
    },
    "many keys": (lambda: tz.fit(jax.random.split(key(), 3), PRODUCT, TARGET), OptionError, "key"),
    **{
        f"target of {name} is {what}": (lambda c=call, v=value: c(v), TargetError, "target")
        for what, value in {"a function": total, "a number": 3, "None": None}.items()
        for name, call in {
            "fit": lambda t: tz.fit(key(), PRODUCT, t),
            "condition": lambda t: tz.condition(t, {0: 1}),
            "sample_transport": lambda t: tz.transports.sample_transport(key(), PRODUCT, t, 10),
            "coupling_order": lambda t: tz.transports.coupling_order(t),
            "exact_answers": lambda t: problems.exact_answers(t),
            "posterior_log_weights": lambda t: posterior_log_weights(key(), PRODUCT, t, np.zeros((1, 3), int)),
        }.items()
    },
    **{
        f"transport of {name} is {value!r}": (lambda c=call, v=value: c(v), TransportError, "transport")
        for value in (3, "flow")
        for name, call in {
            "fit": lambda t: tz.fit(key(), t, TARGET),
            "sample_transport": lambda t: tz.transports.sample_transport(key(), t, TARGET, 10),
        }.items()
    },
    "sample_transport of another space": (
        lambda: tz.transports.sample_transport(key(), tz.transports.product_transport(tz.binary(4)), TARGET, 10),
        TransportError,
        "space",
    ),
    **{
        f"sample_transport {n!r} draws": (
            lambda n=n: tz.transports.sample_transport(key(), PRODUCT, TARGET, n),
            OptionError,
            "num_draws",
        )
        for n in (0, -1, 2.5, "ten", None)
    },
    "draws of a transport that do not fit": (lambda: PRODUCT.sample(key(), 2**31 - 1), OptionError, "memory"),
    # conditions
    **{
        f"clamped to {words(v)}": (lambda v=v: tz.condition(TARGET, v), SpaceError, "theta")
        for v in (
            {0: 7},
            {5: 1},
            {"a": 1},
            [0, 1],
            "zeros",
            {0: "x"},
            {0: None},
            np.ma.masked_array([0, 1], [1, 0]),
            object(),
        )
    },
    "everything clamped": (lambda: tz.condition(TARGET, [0, 0, 0]), OptionError, "clamped"),
    "an unknown variable clamped": (
        lambda: tz.condition(tz.Target(lambda v: total(v["a"]), NAMED), {"c": 1}),
        SpaceError,
        "clamped",
    ),
    "named variables clamped by an array": (
        lambda: tz.condition(tz.Target(lambda v: total(v["a"]), NAMED), [0, 1]),
        SpaceError,
        "clamped",
    ),
    # targets
    **{
        f"Target {n}={words(v)}": (lambda n=n, v=v: tz.Target(total, SPACE, **{n: v}), TargetError, n)
        for n, values in {
            "site_logits": [3, "fast"],
            "one_hot_log_prob": [3],
            "running_conditionals": [3, total],
            "penalty": [3, "count"],
            "colours": ["red", [0, 1], [0.5, 1, 2], [-1, 0, 1], [[0, 1, 2]]],
        }.items()
        for v in values
    },
    **{
        f"Target {n}={words(v)}": (lambda n=n, v=v: tz.Target(total, SPACE, **{n: v}), OptionError, n)
        for n, v in (("vectorized", "yes"), ("probe", 3), ("probe", None))
    },
    "a Python if, by line": (lambda: tz.Target(python_if, SPACE), TargetError, "if theta[0] > 0"),
    "a missing key, by line": (lambda: tz.Target(lambda v: v["gene"], NAMED), TargetError, "wrong_calls.py, line"),
    "a black box that raises, by line": (
        lambda: tz.Target(tz.blackbox(lambda t: [][int(t[0])]), SPACE),
        TargetError,
        "wrong_calls.py, line",
    ),
    "a penalty that is never 0": (
        lambda: tz.Target(total, SPACE, penalty=lambda t: 1.0 + total(t)),
        TargetError,
        "penalty",
    ),
    # spaces
    **{
        f"encode {words(v)}": (lambda v=v: tz.Space(SPACE).encode(v), SpaceError, "theta")
        for v in ("zeros", [0, 1, INF], [0, 1, 1j], [0, 1, None], [[0, 1]], object(), {"theta": [0, 1, 9]})
    },
    "labels of lists": (
        lambda: tz.Space(c=tz.categorical(["a", "b"])).encode({"c": np.array([["a"], None], object)}),
        SpaceError,
        "label",
    ),
    **{
        f"as_space({v!r})": (lambda v=v: tz.transports.product_transport(v), SpaceError, "space")
        for v in (None, "binary", [2, 2], {"a": 2})
    },
    "dims of numbers": (lambda: tz.binary(3, dims=(1,)), SpaceError, "dims"),
    "dims a number": (lambda: tz.binary(3, dims=7), SpaceError, "dims"),
    "coords a list": (lambda: tz.binary(3, dims="x", coords=["a", "b", "c"]), SpaceError, "coords"),
    "coords a number": (lambda: tz.binary(3, dims="x", coords={"x": 3}), SpaceError, "coords"),
    # transports and objectives
    **_table(
        lambda **o: tz.transports.flow_transport(SPACE, key=key(), **o),
        OptionError,
        "flow_transport",
        num_layers=[-1, 2.5],
        width=[0, 2**40],
        depth=[0, "deep"],
        context_width=[-1],
        architecture=[3, ["spline"]],
        dequantizer=[None],
    ),
    **_table(
        lambda **o: tz.transports.autoregressive_transport(SPACE, key=key(), **o),
        OptionError,
        "autoregressive_transport",
        width=[0, "wide", 2**40],
        num_blocks=[-1, 1.5],
        hidden=[0],
        order=[[0, 1], [0, 0, 1], "natural", [0.0, 1.0, 2.0], 3],
    ),
    **_table(
        lambda **o: tz.transports.product_transport(SPACE, **o),
        TransportError,
        "product_transport",
        logits=["zeros", 3, [[1, 2]], object()],
    ),
    **_table(
        lambda **o: tz.transports.coupling_order(TARGET, **o),
        OptionError,
        "coupling_order",
        num_points=[0, 1.5],
        max_evaluations=[0, "many"],
        seed=[-1],
        theta=[np.zeros(3), np.zeros((2, 4))],
    ),
    **_table(tz.reverse_kl, OptionError, gradient=[3, None, ["auto"]]),
    **_table(
        lambda **o: tz.forward_kl(**{"draws": np.zeros((4, 3), int), **o}),
        OptionError,
        "forward_kl",
        draws=["all", 3, np.zeros(3), np.zeros((0, 3), int), np.zeros((2, 3))],
        weight=[0, 2, NAN, "half"],
        reverse=[3],
    ),
    "draws of another space": (lambda: fit(objective=tz.forward_kl(np.zeros((4, 5), int))), OptionError, "draws"),
    # problems
    **_table(problems.ising_torus, OptionError, length=[1, 2.5, 10**6], coupling=[NAN, "strong"], field=[INF]),
    **_table(
        problems.potts_torus, OptionError, length=[2], num_values=[1, "three"], coupling=[NAN], field=[[1.0], "up"]
    ),
    **_table(problems.mixture, OptionError, index=[4, -1, "ring"], num_bits=[0, 40, 2.5]),
    **_table(problems.ising_chain, OptionError, num_spins=[2, "many"], coupling=[NAN], field=["x"], seed=[-1]),
    **_table(problems.spin_glass, OptionError, num_spins=[1], beta=[INF], seed=["0"]),
    **_table(problems.curie_weiss, OptionError, num_spins=[0], coupling=["x"], field=[NAN]),
    **_table(problems.boltzmann_machine, OptionError, num_visible=[0], num_hidden=[2.5], scale=[NAN], seed=[None]),
    **_table(
        problems.variable_selection,
        OptionError,
        num_features=[0, "x"],
        num_informative=[-1, 1000],
        noise=[-1, NAN],
        num_rows=[0],
        seed=[-1],
    ),
    **_table(
        problems.quantised_logistic,
        OptionError,
        dataset=["irises", 3],
        num_bits=[0, 9],
        prior=["flat"],
        fold=[5, "all"],
    ),
    **_table(problems.ising_mnist, OptionError, setting=["book", 3], beta=[NAN], eta=["x"]),
    "labels for other rows": (lambda: problems.logistic_target(np.zeros((3, 2)), [0, 1]), OptionError, "labels"),
    "features of text": (lambda: problems.logistic_target([["a"]], [0]), OptionError, "features"),
    "responses of text": (lambda: problems.selection_target(np.zeros((3, 2)), "abc"), OptionError, "responses"),
    # samplers and the rest
    **{
        f"sampler {n} {o}": (lambda n=n, o=o: by_name(n, **o), OptionError, next(iter(o)))
        for n, o in (
            ("gibbs", {"num_updates": 0}),
            ("systematic_gibbs", {"num_sweeps": "two"}),
            ("block_gibbs", {"block_size": 0}),
            ("coloured_gibbs", {"colours": [0, 1]}),
            ("coloured_gibbs", {"num_sweeps": 0}),
            ("coloured_gibbs", {"colours": "red"}),
            ("slice_gibbs", {"num_updates": -1}),
        )
    },
    "interacting colours": (
        lambda: tz.sample(
            lambda t: total(t) ** 2, SPACE, seed=0, sampler=samplers.coloured_gibbs(colours=[0, 0, 1]), progress="off"
        ),
        UnsupportedError,
        "sites 0 and 1",
    ),
    "an unknown sampler by lookup": (lambda: samplers.get({"a": 1}), OptionError, "sampler"),
    "progress of a list": (lambda: Progress(["off"]), OptionError, "progress"),
    "a Result of text": (lambda: tz.Result(space=tz.Space(SPACE), theta="abc"), SpaceError, "theta"),
    "a Result of another space": (
        lambda: tz.Result(space=tz.Space(SPACE), theta=np.zeros((1, 2, 4), int)),
        SpaceError,
        "theta",
    ),
}
