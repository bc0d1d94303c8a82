"""Ten models with discrete and real variables: Terrazzo's default beside NumPyro's and PyMC's samplers.

Each method gets the same model, draws 4 chains x 1000 (Terrazzo: its default, 8 x 1000), and runs in a process of its
own, one after the other, without compiled code on disk. The clock starts after the imports and includes everything
else: reading the model, compilation, warm-up, draws. Figures: effective draws a minute of the worst coordinate (bulk
ESS of ArviZ; coordinates that never change are left out), the largest R-hat, and the largest error of a posterior mean
in standard errors, against answers by marginalisation (tests/mixed_models.py). Gibbs kernels of NumPyro cannot run
chains in one batch: each of their chains has a CPU device of its own.

    python benchmarks/mixed_models.py                        # all, and a table
    python benchmarks/mixed_models.py --models coal_mining occupancy --methods terrazzo nuts_marginal
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))
METHODS = ("terrazzo", "discrete_hmc_gibbs", "mixed_hmc", "pymc", "nuts_marginal")
CHAINS, DRAWS, WARMUP = 4, 1000, 1000
TIMEOUT = 600  # seconds a run, unless --seconds says otherwise


# ---- one run


def terrazzo(found):
    import terrazzo as tz

    result = tz.sample(tz.from_numpyro(found.model, *found.args), seed=0, progress="off")
    return dict(result.draws), {"choice": result.choice, "verdict": str(result.verdict)}


def numpyro_run(kernel, args, chain_method="parallel"):
    import jax
    from numpyro.infer import MCMC

    mcmc = MCMC(kernel, num_warmup=WARMUP, num_samples=DRAWS, num_chains=CHAINS, chain_method=chain_method,
                progress_bar=False)  # fmt: skip
    mcmc.run(jax.random.key(0), *args)
    return mcmc.get_samples(group_by_chain=True), {}


def discrete_hmc_gibbs(found):
    from numpyro.infer import NUTS, DiscreteHMCGibbs

    return numpyro_run(DiscreteHMCGibbs(NUTS(found.model), modified=True), found.args)


def mixed_hmc(found):
    from numpyro.infer import HMC, MixedHMC

    return numpyro_run(MixedHMC(HMC(found.model, trajectory_length=1.2), num_discrete_updates=20), found.args)


def nuts_marginal(found):
    from numpyro.infer import NUTS

    return numpyro_run(NUTS(found.marginal), found.args, "vectorized")


def pymc(found):
    import pymc as pm

    with PYMC[found.name](*found.args):
        trace = pm.sample(DRAWS, tune=WARMUP, chains=CHAINS, cores=2, random_seed=0, progressbar=False)
    return {name: x.values for name, x in trace.posterior.data_vars.items()}, {}


# ---- the same models in PyMC


def _pymc_gaussian_mixture(y):
    import numpy as np
    import pymc as pm

    with pm.Model() as model:
        mu = pm.Normal("mu", np.array([-2.0, 2.0]), 1.0)
        z = pm.Categorical("z", p=[0.3, 0.7], shape=len(y))
        pm.Normal("y", mu[z], 1.0, observed=y)
    return model


def _pymc_coal_mining(counts):
    import numpy as np
    import pymc as pm

    n = len(counts)
    with pm.Model() as model:
        early, late = pm.Exponential("early", 1.0), pm.Exponential("late", 1.0)
        change = pm.DiscreteUniform("change", 1, n - 1)
        pm.Poisson("counts", pm.math.switch(np.arange(n) < change, early, late), observed=counts)
    return model


def _pymc_markov_switching(y):
    import numpy as np
    import pymc as pm
    import pytensor.tensor as pt

    from mixed_models import STAY

    with pm.Model() as model:
        mu = pm.Normal("mu", np.array([-1.0, 1.0]), 1.0)
        phi = pm.Normal("phi", 0.0, 0.5)
        s = pm.Categorical("s", p=[0.5, 0.5], shape=len(y) - 1)
        pm.Potential("moves", pt.log(pt.constant(STAY))[s[:-1], s[1:]].sum() - (len(y) - 2) * np.log(0.5))
        pm.Normal("y", mu[s] + phi * y[:-1], 1.0, observed=y[1:])
    return model


def _pymc_occupancy(seen):
    import pymc as pm

    with pm.Model() as model:
        psi, p = pm.Beta("psi", 1, 1), pm.Beta("p", 1, 1)
        z = pm.Bernoulli("z", psi, shape=len(seen), initval=(seen > 0).astype(int))
        pm.Binomial("seen", 4, z * p, observed=seen)
    return model


def _pymc_capture_recapture(counts):
    import pymc as pm

    with pm.Model() as model:
        omega, mu, sigma = pm.Uniform("omega", 0, 1), pm.Normal("mu", 0, 1), pm.LogNormal("sigma", -0.5, 0.5)
        effect = pm.Normal("effect", 0, 1, shape=len(counts))
        z = pm.Bernoulli("z", omega, shape=len(counts), initval=(counts > 0).astype(int))
        pm.Binomial("counts", 6, z * pm.math.sigmoid(mu + sigma * effect), observed=counts)
    return model


def _pymc_spike_and_slab(x, y):
    import pymc as pm

    with pm.Model() as model:
        on, beta = pm.Bernoulli("on", 0.3, shape=x.shape[1]), pm.Normal("beta", 0, 1, shape=x.shape[1])
        pm.Normal("y", x @ (on * beta), 1.0, observed=y)
    return model


def _pymc_mixture_of_regressions(x, y):
    import numpy as np
    import pymc as pm

    with pm.Model() as model:
        w, slope = pm.Beta("w", 2, 2), pm.Normal("slope", np.array([-1.0, 1.0]), 1.0)
        z = pm.Bernoulli("z", w, shape=len(y))
        pm.Normal("y", slope[z] * x, 0.7, observed=y)
    return model


def _pymc_bernoulli_factors(y):
    import numpy as np
    import pymc as pm

    with pm.Model() as model:
        loading = pm.Normal("loading", np.array([[1.5, 0.0], [0.0, 1.5]]), 0.5)
        z = pm.Bernoulli("z", 0.5, shape=(len(y), 2))
        pm.Normal("y", z @ loading, 0.7, observed=y)
    return model


def _pymc_block_model(edge):
    import numpy as np
    import pymc as pm

    upper = np.triu_indices(12, 1)
    with pm.Model() as model:
        inside, between = pm.Beta("inside", 2, 1), pm.Beta("between", 1, 2)
        z = pm.Categorical("z", p=[0.5, 0.5], shape=12)
        pm.Bernoulli("edge", pm.math.switch(pm.math.eq(z[upper[0]], z[upper[1]]), inside, between), observed=edge)
    return model


def _pymc_item_response(answer):
    import pymc as pm

    with pm.Model() as model:
        hard = pm.Normal("hard", 0, 1.5, shape=4)
        ability = pm.Binomial("ability", 4, 0.5, shape=(len(answer), 1))
        pm.Bernoulli("answer", logit_p=ability - 2.0 - hard, observed=answer)
    return model


PYMC = {name.removeprefix("_pymc_"): made for name, made in list(globals().items()) if name.startswith("_pymc_")}


# ---- figures


def figures(draws, truth, seconds):
    """Of all coordinates: the least ESS, the largest R-hat, the largest error of a mean."""
    import numpy as np
    from arviz_stats.base import array_stats

    axes = {"chain_axis": 0, "draw_axis": 1}
    ess, r_hat, errors = [], [], []
    for name, values in draws.items():
        flat = np.asarray(values, float)
        flat = flat.reshape(*flat.shape[:2], -1)
        known = None if name not in truth else np.ravel(truth[name])
        for i in range(flat.shape[2]):
            x = flat[:, :, i]
            if (x == x[0, 0]).all():
                continue
            own = float(array_stats.ess(x, method="bulk", **axes))
            ess.append(own)
            r_hat.append(float(array_stats.rhat(x, **axes)))
            if known is not None:
                for_mean = max(float(array_stats.ess(x, method="mean", **axes)), 1.0)
                errors.append(abs(x.mean() - known[i]) / (x.std() / for_mean**0.5))
    return {
        "per_minute": 60 * min(ess) / seconds, "ess": min(ess), "seconds": seconds, "r_hat": max(r_hat),
        "error": max(errors),
    }  # fmt: skip


def one(model, method):
    """Runs one method on one model, and prints the figures as JSON."""
    import arviz_stats  # noqa: F401
    import jax  # noqa: F401
    import numpyro

    import terrazzo as tz  # noqa: F401

    if method in ("discrete_hmc_gibbs", "mixed_hmc"):
        numpyro.set_host_device_count(CHAINS)
    from mixed_models import mixed_model

    if method == "pymc":
        import pymc  # noqa: F401
    found = mixed_model(model)
    truth = found.truth()
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        draws, more = globals()[method](found)
        draws = {name: x for name, x in draws.items() if hasattr(x, "shape")}
        seconds = time.perf_counter() - start
        print(json.dumps({**figures(draws, truth, seconds), **more}))


def run(model, method, seconds=TIMEOUT):
    command = [sys.executable, __file__, "--one", model, method]
    with tempfile.TemporaryDirectory() as folder:  # where PyMC keeps its compiled code
        own = {"TERRAZZO_CACHE": "off", "PYTENSOR_FLAGS": f"base_compiledir={folder}"}
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                timeout=seconds,
                cwd=ROOT,
                check=False,
                env={**os.environ, **own},
            )
        except subprocess.TimeoutExpired:
            return {"failed": f"over {seconds:.0f} s"}
    if done.returncode:
        lines = [x for x in done.stderr.splitlines() if x.strip(" -") and "removed its internal frames" not in x]
        return {"failed": (lines or ["?"])[-1][:160]}
    return json.loads(done.stdout.strip().splitlines()[-1])


def main():
    from mixed_models import NAMES, mixed_model

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(NAMES), choices=NAMES)
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--seconds", type=float, default=TIMEOUT, help="how long one run may take")
    parser.add_argument("--one", nargs=2, metavar=("MODEL", "METHOD"))
    parser.add_argument("--out", type=Path, help="where to keep the figures, as JSON")
    args = parser.parse_args()
    if args.one:
        return one(*args.one)
    found = {}
    for model in args.models:
        found[model] = {}
        for method in args.methods:
            if method == "nuts_marginal" and mixed_model(model).marginal is None:
                continue
            found[model][method] = run(model, method, args.seconds)
            print(model, method, json.dumps(found[model][method]), flush=True)
            if args.out:
                args.out.write_text(json.dumps(found, indent=1))
    print(table(found, args.methods))
    return None


def table(found, methods):
    """Markdown: effective draws a minute of the worst coordinate (R-hat, error of a mean in standard errors)."""

    def cell(x):
        if x is None:
            return "-"
        if "failed" in x:
            return x["failed"][:40]
        return f"{x['per_minute']:,.0f} ({x['r_hat']:.2f}, {x['error']:.1f})"

    lines = [f"| model | {' | '.join(methods)} |", f"|---{'|---' * len(methods)}|"]
    return "\n".join([*lines, *(f"| {m} | {' | '.join(cell(r.get(k)) for k in methods)} |" for m, r in found.items())])


if __name__ == "__main__":
    main()
