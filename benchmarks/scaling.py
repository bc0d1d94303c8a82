"""How costs grow, and what a second process brings.

python benchmarks/scaling.py slopes --out scaling.json     # over d, K, chains and draws; fitted slopes and a picture
python benchmarks/scaling.py slopes --largest 100000       # smaller sizes
python benchmarks/scaling.py million                       # d = 10^6 spins from a plain function: reading, sweeps
python benchmarks/scaling.py processes                     # 2 processes pinned to a core each, against 1 on one core
python benchmarks/scaling.py memory                        # 10^8 kept values: the peak of memory
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import textwrap
import time

import jax
import jax.numpy as jnp
import numpy as np

import terrazzo as tz
from terrazzo.engine.kernels import Problem
from terrazzo.engine.loop import Chains
from terrazzo.paper.plots import new_figure, themed
from terrazzo.report import theme
from terrazzo.runtime import devices
from terrazzo.runtime.compilation import enable_compilation_cache
from terrazzo.runtime.launching import launch
from terrazzo.samplers import REGISTRY

COUPLING = 0.3
SECONDS = 1.0  # of each timing


def lattice(num_sites, num_values=2):
    """Neighbours on a torus like to be equal; a plain function, as a user writes it."""
    side = round(num_sites**0.5)

    def log_prob(theta):
        x = theta.reshape(side, side) * (2.0 / (num_values - 1)) - 1.0
        return COUPLING * jnp.sum(x * (jnp.roll(x, 1, 0) + jnp.roll(x, 1, 1)))

    return tz.Target(
        log_prob, tz.binary(side * side) if num_values == 2 else tz.integers(0, num_values - 1, side * side)
    )


def peak_gib():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def seconds_a_step(target, sampler, num_chains, *, aim=SECONDS):
    """Seconds of one step of all chains, in a loop of about a second; of the reading; processor seconds of a step."""
    spec, tick = REGISTRY[sampler], time.perf_counter()
    options = {} if spec.prepare is None else spec.prepare(target)
    read = time.perf_counter() - tick
    chains = Chains(devices.make_mesh(num_chains), spec, Problem(target, None, options, _nothing), 1)
    key = jax.random.key(0)
    states = chains.start(key, np.zeros((num_chains, target.space.num_dims), np.int32))
    count, steps, seconds, processor = 1, 0, 0.0, 0.0
    for _ in range(2):  # compiled for the states of the start, and for its own
        states, *_ = jax.block_until_ready(chains.draw(key, states, 0, 1, 1))
    while (seconds < aim / 2 or steps < 2) and count < 10**6:  # one step alone would time the call
        tick, used = time.perf_counter(), time.process_time()
        states, *_ = jax.block_until_ready(chains.draw(key, states, 0, 1, count))
        seconds, processor = time.perf_counter() - tick, time.process_time() - used
        steps, count = count, max(2 * count, min(64 * count, int(count * aim / max(seconds, 1e-6))))
    return seconds / steps, read, processor / steps


def _nothing(theta):
    return {}


def slope(sizes, costs):
    """The slope of log cost over log size, over the upper half of the sizes: there no overhead hides it."""
    half = len(sizes) // 2
    return float(np.polyfit(np.log(sizes[half:]), np.log(costs[half:]), 1)[0])


def slopes(options):
    """Cost of a sweep over d, of a step over K, of a sweep over chains, and of a run over draws."""
    found = {}

    def measure(name, what, sizes, cost):
        kept = [size for size in sizes if size <= options.largest]
        both = [cost(size) for size in kept]
        seconds, processor = ([one[k] for one in both] for k in (0, 1))
        found[name] = {
            "what": what, "sizes": kept, "seconds": seconds, "slope": slope(kept, seconds),
            "processor_seconds": processor, "processor_slope": slope(kept, processor),
        }  # fmt: skip
        shown = ", ".join(f"{size}: {each:.3g}" for size, each in zip(kept, seconds, strict=True))
        print(f"{name} ({what}): slope {found[name]['slope']:.2f} of seconds, {found[name]['processor_slope']:.2f} of"
              f" processor seconds; {shown}", flush=True)  # fmt: skip

    by_side = [side * side for side in (3, 10, 32, 100, 316, 1000)]
    measure("sites d", "a sweep, 1 chain", by_side, lambda d: cost_of_step(lattice(d), "coloured_gibbs", 1))
    values = (2, 8, 64, 512, 4096, 65536)
    measure("values K, slices", "a site of 64, 8 chains", values,
            lambda k: cost_of_step(lattice(64, k), "slice_gibbs", 8))  # fmt: skip
    measure("values K, Gibbs", "a site of 64, 8 chains", values[:-1],
            lambda k: cost_of_step(lattice(64, k), "gibbs", 8))  # fmt: skip
    measure("chains", "a sweep of 256 sites", (1, 8, 64, 512, 4096, 16384),
            lambda chains: cost_of_step(lattice(256), "coloured_gibbs", chains))  # fmt: skip
    cost_of_run(10)  # what a process does once
    measure("draws", "a run, 8 chains of 256 sites", (1000, 4000, 16000, 64000), cost_of_run)
    if options.out:
        device = f"{jax.device_count()} x {jax.devices()[0].device_kind}"
        with open(options.out, "w", encoding="utf-8") as stream:
            json.dump({"device": device, "cores": len(os.sched_getaffinity(0)), "found": found}, stream, indent=1)
        picture(found, options.out.removesuffix(".json") + ".png")


def cost_of_step(target, sampler, num_chains):
    """Seconds and processor seconds of one step of all chains."""
    return seconds_a_step(target, sampler, num_chains)[::2]


def cost_of_run(draws):
    """Seconds and processor seconds of a run that stores its draws, with its diagnosis."""
    tick, used = time.perf_counter(), time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        tz.sample(lattice(256), seed=0, sampler="coloured_gibbs", chains=8, draws=draws, warmup=10, progress="off",
                  checkpoint=f"{folder}/run")  # fmt: skip
    return time.perf_counter() - tick, time.process_time() - used


def picture(found, path):
    """Seconds over sizes, and the line of what grows in proportion."""
    with themed():
        figure = new_figure(2.1 * len(found), 2.2)
        for ax, (name, each) in zip(figure.subplots(1, len(found)), found.items(), strict=True):
            sizes, seconds = np.asarray(each["sizes"], float), np.asarray(each["seconds"])
            ax.loglog(sizes, seconds[-1] * sizes / sizes[-1], color=theme.LINES[6], linestyle="--")
            ax.loglog(sizes, seconds, "o-", color=theme.LINES[0], markersize=3)
            ax.set_title(f"{name}: slope {each['slope']:.2f}", fontsize=8)
            ax.set_xlabel(each["what"], fontsize=7)
            ax.tick_params(labelsize=7)
        figure.axes[0].set_ylabel("seconds", fontsize=7)
        figure.savefig(path, dpi=110)


def million(options):
    """d = 10^6 spins of a plain function."""
    tick = time.perf_counter()
    target = lattice(10**6)
    built = time.perf_counter() - tick
    cost, read, _ = seconds_a_step(target, options.sampler, options.chains)
    print(json.dumps({
        "sites": target.space.num_dims, "chains": options.chains, "sampler": options.sampler,
        "device": jax.devices()[0].device_kind, "target_s": round(built, 1), "reading_s": round(read, 1),
        "sweeps_a_second_of_all_chains": round(options.chains / cost, 1), "peak_gib": round(peak_gib(), 2),
    }))  # fmt: skip


WORK = """
    import json, os, sys, time
    import jax, jax.numpy as jnp
    import terrazzo as tz
    from terrazzo.engine.loop import Chains

    def log_prob(theta):
        x = 2.0 * theta.reshape(64, 64) - 1.0
        return 0.3 * jnp.sum(x * (jnp.roll(x, 1, 0) + jnp.roll(x, 1, 1)))

    real, seconds, processor = Chains.draw, [], []

    def draw(*args):  # the first chunk is one draw, and compiles
        wall, used = time.perf_counter(), time.process_time()
        out = jax.block_until_ready(real(*args))
        seconds.append(time.perf_counter() - wall)
        processor.append(time.process_time() - used)
        return out

    Chains.draw = draw
    tick, keep = time.perf_counter(), lambda theta: {"up": theta.mean()}
    result = tz.sample(log_prob, tz.binary(4096), seed=0, chains=16, draws=int(sys.argv[1]), warmup=10, thin=10,
                       sampler=tz.samplers.coloured_gibbs(keep=keep), checkpoint=sys.argv[2], progress="off")
    if os.environ.get("TERRAZZO_PROCESS_ID", "0") == "0":
        sampling = result.provenance["seconds"]["sampling"]
        print(json.dumps({"all": time.perf_counter() - tick, "sampling": sampling, "compiled": sampling - seconds[0],
                          "processor": sum(processor[1:])}), flush=True)
