"""The numbers that the default sampler decides by where there are real variables, beside those of `policy`.

Each field stands as there: its unit, a sentence, and in brackets what moves it. How much a sum over the discrete
variables may cost is a matter of the kernel that sums (`samplers.kernels.collapsed`), also where the user names it.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class MixedPolicy:
    """The numbers of the default sampler on mixed spaces; `dataclasses.replace` makes another."""

    # ---- the trial
    trial_draws: int = 100
    """draws a chain: of a trial [benchmarks/mixed_models.py]"""
    apart_r_hat: float = 1.1
    """R-hat: beyond it chains of a trial disagree (Gelman & Rubin 1992) [test_mixed_choice: trials are measured]"""
    stuck_ess: float = 3.0
    """effective draws a chain: at most, of chains that are apart; of 100 draws in two modes 4 to 12 standard deviations
    apart there were 1.6 to 3.0 [test_mixed_choice: trials are measured]"""
    most_divergent: float = 0.001
    """of the trajectories: diverge, at most, in a run that is trusted; any that do are reported
    [test_mixed_choice: a trial goes on]"""
    sure_count: float = 3.0
    """divergences: that are expected where none is seen by a chance of 5 %, so that a trial which excludes
    `most_divergent` has so many times its inverse trajectories; 0.17 % were not seen in 800 [gallery/hares.py]"""
    halvings: int = 3
    """times: a step size is halved at which trajectories diverge; Stan's advice for acceptance 0.99 is about as small
    [gallery/hares.py]"""

    # ---- the exploration
    tuning_rounds: int = 250
    """rounds: that tune a ladder, at most [benchmarks/mixed_models.py]"""
    kept_rounds: int = 400
    """rounds: of a ladder that are kept, at most; a check says whether they were enough [the same]"""
    least_share: float = 0.25
    """of these rounds: however expensive they are; 62 tune the ladder, 100 are kept [the same, coal_mining]"""
    patience: int = 4
    """times: that the kept rounds are made, at most, until `least_ess` of them are effective; of 400 of four ladders
    between two modes there were 77 with one seed of four [test_mixed_sampling: jumps and ladders confirm each other]"""
    heaviest: float = 0.99
    """of the ladders' draws by weight: up to which trials of jumps start, so that modes of 1 % count
    [benchmarks/mixed_models.py mixture_of_regressions]"""

    # ---- the hunt
    scanned: int = 512
    """points: around the draws, and as many draws of the reference, the best of which are taken uphill
    [test_mixed_hunt: modes that ladders miss]"""
    climbed: int = 128
    """points: that are taken uphill side by side [the same]"""
    least_batches: int = 3
    """batches: of so many, at least; more where they keep nobody waiting [the same]"""
    most_equations: int = 500
    """equations: of a function whose parts lead to starts, at most; the parts of markov_switching compile for 6.6 s,
    those of capture_recapture for 3.3 [benchmarks/mixed_models.py]"""
    climbing_steps: int = 200
    """steps: uphill; a step size that starts a million times too long or too short is right after 75 [the same]"""
    first_step: float = 0.1
    """of what the draws spread: the first step uphill [the same]"""

    box: float = 1e3
    """spreads of the draws: the sides of a box that no mode fills; a top so low that even a box of it is negligible is
    left alone [benchmarks/mixed_models.py occupancy]"""
    content: float = 0.9
    """of a Gaussian mode: lies in the ellipsoid whose mass is found [test_mixed_hunt: the share of a mode]"""
    freedom: float = 5.0
    """degrees: of the t distribution whose draws weigh a mode, with tails heavier than a Gaussian's [the same]"""
    least_learned: float = 0.1
    """of what a transport learns from: draws at the modes that ladders missed, at least and at most a half
    [test_mixed_hunt: modes that ladders miss]"""

    # ---- comparing
    most_errors: float = 5.0
    """standard errors: between two means; by the normal law the worst of 100 passes it once in 17,000 runs
    [test_mixed_choice: draws that differ]"""
    least_ess: float = 100.0
    """effective draws: of what is compared with; standard errors are then known to 7 % [test_mixed_sampling]"""
    most_categories: int = 20
    """categories: of an unordered coordinate, each of which has a mean to compare [test_mixed_sampling]"""


MIXED = MixedPolicy()
