"""The hybrid sampler on the paper's 4-bit logistic regressions: ESS per 10^4 kept draws by the paper's estimator.

python benchmarks/hybrid_logistic.py iris --steps 3000 --batch 512 --draws 1000 --thin 10 --local 5
"""

import argparse
import json
import time

import jax
import jax.numpy as jnp
import numpy as np

import terrazzo as tz
from terrazzo.diagnostics import ess, paper_ess
from terrazzo.problems.logistic import load_standardised, logistic_target
from terrazzo.transports import sample_transport


def data_of(name, archive):
    if archive:
        with np.load(archive) as stored:
            return stored[f"{name}_x"], stored[f"{name}_y"]
    return load_standardised(name)


def is_ess(transport, target, seed=9):
    weights = np.asarray(sample_transport(jax.random.key(seed), transport, target, 16384).log_weights, float)
    w = np.exp(weights - weights.max())
    return w.sum() ** 2 / (w**2).sum() / len(w)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("datasets", nargs="+")
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--width", type=int, default=None)
    parser.add_argument("--blocks", type=int, default=1)
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--thin", type=int, default=10)
    parser.add_argument("--chains", type=int, default=128)
    parser.add_argument("--local", type=int, nargs="+", default=[5])
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--patience", type=int, default=None, help="checks before the learning rate is cut")
    parser.add_argument("--forward", type=int, default=0, help="steps of forward KL on tempered draws afterwards")
    parser.add_argument("--archive", default=None, help="npz with the data, where scikit-learn is missing")
    options = parser.parse_args()
    for name in options.datasets:
        target = logistic_target(*data_of(name, options.archive))
        space = target.space
        shape = {"num_blocks": options.blocks, **({"width": options.width} if options.width else {})}
        transport = tz.transports.autoregressive_transport(space, key=jax.random.key(0), **shape)
        tick = time.perf_counter()
        fitted = tz.fit(
            jax.random.key(1),
            transport,
            target,
            objective=tz.reverse_kl("score_function"),
            num_steps=options.steps,
            batch_size=options.batch,
            start_beta=0.01,
            anneal_steps=options.steps // 2,
            check_every=options.steps // 20,
            learning_rate=options.learning_rate,
            patience=options.patience,
        )
        transport = fitted.transport
        trained = time.perf_counter() - tick
        row = {
            "data": name,
            "d": space.num_dims,
            "train_s": round(trained, 1),
            "is_ess": round(is_ess(transport, target), 4),
        }
        print(json.dumps({**row, "held_out": fitted.history["held_out"].round(2).tolist()}), flush=True)
        if options.forward:
            tick = time.perf_counter()
            ladder = {"num_temperatures": 12, "kernel": "gibbs", "num_moves": space.num_dims // 2}
            run = tz.sample(
                target,
                seed=2,
                chains=128,
                warmup=1000,
                draws=500,
                thin=10,
                sampler=tz.samplers.parallel_tempering(**ladder),
                progress="off",
            )
            buffer = run.theta.reshape(-1, space.num_dims)
            explored = time.perf_counter() - tick
            tick = time.perf_counter()
            objective = tz.forward_kl(buffer, weight=0.5, reverse=tz.reverse_kl("score_function"))
            again = tz.fit(
                jax.random.key(3),
                transport,
                target,
                objective=objective,
                num_steps=options.forward,
                batch_size=options.batch,
                check_every=options.forward // 5,
                learning_rate=0.3 * options.learning_rate,
                start_beta=1.0,
            )
            both = is_ess(again.transport, target)
            print(
                json.dumps(
                    {
                        "data": name,
                        "explore_s": round(explored, 1),
                        "forward_s": round(time.perf_counter() - tick, 1),
                        "is_ess_after_both": round(both, 4),
                        "mean_log_pi_tempered": round(float(run.log_probs[..., -1].mean()), 3),
                        "log_z_tempered": None if run.evidence is None else [round(v, 3) for v in run.evidence[:2]],
                    }
                ),
                flush=True,
            )
            if both > row["is_ess"]:
                transport = again.transport
        for num_local in options.local:
            tick = time.perf_counter()
            result = tz.sample(
                target,
                seed=0,
                sampler=tz.samplers.hybrid(num_local=jnp.asarray(num_local), transport=transport, training=False),
                chains=options.chains,
                draws=options.draws,
                thin=options.thin,
                warmup=100,
                progress="off",
            )
            seconds = time.perf_counter() - tick
            theirs = paper_ess(result.theta, num_groups=8)
            ours = ess(result.theta)
            print(
                json.dumps(
                    {
                        **row,
                        "local": num_local,
                        "sample_s": round(seconds, 1),
                        "step_ms": round(
                            result.provenance["seconds"]["sampling"] / options.draws / options.thin * 1e3, 3
                        ),
                        "paper_ess_per_10k": [round(float(v), 1) for v in (theirs.mean, theirs.standard_error)],
                        "min_ess_all_chains": round(float(np.nanmin(ours)), 1),
                        "mean_log_pi": round(float(result.log_prob.mean()), 3),
                        "log_z": [round(result.log_z, 3), round(result.log_z_standard_error, 3)],
                        "acceptance": round(float(result.sample_stats["acceptance_rate"].mean()), 3),
                        "verdict": str(result.verdict),
                    }
                ),
                flush=True,
            )


if __name__ == "__main__":
    main()
