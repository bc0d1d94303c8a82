"""Which sampler? Effective draws per second and per thousand evaluations, on six problems of different make.

The figure is the smallest effective sample size (bulk, over all chains) of log pi and of all coordinates that are not
constant, from random starts, after a tuned warm-up of 2 seconds, in a run of about 4 seconds. A run whose chains
disagree (R-hat above 1.2 on any of these) has no figure: it failed in that time. Seconds are CPU seconds of sampling
alone, compilation and warm-up left out, so that other programs on the machine do not disturb them.

    python benchmarks/which_sampler.py                      # all: about half an hour
    python benchmarks/which_sampler.py --problems iris --samplers gibbs discrete_langevin
    python benchmarks/which_sampler.py --markdown           # the tables of docs/benchmarks/local-samplers.md
"""

import argparse
import time

import jax
import jax.numpy as jnp
import numpy as np

from terrazzo import problems, samplers
from terrazzo.diagnostics import ess, rhat
from terrazzo.errors import UnsupportedError

NUM_CHAINS = 16
WARMUP_SECONDS, SECONDS = 2.0, 4.0
MAX_STEPS, MIN_KEPT, NUM_KEPT = 200_000, 20, 500
LARGEST_R_HAT = 1.2

ALIKE = {"gibbs", "metropolised_gibbs", "block_gibbs", "slice_gibbs"}  # Gibbs in other forms: close to systematic_gibbs

PROBLEMS = {
    "iris": ("4-bit Iris regression, d = 15", lambda: problems.quantised_logistic("iris")),
    "wine": ("4-bit Wine regression, d = 42", lambda: problems.quantised_logistic("wine")),
    "ising": ("critical Ising torus 16 x 16", lambda: problems.ising_torus(16)),
    "glass": ("spin glass, d = 64, beta = 1.2", lambda: problems.spin_glass(64, beta=1.2, field=0.1)),
    "selection": ("variable selection, d = 30, noise", lambda: problems.variable_selection(30, 8, noise=20.0)),
    "two_modes": ("Curie-Weiss, d = 64, J = 1.3: two modes", lambda: problems.curie_weiss(64, 1.3, 0.002)),
}


def kernels(spec, target, fixed, tuning):
    """Compiled `warm_up(carry, start, count)` and `draw(states, found, keys, thin)` over all chains."""
    over_chains = lambda key: jax.random.split(key, NUM_CHAINS)

    def warm(i, carry):
        states, search, key = carry
        sampler = spec.factory(target, **({} if tuning is None else tuning.parameters(search)), **fixed)
        states, infos = jax.vmap(sampler.step)(over_chains(jax.random.fold_in(key, i)), states)
        if tuning is not None:
            search = tuning.update(search, jax.vmap(tuning.observe)(states, infos))
        return states, search, key

    def draw(states, found, keys, thin):
        sampler = spec.factory(target, **found, **fixed)

        def step(i, carry):
            states, key, count = carry
            states, info = jax.vmap(sampler.step)(over_chains(jax.random.fold_in(key, i)), states)
            return states, key, count + info.num_evaluations.astype(jnp.float32).mean()

        def keep(carry, key):
            states, _, count = jax.lax.fori_loop(0, thin, step, (carry[0], key, carry[1]))
            return (states, count), (states.position.astype(jnp.uint8), states.log_prob)

        (_, count), kept = jax.lax.scan(keep, (states, jnp.zeros((), jnp.float32)), keys)
        return kept, count

    warm_up = lambda carry, start, count: jax.lax.fori_loop(start, start + count, warm, carry)
    return jax.jit(warm_up), jax.jit(draw)


def warmed(warm_up, carry):
    """The carry after about `WARMUP_SECONDS`, and the CPU seconds that a step takes."""
    carry = jax.block_until_ready(warm_up(carry, 0, 1))
    done, count, seconds_a_step, began = 1, 1, 1.0, time.process_time()
    while time.process_time() - began < WARMUP_SECONDS and done < MAX_STEPS // 4:
        tick = time.process_time()
        carry = jax.block_until_ready(warm_up(carry, done, count))
        seconds_a_step = max((time.process_time() - tick) / count, 1e-7)
        done += count
        count = int(np.clip(0.5 / seconds_a_step, 1, 4 * count))
    return carry, seconds_a_step


