"""From a cold process to a verdict: twelve small and medium problems, each in a process of its own.

Nothing is cached between them. Printed are the wall and processor seconds from the start of the interpreter to the
verdict, the seconds of each phase, and what of them XLA compiled (programs and seconds; two threads may compile at the
same time).

    python benchmarks/first_result.py                          # all, and the median at the end
    python benchmarks/first_result.py ising_8x8 counts         # some
    python benchmarks/first_result.py --one ising_8x8          # one, in this process
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

BEGAN = time.time()


def spin_chain(d, coupling):
    import jax.numpy as jnp

    import terrazzo as tz

    def log_prob(theta):
        spins = 2.0 * theta - 1.0
        return coupling * jnp.sum(spins[1:] * spins[:-1]) + 0.1 * jnp.sum(spins)

    return log_prob, tz.binary(d)


def independent_bits():
    import jax.numpy as jnp
    import numpy as np

    import terrazzo as tz

    fields = jnp.asarray(np.random.default_rng(0).normal(size=40))
    return (lambda theta: jnp.sum(fields * theta)), tz.binary(40)


def counts():
    """Poisson counts with a shared, unknown trend."""
    import jax.numpy as jnp
    import jax.scipy as jsp

    import terrazzo as tz

    def log_prob(theta):
        x = theta.astype(float)
        rates = 4.0 + 2.0 * jnp.sin(jnp.arange(12.0))
        return jnp.sum(x * jnp.log(rates) - jsp.special.gammaln(x + 1.0)) - 0.05 * jnp.sum((x[1:] - x[:-1]) ** 2)

    return log_prob, tz.integers(0, 30, 12)


def potts_ring():
    import jax.numpy as jnp

    import terrazzo as tz

    return (lambda theta: 0.9 * jnp.sum(theta == jnp.roll(theta, 1)) + 0.2 * jnp.sum(theta == 0)), tz.categorical(
        4, shape=24
    )


def logistic_weights():
    """A logistic regression on 200 rows whose ten weights are integers from -7 to 7, a quarter each."""
    import jax.numpy as jnp
    import numpy as np

    import terrazzo as tz

    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 10))
    y = rng.random(200) < 1 / (1 + np.exp(-x @ (rng.integers(-5, 6, 10) / 4)))
    x, y = jnp.asarray(x), jnp.asarray(y)

    def log_prob(weights):
        z = x @ (weights / 4.0)
        return jnp.sum(jnp.where(y, -jnp.logaddexp(0.0, -z), -jnp.logaddexp(0.0, z))) - 0.02 * jnp.sum(weights**2)

    return log_prob, tz.integers(-7, 7, 10)


def selection():
    import jax

    from terrazzo import problems

    jax.config.update("jax_enable_x64", True)  # the problem asks for it

    return problems.variable_selection(30, 4, noise=1.0).target, None


def two_modes():
    import jax
    import jax.numpy as jnp
    import numpy as np

    import terrazzo as tz

    rng = np.random.default_rng(0)
    first = rng.integers(0, 2, 40)
    second = np.where(np.arange(40) < 24, 1 - first, first)
    centres = jnp.asarray(2.0 * np.stack([first, second]) - 1.0)
    return (lambda theta: jax.nn.logsumexp(1.2 * centres @ (2.0 * theta - 1.0))), tz.binary(40)


def boltzmann():
    from terrazzo import problems

    return problems.boltzmann_machine(30, 8).target, None


def ising_8x8():
    from terrazzo import problems

    return problems.ising_torus(8, 0.35).target, None


def mixture_labels():
    """Labels of 40 points in three clusters with known centres and a preference for even cluster sizes."""
    import jax.numpy as jnp
    import numpy as np

    import terrazzo as tz

    rng = np.random.default_rng(0)
    centres = np.array([[-2.0, 0.0], [2.0, 0.0], [0.0, 2.5]])
    points = centres[rng.integers(0, 3, 40)] + rng.normal(size=(40, 2))
    fits = jnp.asarray(-0.5 * ((points[:, None] - centres[None]) ** 2).sum(-1))

    def log_prob(labels):
        sizes = jnp.sum(labels[:, None] == jnp.arange(3), axis=0)
        return jnp.sum(fits[jnp.arange(40), labels]) - 0.05 * jnp.sum((sizes - 40.0 / 3.0) ** 2)

    return log_prob, tz.categorical(3, shape=40)


def budgeted():
    """Thirty items of which at most ten may be chosen."""
    import jax.numpy as jnp
    import numpy as np

    import terrazzo as tz

    values = jnp.asarray(np.random.default_rng(0).normal(0.5, 1.0, 30))
    return (lambda chosen: jnp.where(chosen.sum() <= 10, jnp.sum(values * chosen), -jnp.inf)), tz.binary(30)


PROBLEMS = {
    "readme_chain": lambda: spin_chain(20, 0.4),
    "independent_bits": independent_bits,
    "spin_chain_60": lambda: spin_chain(60, 0.5),
    "counts": counts,
    "potts_ring": potts_ring,
    "logistic_weights": logistic_weights,
    "selection_30": selection,
    "two_modes": two_modes,
    "boltzmann_30": boltzmann,
    "ising_8x8": ising_8x8,
    "mixture_labels": mixture_labels,
    "budgeted": budgeted,
}


def one(name, seed):
    """Runs one problem in this process."""
    import jax

    import terrazzo as tz
    from terrazzo.runtime import progress

    compiled, current = {}, []
    real = progress.Progress.phase

    def phase(self, name, *args, **options):
        current.append(name)
        return real(self, name, *args, **options)

    progress.Progress.phase = phase

    def listen(event, seconds, **_):
        if event.endswith("backend_compile_duration"):
            spent = compiled.setdefault(current[-1] if current else "before", [0, 0.0])
            spent[0] += 1
            spent[1] = round(spent[1] + seconds, 2)

    jax.monitoring.register_event_duration_secs_listener(listen)
    log_prob, space = PROBLEMS[name]()
    imported = time.time() - BEGAN
    result = tz.sample(log_prob, space, seed=seed, progress="off")
    grade = result.verdict.grade
    phases = {k: round(v, 1) for k, v in result.provenance["seconds"].items()}
    return {
        "name": name, "grade": grade, "seconds": round(time.time() - BEGAN, 1), "cpu": round(time.process_time(), 1),
        "until_sample": round(imported, 1), "choice": (result.choice or "").split(":")[0], "phases": phases,
        "compiled": compiled, "reason": "" if result.verdict.is_trusted else result.verdict.reason[:200],
    }  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=", ".join(PROBLEMS))
    parser.add_argument("--one", help="run one problem in this process and print one line of JSON")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(one(options.one, options.seed)))
        return
    rows = []
    for name in options.names or PROBLEMS:
        command = [sys.executable, __file__, "--one", name, "--seed", str(options.seed)]
        out = subprocess.run(
            command, env={**os.environ, "TERRAZZO_CACHE": "off"}, capture_output=True, text=True, check=False
        )
        if out.returncode:
            print(name, "failed:", out.stderr[-2000:], flush=True)
            continue
        rows.append(json.loads(out.stdout.splitlines()[-1]))
        print(json.dumps(rows[-1]), flush=True)
    if rows:
        seconds, cpu = ([row[key] for row in rows] for key in ("seconds", "cpu"))
        print(f"median {statistics.median(seconds):.1f} s, {statistics.median(cpu):.1f} s of processor time")


if __name__ == "__main__":
    main()