"""


def timed_run(count, draws):
    """What the first of some processes says of the seconds of its run."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+") as output:
        saved = os.dup(1)
        os.dup2(output.fileno(), 1)
        try:
            command = [sys.executable, "-c", textwrap.dedent(WORK), str(draws), f"{folder}/run"]
            status = launch(command, count, is_pinned=True, errors=lambda line: print(line, file=sys.stderr))
        finally:
            os.dup2(saved, 1)
            os.close(saved)
        output.seek(0)
        assert status == 0
        return json.loads(output.read().splitlines()[-1])


def processes(options):
    """Draws a second of two processes, pinned to a core each, over those of one process on one core.

    `sampling` is the phase of that name, `compiled` is it without its first draw, which compiles, and `all` has
    reading, warm-up and diagnosis too. `processor` is the processor time of the first process in `compiled`: on cores
    that other work uses it says more than seconds do.
    """
    cores = sorted(os.sched_getaffinity(0))
    for repeat in range(options.repeats):
        found = {}
        for count in (1, 2):
            os.sched_setaffinity(0, cores[:count])
            found[count] = timed_run(count, options.draws)
            os.sched_setaffinity(0, cores)
        one, two = found[1], found[2]
        shown = {"one": one, "two": two, "ratio": {name: one[name] / two[name] for name in one}}
        shown = {key: {name: round(x, 2) for name, x in each.items()} for key, each in shown.items()}
        print(json.dumps({"repeat": repeat, "draws": options.draws, **shown}), flush=True)


