"""Draws do not depend on the number of devices: 1, 2 and 8 host devices, each in a process of its own.

A draw that a sum over devices has changed (in a kernel, its tuning, a ladder, what hybrid learns, or the default
sampler after its choice) is seen as a difference of bits. The networks are the smallest there are: nearly all of the
time is compilation, and every number of devices compiles everything anew.
"""

import re

import numpy as np
import pytest

from forced_devices import on_devices

COUNTS = (1, 2, 8)
DRAWN = ("latent_random_walk", "gibbs", "hybrid", "parallel_tempering", "auto", "ladder 1", "ladder 2")

PROGRAM = """
    import json, pathlib, sys
    import jax, jax.numpy as jnp, numpy as np
    import terrazzo as tz
    from calls import sample_with
    from terrazzo.runtime import devices
    from terrazzo.engine import kernels as running, loop
    from terrazzo.samplers import REGISTRY

    target = tz.Target(lambda t: 0.4 * jnp.sum((2.0 * t[1:] - 1.0) * (2.0 * t[:-1] - 1.0)), tz.binary(6))
    options = dict(seed=1, chains=8, draws=20, warmup=15, progress="off")
    out, called, real = {"devices": len(jax.devices())}, {}, loop.Chains.draw

    def draw(chains, *args):
        called.update(chains=chains, args=args)
        return real(chains, *args)

    loop.Chains.draw = draw

    def exchanges(words=("all-reduce", "all-gather", "all-to-all", "collective-permute", "reduce-scatter")):
        # What the devices exchange in the program that drew last, compiled again from what it was called with.
        c, (key, states, *numbers) = called["chains"], called["args"]
        numbers = [jnp.asarray(n, jnp.int32) for n in (*numbers, c.first_chain)]
        given = (c.layout, c.spec, c.problem, c.length, c.keep_latent, c.parameters, key, *numbers[:3], states)
        text = running.draw.plain.lower(*given, numbers[3]).compile().compiled.as_text()
        assert "while" in text
        return [word for word in words if word in text]

    def keep(name, result):
        if out["devices"] == 8 and not name.startswith("ladder"):
            out[f"exchanged by {name}"] = exchanges()
        out[name] = np.packbits(np.asarray(result.theta)).tobytes().hex()
        out[name + " log_prob"] = result.log_prob.tobytes().hex()

    flow = tz.flow(architecture="affine", num_layers=1, width=8, context_width=4)
    keep("latent_random_walk",
         sample_with(target, sampler="latent_random_walk", transport=flow, training=False, **options))
    keep("gibbs", sample_with(target, sampler="gibbs", **options))
    learned = dict(transport=tz.autoregressive(width=4, num_blocks=0), training=dict(num_steps=30, batch_size=32))
    keep("hybrid", sample_with(target, sampler="hybrid", exploration=dict(max_rounds=60), **learned, **options))
    ladder = {"num_temperatures": 3}
    keep("parallel_tempering", sample_with(target, sampler="parallel_tempering", sampler_options=ladder, **options))
    chain, path = tz.problems.ising_chain(24).target, pathlib.Path(sys.argv[1])
    quick = dict(exploration=dict(max_rounds=100), transport=False)
    options.pop("warmup")
    if not path.exists():  # the first of the processes chooses, by its timings
        sample_with(chain, **quick, **options).save(path)
    keep("auto", sample_with(chain, plan=tz.Result.load(path).plan, **quick, **options))
    product = tz.transports.product_transport(target.space)
    fitted = tz.fit(jax.random.key(1), product, target, num_steps=20, batch_size=32, num_groups=8)
    out["training"] = fitted.history["loss"].tobytes().hex()
    tempering = dict(kernel="gibbs", num_moves=2, num_temperatures=8)
    for chains in (1, 2):  # fewer ladders than devices: replicas are distributed
        few = {**options, "chains": chains, "warmup": 15}
        keep(f"ladder {chains}", sample_with(target, sampler="parallel_tempering", sampler_options=tempering, **few))
    mean = lambda theta: {"mean": jnp.log(jnp.mean(1.0 * theta))}  # -inf at zeros, which other devices have
    kept = tz.sample(target, sampler=tz.samplers.parallel_tempering(keep=mean, **tempering), **few)
    out["kept"] = kept["mean"].tobytes().hex()
    spec, here, zero = REGISTRY["parallel_tempering"], jnp.asarray(2, jnp.int32), jax.random.key(0)
    for dims in (8, 64):
        wide = tz.Target(lambda t: 0.1 * jnp.sum(t), tz.binary(dims))
        ladders = loop.Chains(devices.make_mesh(1), spec, running.Problem(wide, None, tempering), 4)
        states = ladders.start(zero, jnp.zeros((1, dims), jnp.int32))
        given = (ladders.layout, spec, ladders.problem, 4, False, {}, zero, here, here, here, states)
        out[f"round of {dims}"] = running.draw.plain.lower(*given).compile().compiled.as_text()
        out["layout"] = ladders.layout.shape["replicas"]
    mesh = devices.make_mesh(8)
    problem = running.Problem(target, None, {})
    states = running.start(mesh, REGISTRY["gibbs"], problem, {}, jax.random.key(0), jnp.zeros((8, 6), jnp.int32))
    i = jnp.asarray(2, jnp.int32)
    text = running.draw.plain.lower(mesh, REGISTRY["gibbs"], problem, 4, False, {}, jax.random.key(0), i, i, i, states)
    out["hlo"] = text.compile().compiled.as_text()
    out["mesh"] = mesh.size
    json.dump(out, sys.stdout)
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """What each number of devices gives; the default sampler follows one plan, since its choice rests on timings."""
    path = tmp_path_factory.mktemp("devices") / "planned.tz"
    return {count: on_devices(count, str(path), program=PROGRAM) for count in COUNTS}


def test_draws_do_not_depend_on_the_number_of_devices(runs):
    assert [runs[count]["mesh"] for count in COUNTS] == list(COUNTS)
    for name in DRAWN:
        assert runs[1][name] == runs[2][name] == runs[8][name], name
        # Replicas carry log pi through beta log pi: sums over devices move beta, and so log pi, by a rounding.
        values = [np.frombuffer(bytes.fromhex(runs[count][f"{name} log_prob"]), np.float32) for count in COUNTS]
        np.testing.assert_allclose(values[1], values[0], rtol=1e-6, atol=1e-6, err_msg=name)
        np.testing.assert_allclose(values[2], values[0], rtol=1e-6, atol=1e-6, err_msg=name)


COLLECTIVES = ("all-reduce", "all-gather", "all-to-all", "collective-permute", "reduce-scatter")
EXCHANGE = re.compile(rf"= (.*?) (?:{'|'.join(COLLECTIVES)})(?:-start)?\(")


def exchanged(text):
    """The shapes of what devices exchange inside the loops of a compiled program."""
    lines = text.partition("ENTRY")[0].splitlines()
    found = [EXCHANGE.search(line) for line in lines]
    return sorted(match.group(1) for match in found if match)


def test_replicas_on_devices_exchange_log_densities_alone(runs):
    """One ladder of eight replicas on eight devices: the bytes of a round do not depend on d."""
    assert [runs[count]["layout"] for count in COUNTS] == list(COUNTS)
    assert runs[1]["kept"] == runs[2]["kept"] == runs[8]["kept"]
    small, large = (exchanged(runs[8][f"round of {dims}"]) for dims in (8, 64))
    assert small
    assert small == large
    assert not exchanged(runs[1]["round of 64"])


def test_training_on_devices_gives_the_same_losses_up_to_rounding(runs):
    """float32, 20 steps."""
    losses = [np.frombuffer(bytes.fromhex(runs[count]["training"]), np.float32) for count in COUNTS]
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-3)
    np.testing.assert_allclose(losses[2], losses[0], rtol=1e-3)


def test_the_sampling_loop_has_no_collective(runs):
    """Neither by itself, nor in the programs that drew for `tz.sample`: of kernels, of ladders, of the default."""
    for word in COLLECTIVES:
        assert word not in runs[8]["hlo"]
    assert "while" in runs[8]["hlo"]
    for name in DRAWN:
        assert name.startswith("ladder") or runs[8][f"exchanged by {name}"] == [], name


ALL = """
    import json, sys
    import jax, jax.numpy as jnp, numpy as np
    import terrazzo as tz
    from calls import sample_with
    from terrazzo.samplers import MIXED, REGISTRY

    target = tz.Target(lambda t: 0.4 * jnp.sum((2.0 * t[1:] - 1.0) * (2.0 * t[:-1] - 1.0)), tz.binary(6))
    options = dict(seed=1, chains=8, draws=12, warmup=10, progress="off")
    flow = tz.flow(architecture="affine", num_layers=1, width=8, context_width=4)
    out = {}
    for name, spec in REGISTRY.items():
        own = dict(transport=flow, training=False) if "transport" in spec.needs else {}
        if name == "hybrid":
            own = dict(transport=tz.product(), training=False, exploration=False)
        for count in (1, 2, 4, 8):
            with tz.use_devices(count):
                result = sample_with(target, sampler=name, **own, **options)
            out[f"{name} {count}"] = result.codes.tobytes().hex()
            assert result.provenance["device"].startswith(f"{count} x")
    space = tz.Space(label=tz.binary(4), mean=tz.real(2))
    seen = jnp.array([0.3, 1.2, -0.7, 2.2])
    log_joint = lambda v: -0.5 * jnp.sum((seen - v["mean"][v["label"]]) ** 2) - 0.5 * jnp.sum(v["mean"] ** 2)
    for name in MIXED:
        for count in (1, 2, 4, 8):
            with tz.use_devices(count):
                result = tz.sample(tz.Target(log_joint, space), sampler=name, **options)
            out[f"{name} {count}"] = result["mean"].tobytes().hex()
    json.dump(out, sys.stdout)
"""


@pytest.mark.slow
def test_every_sampler_draws_the_same_on_1_2_4_and_8_devices():
    from terrazzo.samplers import MIXED, REGISTRY

    found = on_devices(8, program=ALL)
    different = lambda names, *counts: {n for n in names if len({found[f"{n} {count}"] for count in counts}) > 1}
    assert not different(REGISTRY, 1, 2, 4, 8)
    assert not different(MIXED, 2, 4, 8)  # XLA rounds reals otherwise on one device (docs/scaling.md)
