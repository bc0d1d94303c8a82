"""Mistakes in how chains and ladders are distributed are seen by the law that draws do not depend on devices."""

import pytest

from forced_devices import on_devices
from mutants.distribution import MUTANTS

PROGRAM = """
    import json, sys
    import jax, jax.numpy as jnp, numpy as np
    import terrazzo as tz
    from mutants.distribution import MUTANTS
    from terrazzo.engine.kernels import Problem
    from terrazzo.engine.loop import Chains, placed
    from terrazzo.runtime import devices
    from terrazzo.samplers import REGISTRY

    target = tz.Target(lambda t: 0.4 * jnp.sum((2.0 * t[1:] - 1.0) * (2.0 * t[:-1] - 1.0)), tz.binary(6))
    flow = tz.flow(architecture="affine", num_layers=1, width=8, context_width=4)
    flow = flow.build(jax.random.key(0), target.space)

    def drawn(name, num_chains, transport=None, **options):
        mesh, spec = devices.make_mesh(num_chains), REGISTRY[name]
        chains = Chains(mesh, spec, Problem(target, placed(mesh, transport), options), 40, keep_latent=spec.has_latent)
        states = chains.start(jax.random.key(1), np.zeros((num_chains, 6), np.int32))
        rows = chains.draw(jax.random.key(2), states, 0, 40, 1)[1]
        return np.asarray(rows["latent" if spec.has_latent else "theta"])

    # Bits of z, not theta alone. XLA compiles otherwise for one device than for several: eight are compared with two.
    RUNS = {
        "ladder": (1, lambda: drawn("parallel_tempering", 1, kernel="gibbs", num_temperatures=8)),
        "gibbs": (1, lambda: drawn("gibbs", 8)),
        "lone chain": (2, lambda: drawn("latent_mala", 8, flow, step_size=0.3)),
    }

    def on(count, law):
        jax.clear_caches()  # what was traced before the mutant was planted
        with tz.use_devices(count):
            return RUNS[law][1]()

    expected = {law: on(count, law) for law, (count, _) in RUNS.items()}
    out = {law: bool(np.array_equal(on(8, law), expected[law])) for law in RUNS}
    for mutant in MUTANTS:
        with mutant.planted():
            out[mutant.name] = bool(np.array_equal(on(8, mutant.law), expected[mutant.law]))
    json.dump(out, sys.stdout)
"""


@pytest.fixture(scope="module")
def is_same():
    """Whether eight devices draw what one does, of the code as it is and of each mutant."""
    return on_devices(8, program=PROGRAM)


def test_the_law_holds(is_same):
    assert is_same["ladder"]
    assert is_same["gibbs"]
    assert is_same["lone chain"]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_is_caught(is_same, mutant):
    assert not is_same[mutant.name]