def run(spec, target, seed=0):
    """Smallest ESS, CPU seconds, evaluations and worst R-hat; step counts are fitted to the time allowed."""
    if spec.check is not None:
        spec.check(target)
    fixed = {} if spec.prepare is None else spec.prepare(target)
    tuning = None if spec.tuning is None else spec.tuning(target, **fixed)
    warm_up, draw = kernels(spec, target, fixed, tuning)
    start_key, init_key, warm_key, run_key = jax.random.split(jax.random.key(seed), 4)
    search = None if tuning is None else tuning.init()
    first = spec.factory(target, **({} if tuning is None else tuning.parameters(search)), **fixed)
    theta = target.possible_starts(start_key, NUM_CHAINS)
    states = jax.jit(jax.vmap(first.init))(theta, jax.random.split(init_key, NUM_CHAINS))
    (states, search, _), seconds_a_step = warmed(warm_up, (states, search, warm_key))
    found = {} if tuning is None else tuning.final(search)
    num_steps = SECONDS / seconds_a_step
    num_kept = int(np.clip(num_steps, MIN_KEPT, NUM_KEPT))
    thin = int(np.clip(num_steps / num_kept, 1, MAX_STEPS // num_kept))
    keys = jax.random.split(run_key, num_kept)
    if seconds_a_step * num_kept < 4 * SECONDS:  # compiles; a slow kernel is compiled by its only run
        jax.block_until_ready(draw(states, found, keys, 1))
    tick = time.process_time()
    (theta, log_prob), count = jax.block_until_ready(draw(states, found, keys, thin))
    seconds = time.process_time() - tick
    series = np.concatenate([np.asarray(theta, float), np.asarray(log_prob, float)[..., None]], axis=-1)
    series = np.moveaxis(series, 0, 1)
    series = series[..., np.ptp(series, axis=(0, 1)) > 0]
    return {
        "ess": float(np.nanmin(ess(series))), "seconds": seconds, "evaluations": float(count) * NUM_CHAINS,
        "r_hat": float(np.nanmax(rhat(series))), "mean_log_prob": float(np.mean(log_prob)),
    }  # fmt: skip


def cells(name, out):
    """One row of a table; a run whose chains disagree has no ESS."""
    is_good = out["r_hat"] < LARGEST_R_HAT
    speed = f"{out['ess'] / out['seconds']:.3g}" if is_good else "-"
    economy = f"{1000 * out['ess'] / out['evaluations']:.2g}" if is_good else "-"
    return name, speed, economy, f"{min(out['r_hat'], 99):.2f}", f"{out['mean_log_prob']:.2f}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--problems", nargs="+", default=list(PROBLEMS), choices=PROBLEMS)
    parser.add_argument("--samplers", nargs="+", default=None)
    parser.add_argument("--markdown", action="store_true")
    options = parser.parse_args()
    local = [name for name, spec in samplers.REGISTRY.items() if "transport" not in spec.needs and name not in ALIKE]
    line = "| {} | {} | {} | {} | {} |" if options.markdown else "{:<24}{:>10}{:>13}{:>8}{:>11}"
    for problem in options.problems:
        title, build = PROBLEMS[problem]
        print(f"\n### {title}\n" if options.markdown else f"\n{title}")
        print(line.format("sampler", "ESS/s", "ESS/1000 ev", "R-hat", "mean log pi"))
        if options.markdown:
            print("|---|---|---|---|---|")
        with jax.enable_x64(problem == "selection"):
            target = build().target
            for name in options.samplers or local:
                try:
                    out = run(samplers.get(name), target)
                except UnsupportedError:
                    continue
                print(line.format(*cells(name, out)), flush=True)


if __name__ == "__main__":
    main()
