# ruff: noqa: E501
"""Planted mistakes in the samplers with auxiliary variables: (module, what stands there, what the mutant has instead).

Each law of `test_auxiliary_laws.py` must catch the mutants of its sampler. A mutant is the module's own source with one
change, so that nothing else differs.
"""

import importlib
import inspect
import types

DHMC = "terrazzo.samplers.discontinuous_hmc"
BINARY = "terrazzo.samplers.binary_hmc"
INTEGRAL = "terrazzo.samplers.gaussian_integral_hmc"
CLUSTER = "terrazzo.samplers.swendsen_wang"
TEMPERING = "terrazzo.samplers.tempering"
SMC = "terrazzo.samplers.smc"

MUTANTS = {
    "discontinuous_hmc: the jump is not paid for": (DHMC, "jnp.where(is_crossed, speed + change, -speed)", "jnp.where(is_crossed, speed, -speed)"),
    "discontinuous_hmc: stops at the border instead of turning back": (DHMC, "is_crossed = is_inside & (speed", "is_crossed = (speed"),
    "discontinuous_hmc: Gaussian momentum": (DHMC, "jax.random.laplace(", "jax.random.normal("),
    "discontinuous_hmc: energy with the wrong sign": (DHMC, "log_change(log_prob, state.log_prob)", "log_change(state.log_prob, log_prob)"),
    "binary_hmc: the jump is not paid for": (BINARY, "energy.at[site].add(jnp.where(is_crossed, change, 0.0))", "energy"),
    "binary_hmc: energy of one normal only": (BINARY, "energy = jax.random.exponential(energy_key, (num_dims,), dtype)", "energy = jax.random.normal(energy_key, (num_dims,), dtype) ** 2 / 2"),
    "binary_hmc: crosses whatever it costs": (BINARY, "is_crossed = energy[site] + change > 0", "is_crossed = energy[site] > 0"),
    "binary_hmc exponential: speed of the wrong law": (
        BINARY,
        "speed = jax.random.normal(",
        "speed = jax.random.laplace(",
    ),
    "gaussian_integral_hmc: the diagonal is not taken back": (INTEGRAL, "- shift / 2)", "- 0.0 * shift)"),
    "gaussian_integral_hmc: no noise in v": (INTEGRAL, 'precision="highest") + noise', 'precision="highest") + 0.5 * noise'),
    "gaussian_integral_hmc: always accepts": (INTEGRAL, "moved, info = hmc.step(move_key, hmc.init(v))", "moved, info = hmc.step(move_key, hmc.init(v)); moved = info.proposal"),
    "swendsen_wang: bonds of twice the coupling": (CLUSTER, "log1mexp(-jnp.abs(couplings))", "log1mexp(-2 * jnp.abs(couplings))"),
    "swendsen_wang: fields ignored": (CLUSTER, ".at[labels].add(gain)", ".at[labels].add(0 * gain)"),
    "swendsen_wang: labels not followed to their root": (CLUSTER, "(labels, jnp.asarray(True)))[0]", "(labels, jnp.asarray(True)))[0] * 0 + lower((labels, True))[0]"),
    "swendsen_wang: bonds on unsatisfied edges": (CLUSTER, "is_equal == (couplings > 0)", "is_equal | (couplings > -9)"),
    "parallel_tempering: swap ratio inverted": (TEMPERING, "jnp.diff(betas) * (log_probs[:-1] - log_probs[1:])", "jnp.diff(betas) * (log_probs[1:] - log_probs[:-1])"),
    "parallel_tempering: log pi stays behind at a swap": (TEMPERING, "positions, log_probs = positions[order], log_probs[order]", "positions = positions[order]"),
    "parallel_tempering: overlapping swaps": (TEMPERING, "is_swapped = is_tried & ", "is_swapped = "),
    "softened tempering: the impossible reaches the cold end": (TEMPERING, "positions[-2])) > -jnp.inf", "positions[-2])) >= -jnp.inf"),
    "parallel_tempering: tempered log pi in the swap": (TEMPERING, "replicas.log_prob / betas)", "replicas.log_prob)"),
    "smc: the volume of the space forgotten": (SMC, "log_states + jnp.log(share)", "jnp.log(share)"),
    "smc: impossible starts not counted": (SMC, "log_states + jnp.log(share)", "log_states"),
    "smc: one temperature too cold": (SMC, "target.tempered(logdensity_fn(None))", "target.tempered(0.5 + 0.5 * logdensity_fn(None))"),
}  # fmt: skip


def broken(name):
    """The mutant as a module of its own."""
    path, old, new = MUTANTS[name]
    source = inspect.getsource(importlib.import_module(path))
    assert source.count(old) == 1, f"{name}: {source.count(old)} places fit"
    module = types.ModuleType(f"{path}_broken")
    exec(compile(source.replace(old, new), f"<{name}>", "exec"), module.__dict__)
    return module
