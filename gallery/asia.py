"""A diagnosis: the Asia network with evidence

The Asia network (Lauritzen and Spiegelhalter, 1988) is a small Bayesian network for a chest clinic: a visit to Asia
makes tuberculosis more likely, smoking makes lung cancer and bronchitis more likely, an X-ray shows either disease,
and dyspnoea (short breath) has several causes. One node is deterministic: "either" is 1 exactly if there is
tuberculosis or cancer. Terrazzo gets a table look-up for each node; log 0 is -inf.

What is the probability of each disease for a patient with dyspnoea, then if she was in Asia, then if the X-ray is
positive? `tz.condition` fixes what is known. log Z of the network alone is 0, and log Z of the conditioned network
is the log-probability of the evidence.

Figure: Bars of the probability of tuberculosis, cancer and bronchitis, for four amounts of evidence.
"""

import jax.numpy as jnp
import numpy as np

import terrazzo as tz
from terrazzo.paper.plots import new_figure, themed

YES = {  # the probability of "yes" given the parents, in the order of their indices
    "asia": ((), 0.01),
    "smoke": ((), 0.5),
    "tuberculosis": (("asia",), [0.01, 0.05]),
    "cancer": (("smoke",), [0.01, 0.1]),
    "bronchitis": (("smoke",), [0.3, 0.6]),
    "either": (("tuberculosis", "cancer"), [[0.0, 1.0], [1.0, 1.0]]),
    "xray": (("either",), [0.05, 0.98]),
    "dyspnoea": (("either", "bronchitis"), [[0.1, 0.8], [0.7, 0.9]]),
}


def log_prob(v):
    total = 0.0
    for node, (parents, yes) in YES.items():
        table = jnp.log(jnp.stack([1.0 - jnp.asarray(yes), jnp.asarray(yes)], axis=-1))
        total = total + table[(*(v[parent] for parent in parents), v[node])]
    return total


network = tz.Target(log_prob, tz.Space(**{node: tz.binary() for node in YES}))
evidence = {
    "nothing known": {},
    "dyspnoea": {"dyspnoea": 1},
    "and a visit to Asia": {"dyspnoea": 1, "asia": 1},
    "and a positive X-ray": {"dyspnoea": 1, "asia": 1, "xray": 1},
}
diseases = ("tuberculosis", "cancer", "bronchitis")
shares = {}
for name, known in evidence.items():
    result = tz.sample(tz.condition(network, known), seed=0, draws=5000)
    shares[name] = [result[disease].mean() for disease in diseases]
    print(f"{name:<21} P(evidence) {np.exp(result.log_z):.5f}  ", end="")
    print(", ".join(f"{d} {share:.3f}" for d, share in zip(diseases, shares[name], strict=True)), end="  ")
    print(f"[{result.verdict.grade}]")

with themed():
    figure = new_figure(6.5, 3.0)
    axis = figure.subplots()
    for i, (name, values) in enumerate(shares.items()):
        axis.bar(np.arange(3) + 0.2 * i - 0.3, values, width=0.19, label=name)
    axis.set(xticks=range(3), xticklabels=diseases, ylabel="probability", ylim=(0, 1))
    axis.legend(fontsize=9)
    figure.savefig("asia.png", dpi=90)
