"""Every mistake gets a typed error that names the field and the remedy, in a few lines, with no JAX frames, at once."""

import traceback

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest

import terrazzo as tz
from terrazzo import transports
from terrazzo.errors import (
    FileFormatError,
    GradientError,
    OptionError,
    SpaceError,
    TargetError,
    TransportError,
    UnsupportedError,
)
from terrazzo.runtime.progress import Progress
from wrong_calls import ROWS

SPACE = tz.binary(3)
TARGET = tz.Target(lambda t: jnp.sum(t.astype(float)), SPACE)
TABLE = jnp.arange(3.0)


def total(theta):
    return jnp.sum(theta.astype(float))


def sample(**options):
    return tz.sample(TARGET, **{"seed": 0, "progress": "off", **options})


def target(fn, space=SPACE, **options):
    return tz.Target(fn, space, **options)


def python_if(theta):
    return 1.0 if theta[0] > 0 else 0.0


def key():
    return jax.random.key(0)


CASES = {
    # spaces
    "negative shape": (lambda: tz.binary(-1), SpaceError, "shape"),
    "zero shape": (lambda: tz.binary(0), SpaceError, "shape"),
    "shape of floats": (lambda: tz.binary(2.5), SpaceError, "shape"),
    "shape of strings": (lambda: tz.binary(("a",)), SpaceError, "shape"),
    "boolean shape": (lambda: tz.binary(True), SpaceError, "shape"),
    "high below low": (lambda: tz.integers(3, 1), SpaceError, "high"),
    "one value": (lambda: tz.integers(3, 3), SpaceError, "high"),
    "float range": (lambda: tz.integers(0.0, 3), SpaceError, "low"),
    "range too wide": (lambda: tz.integers(0, 2**30), SpaceError, "integers"),
    "range beyond 32 bits": (lambda: tz.integers(2**31, 2**31 + 5), SpaceError, "32-bit"),
    "one category": (lambda: tz.categorical(1), SpaceError, "categorical"),
    "no labels": (lambda: tz.categorical([]), SpaceError, "categorical"),
    "repeated labels": (lambda: tz.categorical(["a", "a"]), SpaceError, "distinct"),
    "mixed labels": (lambda: tz.categorical(["a", 1]), SpaceError, "one type"),
    "objects as labels": (lambda: tz.categorical([object(), object()]), SpaceError, "labels"),
    "a string as labels": (lambda: tz.categorical("abc"), SpaceError, "labels"),
    "too few dims": (lambda: tz.binary((2, 2), dims="row"), SpaceError, "dims"),
    "reserved dim": (lambda: tz.binary(2, dims="chain"), SpaceError, "reserved"),
    "coords without dims": (lambda: tz.binary(2, coords={"x": [1, 2]}), SpaceError, "coords"),
    "coords of wrong length": (lambda: tz.binary(2, dims="x", coords={"x": [1]}), SpaceError, "coords"),
    "empty space": (lambda: tz.Space(), SpaceError, "no variables"),
    "unnamed and named": (lambda: tz.Space(tz.binary(), x=tz.binary()), SpaceError, "unnamed"),
    "not a variable": (lambda: tz.Space(x=3), SpaceError, "x"),
    "reserved variable name": (lambda: tz.Space(draw=tz.binary()), SpaceError, "reserved"),
    "one dim of two lengths": (
        lambda: tz.Space(a=tz.binary(2, dims="x"), b=tz.binary(3, dims="x")), SpaceError, "length"),
    "too large to enumerate": (lambda: tz.Space(tz.binary(60)).enumerate(), SpaceError, "enumerate"),
    "value out of range": (lambda: tz.Space(SPACE).encode([0, 1, 2]), SpaceError, "outside"),
    "value not whole": (lambda: tz.Space(SPACE).encode([0, 1, 0.5]), SpaceError, "whole"),
    "unknown label": (lambda: tz.Space(c=tz.categorical(["a", "b"])).encode({"c": "z"}), SpaceError, "labels"),
    "missing variable": (lambda: tz.Space(a=SPACE, b=SPACE).encode({"a": [0, 0, 0]}), SpaceError, "exactly"),
    "array for a dict": (lambda: tz.Space(a=SPACE, b=SPACE).encode([0]), SpaceError, "dict"),
    # targets
    "not a function": (lambda: target(3), TargetError, "function"),
    "space is a number": (lambda: target(total, 20), SpaceError, "space"),
    "space is missing": (lambda: tz.sample(total, seed=0), TargetError, "space"),
    "vector valued": (lambda: target(lambda t: t.astype(float)), TargetError, "shape"),
    "returns None": (lambda: target(lambda t: None), TargetError, "not a number"),
    "returns a tuple": (lambda: target(lambda t: (1.0, 2.0)), TargetError, "not a number"),
    "returns a boolean": (lambda: target(lambda t: t[0] == 1), TargetError, "dtype"),
    "returns complex": (lambda: target(lambda t: total(t) * 1j), TargetError, "dtype"),
    "raises": (lambda: target(lambda t: {}["x"]), TargetError, "KeyError"),
    "wrong key": (lambda: target(lambda v: v["b"], tz.Space(a=SPACE)), TargetError, "'b'"),
    "wrong arity": (lambda: target(lambda a, b: 0.0), TargetError, "TypeError"),
    "python if": (lambda: target(python_if), TargetError, "tz.blackbox"),
    "numpy inside": (lambda: target(lambda t: np.sum(np.asarray(t))), TargetError, "tz.blackbox"),
    "float inside": (lambda: target(lambda t: float(t[0])), TargetError, "tz.blackbox"),
    "NaN": (lambda: target(lambda t: jnp.log(-1.0 - total(t))), TargetError, "theta ="),
    "plus infinity": (lambda: target(lambda t: 1.0 / total(t)), TargetError, "theta ="),
    "index beyond a table": (lambda: target(lambda t: TABLE[t].sum(), tz.integers(0, 3, 2)), TargetError, "table"),
    "batch function not marked": (lambda: target(lambda t: total(t)[None]), TargetError, "shape"),
    "marked but not batched": (lambda: target(total, vectorized=True), TargetError, "batch"),
    "black box not callable": (lambda: tz.blackbox(3), TargetError, "function"),
    "black box raises": (lambda: target(tz.blackbox(lambda t: 1 / 0)), TargetError, "ZeroDivisionError"),
    "black box returns an array": (lambda: target(tz.blackbox(lambda t: t)), TargetError, "number"),
    "black box returns text": (lambda: target(tz.blackbox(lambda t: "x")), TargetError, "number"),
    "black box NaN": (lambda: target(tz.blackbox(lambda t: float("nan"))), TargetError, "nan"),
    "colours of wrong length": (lambda: target(total, colours=[0, 1]), TargetError, "colours"),
    "space differs from target": (lambda: tz.sample(TARGET, tz.binary(4), seed=0), TargetError, "space"),
    "gradient of a table": (
        lambda: target(lambda t: TABLE[t].sum()).log_prob_relaxed(jnp.zeros(3)), GradientError, "differentiated"),
    # sample
    "zero draws": (lambda: sample(draws=0), OptionError, "draws"),
    "float draws": (lambda: sample(draws=1e3), OptionError, "draws"),
    "zero chains": (lambda: sample(chains=0), OptionError, "chains"),
    "negative warm-up": (lambda: sample(warmup=-1), OptionError, "warmup"),
    "zero thinning": (lambda: sample(thin=0), OptionError, "thin"),
    "negative seed": (lambda: sample(seed=-1), OptionError, "seed"),
    "seed of text": (lambda: sample(seed="0"), OptionError, "seed"),
    "unknown sampler": (lambda: sample(sampler="gibs"), OptionError, "did you mean gibbs"),
    "sampler of wrong type": (lambda: sample(sampler=3), OptionError, "sampler"),
    "unknown sampler option": (lambda: tz.samplers.gibbs(wobble=1), OptionError, "wobble"),
    "unknown transport": (lambda: sample(sampler=tz.Auto(transport="flux")), OptionError, "transport"),
    "transport of wrong type": (lambda: sample(sampler=tz.Auto(transport=3)), TransportError, "transport"),
    "transport of another space": (
        lambda: sample(sampler=tz.samplers.latent_pcn(transport=transports.product_transport(tz.binary(4)))),
        TransportError, "space"),
    "unknown transport option": (
        lambda: tz.flow(wings=2), OptionError, "wings"),
    "training of wrong type": (lambda: sample(sampler=tz.Auto(training=3)), OptionError, "training"),
    "unknown precision": (lambda: sample(precision="float16"), OptionError, "precision"),
    "latent of a discrete sampler": (lambda: tz.samplers.gibbs(keep_latent=True), OptionError, "keep_latent"),
    "unknown progress": (lambda: sample(progress="loud"), OptionError, "progress"),
    "init out of range": (lambda: sample(sampler="gibbs", init=[0, 0, 7]), SpaceError, "outside"),
    "init of wrong length": (lambda: sample(sampler="gibbs", init=[0, 0]), SpaceError, "shape"),
    "init for other chains": (lambda: sample(sampler="gibbs", chains=4, init=np.zeros((3, 3))), OptionError, "init"),
    "impossible init": (
        lambda: tz.sample(
            lambda t: jnp.where(t[0] == 1, 0.0, -jnp.inf), SPACE, seed=0, sampler="gibbs", init=[0, 0, 0],
            progress="off"),
        OptionError, "init"),
    "checkpoint is a file": (lambda: sample(sampler="gibbs", checkpoint=__file__), OptionError, "checkpoint"),
    "no gradient for langevin": (
        lambda: tz.sample(lambda t: TABLE[t].sum(), SPACE, seed=0, sampler="discrete_langevin", progress="off"),
        UnsupportedError, "differentiable"),
    # transports and training
    "unknown architecture": (lambda: tz.flow(architecture="big").build(key(), SPACE), OptionError, "spline"),
    "unknown dequantizer": (lambda: tz.flow(dequantizer="none").build(key(), SPACE), OptionError, "uniform"),
    "zero layers": (lambda: transports.flow_transport(SPACE, key=key(), num_layers=0), OptionError, "num_layers"),
    "float width": (lambda: transports.flow_transport(SPACE, key=key(), width=8.0), OptionError, "width"),
    "logits of wrong shape": (lambda: transports.product_transport(SPACE, logits=[1.0]), TransportError, "logits"),
    "unknown gradient": (lambda: tz.reverse_kl("magic"), OptionError, "gradient"),
    "zero steps": (lambda: fit(num_steps=0), OptionError, "num_steps"),
    "batch of one": (lambda: fit(batch_size=1), OptionError, "batch_size"),
    "negative learning rate": (lambda: fit(learning_rate=-1.0), OptionError, "learning_rate"),
    "infinite clip": (lambda: fit(clip_norm=float("inf")), OptionError, "clip_norm"),
    "beta above one": (lambda: fit(start_beta=2.0), OptionError, "start_beta"),
    "straight-through product": (
        lambda: fit(objective=tz.reverse_kl("straight_through")),
        OptionError,
        "score_function",
    ),
    "fit for another space": (
        lambda: tz.fit(key(), transports.product_transport(tz.binary(4)), TARGET), OptionError, "space"),
    # results and files
    "no such file": (lambda: tz.Result.load("/no/such/file.tz"), FileFormatError, "/no/such/file.tz"),
    "not our file": (lambda: tz.Result.load(__file__), FileFormatError, "test_bad_input"),
    "progress of wrong mode": (lambda: Progress("shout"), OptionError, "progress"),
}  # fmt: skip


def fit(**options):
    return tz.fit(key(), transports.product_transport(SPACE), TARGET, **options)


@pytest.fixture(autouse=True)
def without_type_checks():
    """Users have no run-time type checker: our own checks must find the mistake."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


ALL = {**CASES, **ROWS}


@pytest.mark.parametrize("name", ALL)
def test_mistakes_are_named(name):
    call, kind, word = ALL[name]
    with pytest.raises(kind) as caught:
        call()
    text = str(caught.value)
    assert word.lower() in text.lower(), text
    assert "->" in text
    assert len(text.splitlines()) <= 5
    assert len(text) < 600
    frames = traceback.extract_tb(caught.value.__traceback__)
    assert not [f for f in frames if "/jax/" in f.filename], "JAX frames reach the user"
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_there_are_enough_cases():
    assert len(ALL) >= 500
    assert not set(CASES) & set(ROWS)
    assert UnsupportedError.__mro__[1] is OptionError


def test_a_black_box_that_is_no_function_is_refused():
    rng = np.random.default_rng(0)
    with pytest.raises(TargetError, match=r"at the same theta(?s:.*)fix the seed"):
        tz.Target(tz.blackbox(lambda theta: float(rng.normal() - theta.sum())), tz.binary(4))