MEMORY = """
    import resource, sys, time
    import jax.numpy as jnp
    import terrazzo as tz
    start, tick = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, time.perf_counter()
    d, draws = 1000, int(sys.argv[1]) // 8000
    log_prob = lambda t: 0.2 * jnp.sum((2.0 * t[1:] - 1.0) * (2.0 * t[:-1] - 1.0))
    result = tz.sample(log_prob, tz.binary(d), seed=0, chains=8, draws=draws, warmup=5, sampler="coloured_gibbs",
                       checkpoint=sys.argv[2], progress="off")
    verdict, peak = str(result.verdict), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"{result.codes.size:.3g} values on disk: {type(result.codes).__name__}; peak {peak:.2f} GiB"
          f" ({start:.2f} GiB before), {time.perf_counter() - tick:.0f} s; {verdict[:60]}")
"""


def memory(options):
    """The peak of memory of runs of 10^7 and 10^8 values, diagnosed."""
    for size in (10**7, options.values):
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([sys.executable, "-c", textwrap.dedent(MEMORY), str(size), f"{folder}/run"], check=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("slopes", "million", "processes", "memory"))
    parser.add_argument("--out")
    parser.add_argument("--largest", type=int, default=10**6)
    parser.add_argument("--chains", type=int, default=1)
    parser.add_argument("--sampler", default="coloured_gibbs")
    parser.add_argument("--draws", type=int, default=8000)
    parser.add_argument("--values", type=int, default=10**8)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    enable_compilation_cache()
    {"slopes": slopes, "million": million, "processes": processes, "memory": memory}[options.what](options)


if __name__ == "__main__":
    main()
