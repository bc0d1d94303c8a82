"""The presets: how long each experiment runs.

`smoke` proves that everything works, in seconds, and its numbers mean nothing. `small` fits two CPU cores in a coffee
break: smaller flows, fewer chains and draws, one fold, no Digits, and a time limit for ours. `paper` is the paper's
own: 10,000 iterations of batch 128, 128 chains of 10^5 steps, every tenth kept, 10^5 steps of burn-in for baselines; it
wants a GPU.
"""

from collections.abc import Mapping
from dataclasses import replace

from terrazzo.errors import OptionError
from terrazzo.paper.experiments.base import Plan
from terrazzo.paper.experiments.ising import ISING
from terrazzo.paper.experiments.logistic import LOGISTIC
from terrazzo.paper.experiments.mixture import MIXTURE
from terrazzo.paper.experiments.selection import SELECTION
from terrazzo.samplers import hybrid
from terrazzo.training import Training
from terrazzo.transports import REGISTRY as TRANSPORTS

EXPERIMENTS = {e.name: e for e in (MIXTURE, ISING, LOGISTIC, SELECTION)}

LOGISTIC_ROWS = ("flow_mh", "metropolis", "dhmc", "gibbs", "ours")
SELECTION_ROWS = ("flow_mh", "gibbs", "tempering", "ours")

PAPER = {
    "mixture": Plan(MIXTURE.settings, methods=("flow_mh", "ours")),
    "ising": Plan(("paper",)),
    "logistic": Plan(("iris", "wine", "breast_cancer", "digits"), tuple(range(LOGISTIC.num_folds)), LOGISTIC_ROWS),
    "selection": Plan(
        ("100", "200", "400", "100_noisy", "200_noisy", "400_noisy"),
        methods=SELECTION_ROWS,
        reference={"chains": 16, "rounds": 2000, "temperatures": 16, "moves": 20},
    ),
}

SMALL_FLOW = {"num_layers": 4, "width": 64, "context_width": 32}
_small = Plan(
    (), chains=32, draws=400, thin=10, burn_in=5000, iterations=500, tuning_steps=1200, flow=SMALL_FLOW,
    reference={"chains": 8, "rounds": 1000, "temperatures": 16, "moves": 1}, ours={"max_seconds": 45.0},
)  # fmt: skip
SMALL = {
    "mixture": replace(
        _small, settings=MIXTURE.settings, methods=("flow_mh", "ours"), draws=1000, iterations=1000,
        ours={"max_seconds": 25.0},
    ),
    "ising": replace(_small, settings=("paper",)),
    "logistic": replace(
        _small, settings=("iris", "wine", "breast_cancer"), folds=(0,), methods=LOGISTIC_ROWS,
        ours={"max_seconds": 90.0},
    ),
    "selection": replace(
        _small, settings=("100", "100_noisy"), methods=SELECTION_ROWS, chains=16, iterations=100, batch_size=32,
        reference={"chains": 8, "rounds": 150, "temperatures": 6, "moves": 10},
    ),
}  # fmt: skip

autoregressive = TRANSPORTS["autoregressive"]
TINY_FLOW = {"num_layers": 1, "width": 8, "context_width": 4}
# Not the default pipeline, whose choice of moves rests on timings: a smoke run is the same every time.
TINY_OURS = {
    "sampler": hybrid(
        transport=autoregressive(width=4, num_blocks=0), training=Training(num_steps=4, batch_size=8), exploration=False
    ),
    "warmup": 4,
}
_smoke = Plan(
    (), chains=16, draws=20, thin=1, burn_in=10, iterations=4, batch_size=8, tuning_steps=4, flow=TINY_FLOW,
    reference={"chains": 2, "rounds": 20, "temperatures": 3, "moves": 1}, ours=TINY_OURS,
)  # fmt: skip
SMOKE = {
    "mixture": replace(_smoke, settings=("ring",), methods=("flow_mh", "ours")),
    "ising": replace(_smoke, settings=("paper",), methods=("flow_mh_10k", "gibbs_100k", "tempering", "ours")),
    "logistic": replace(_smoke, settings=("iris",), folds=(0, 1), methods=("flow_mh", "metropolis", "ours")),
    "selection": replace(_smoke, settings=("20_noisy",), methods=("gibbs", "tempering")),
}

PRESETS: Mapping[str, Mapping[str, Plan]] = {"smoke": SMOKE, "small": SMALL, "paper": PAPER}


def get_preset(name: str) -> Mapping[str, Plan]:
    """The plans of a preset by experiment; `OptionError` if there is none of that name."""
    if name not in PRESETS:
        raise OptionError("preset", f"{name!r} is unknown", f"one of {', '.join(PRESETS)}")
    return PRESETS[name]
