"""The numbers the paper prints in its Tables 1 to 3, read from its LaTeX source.

Jaini, Nielsen, Welling (2021), Sampling in combinatorial spaces with SurVAE flow augmented MCMC, AISTATS,
arXiv:2102.02374. Digits is announced there, but its rows are commented out: it has no printed number.
"""

from typing import NamedTuple


class PaperRow(NamedTuple):
    """A printed row: mean and what follows the +- sign.

    Attributes:
        ess: ESS per 10^4 draws, mean over coordinates, and its standard error over 8 groups of 16 chains.
        ess_per_minute: The same per minute, training included.
        log_prob: Mean and sd of log pi.
        accuracy: Per cent, of held-out rows (logistic regression).
    """

    ess: tuple[float, float]
    ess_per_minute: tuple[float, float]
    log_prob: tuple[float, float]
    accuracy: float | None = None


PAPER_NUMBERS: dict[tuple[str, str, str], PaperRow] = {
    # Table 1: Ising model
    ("ising", "paper", "flow_mh_1k"): PaperRow((43.45, 5.07), (0.15, 0.02), (4025.67, 7.56)),
    ("ising", "paper", "flow_mh_2k"): PaperRow((46.48, 7.02), (0.15, 0.02), (4039.92, 6.05)),
    ("ising", "paper", "flow_mh_5k"): PaperRow((45.95, 5.34), (0.13, 0.01), (4054.25, 5.15)),
    ("ising", "paper", "flow_mh_10k"): PaperRow((28.52, 4.17), (0.07, 0.01), (4056.82, 5.64)),
    ("ising", "paper", "gibbs_10k"): PaperRow((7.131, 1.42), (0.011, 0.002), (4045.0, 22.79)),
    ("ising", "paper", "gibbs_20k"): PaperRow((6.09, 0.82), (0.009, 0.001), (4050.08, 16.56)),
    ("ising", "paper", "gibbs_50k"): PaperRow((7.65, 0.88), (0.012, 0.001), (4056.37, 9.94)),
    ("ising", "paper", "gibbs_100k"): PaperRow((7.82, 1.06), (0.009, 0.001), (4060.09, 7.56)),
    ("ising", "paper", "metropolis_10k"): PaperRow((26.24, 1.84), (0.07, 0.01), (3989.26, 99.77)),
    ("ising", "paper", "metropolis_20k"): PaperRow((12.01, 2.39), (0.03, 0.01), (4019.20, 44.22)),
    ("ising", "paper", "metropolis_50k"): PaperRow((1.90, 0.17), (0.004, 0.001), (4038.96, 17.95)),
    ("ising", "paper", "metropolis_100k"): PaperRow((2.40, 0.87), (0.005, 0.002), (4044.16, 16.03)),
    ("ising", "paper", "dhmc"): PaperRow((17.83, 1.49), (0.022, 0.001), (4038.68, 23.55)),
    # Table 2: quantised logistic regression
    ("logistic", "iris", "flow_mh"): PaperRow((923.21, 37.29), (58.64, 2.37), (-8.55, 1.77), 97.4),
    ("logistic", "iris", "metropolis"): PaperRow((108.53, 1.44), (26.14, 0.35), (-8.54, 1.77), 97.4),
    ("logistic", "iris", "dhmc"): PaperRow((361.07, 16.97), (32.85, 0.64), (-8.40, 1.89), 97.4),
    ("logistic", "wine", "flow_mh"): PaperRow((146.25, 3.51), (6.59, 0.16), (-2.15, 1.63), 97.8),
    ("logistic", "wine", "metropolis"): PaperRow((65.78, 0.46), (15.05, 0.10), (-2.15, 1.63), 97.8),
    ("logistic", "wine", "dhmc"): PaperRow((89.12, 11.57), (4.53, 0.98), (-3.54, 0.48), 97.7),
    ("logistic", "breast_cancer", "flow_mh"): PaperRow((15.77, 0.49), (0.56, 0.02), (-19.85, 3.40), 96.8),
    ("logistic", "breast_cancer", "metropolis"): PaperRow((10.46, 0.12), (2.29, 0.03), (-20.14, 3.46), 96.8),
    ("logistic", "breast_cancer", "dhmc"): PaperRow((9.54, 0.28), (1.38, 0.03), (-21.19, 2.86), 96.8),
    # Table 3: Bayesian variable selection
    ("selection", "100", "flow_mh"): PaperRow((436.48, 57.82), (4.78, 0.63), (-1054.97, 15.89)),
    ("selection", "100", "gibbs"): PaperRow((23.19, 22.20), (0.12, 0.12), (-1235.02, 13.11)),
    ("selection", "200", "flow_mh"): PaperRow((213.36, 29.37), (0.89, 0.12), (-2231.24, 8.28)),
    ("selection", "200", "gibbs"): PaperRow((8.78, 6.12), (0.013, 0.009), (-2485.91, 0.14)),
    ("selection", "400", "flow_mh"): PaperRow((141.45, 17.97), (0.15, 0.02), (-4627.58, 10.86)),
    ("selection", "400", "gibbs"): PaperRow((1.46, 0.23), (0.001, 1e-4), (-5306.61, 0.20)),
}


def paper_row(experiment: str, setting: str, sampler: str) -> PaperRow | None:
    """What the paper prints for a row, if it prints one.

    >>> paper_row("logistic", "iris", "flow_mh").ess
    (923.21, 37.29)
    """
    return PAPER_NUMBERS.get((experiment, setting, sampler))
