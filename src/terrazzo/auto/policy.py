"""Every number that the default sampler decides by, in one place.

Below each field stand its unit, a sentence, and in brackets the test or benchmark that moves it. Nothing else in
`auto` holds a threshold: decisions are functions of a table of measurements and of a `Policy`.

Where a number differs on an accelerator, `default_policy` has it.
"""

import dataclasses
from dataclasses import dataclass

import jax

from terrazzo.auto.mixed_policy import MIXED, MixedPolicy


@dataclass(frozen=True)
class Policy:
    """The numbers of the default sampler; `dataclasses.replace` makes another."""

    # ---- the census
    census_states: int = 2**24
    """configurations: the largest space that is enumerated; its log-probabilities take 128 MiB [test_never_wrong]"""
    census_seconds: float = 20.0
    """seconds: the longest census [test_never_wrong: a census that would take too long]"""
    census_share: float = 0.3
    """of max_seconds: the same, in limited time [test_never_wrong]"""
    census_batch: int = 2**16
    """configurations: evaluated in one call [benchmarks/first_result.py readme_chain]"""
    census_box_batch: int = 64
    """configurations: the same, of a black box, which is timed by its first batch [test_never_wrong]"""

    # ---- reading the function
    reading_seconds: float = 5.0
    """seconds: the longest reading of a function; a lattice of 65,536 sites takes 1.2 [benchmarks/structure.py]"""
    reading_evaluations: int = 1000
    """evaluations: what reading is counted as; what was read is compared with log pi at up to 96 configurations
    [test_structured_runs]"""

    # ---- the budget: what of a whole run may be spent at the end of each phase
    adapting_until: float = 0.06
    """of a run: the ladder's adaptation [test_warmup: budgets]"""
    exploring_until: float = 0.12
    """of a run: exploration [test_warmup: budgets]"""
    trying_until: float = 0.17
    """of a run: the trial of local moves [benchmarks/default_sampler.py iris --seconds 290]"""
    training_until: float = 0.35
    """of a run: training [benchmarks/default_sampler.py wine --seconds 285]"""
    trial_until: float = 0.4
    """of a run: the trial of the transport [benchmarks/default_sampler.py iris --seconds 285]"""
    exploring_least_seconds: float = 8.0
    """seconds: a long run explores no longer than this, or the share below [test_warmup: budgets]"""
    exploring_least_share: float = 0.03
    """of a run: see above; the larger of the two counts [test_warmup: budgets]"""
    compiling_share: float = 0.3
    """of a run: seconds of compilation that move the ends of the phases, at most [test_warmup: compilation]"""
    burn_in_until: float = 0.5
    """of a run: burn-in ends here, so that drawing gets its part [benchmarks/default_sampler.py --seconds]"""
    comparing_share: float = 0.05
    """of max_seconds: kept for the comparison of the draws with the exploration [test_warmup: seconds are kept to]"""
    short_seconds: float = 12.0
    """seconds: an exploration, its trial and their checks take 10 to 12 to compile on two cores; a shorter run has one
    local kernel and no check [test_warmup: seconds are kept to]"""

    # ---- exploration
    ladders: int = 8
    """ladders: independent ones, few on a CPU, more where they run side by side [benchmarks/default_sampler.py]"""
    wide_ladders: int = 8
    """ladders: the same beyond `wide_dims` [benchmarks/default_sampler.py ising_mnist]"""
    wide_dims: int = 128
    """coordinates: see above [benchmarks/default_sampler.py ising_mnist]"""
    filling: int = 1
    """coordinates of all replicas: that fill the device; up to it more ladders take no longer. 128 ladders of 19 x 216
    spins made as many rounds a second as 16 on an H200 [benchmarks/structured_defaults.py glass]"""
    first_rungs: int = 12
    """temperatures: before the barrier is known; more on an accelerator, where they cost less than compiling a longer
    ladder (2.5 s on an H200) [benchmarks/default_sampler.py torus_critical, benchmarks/structured_defaults.py]"""
    most_rungs: int = 96
    """temperatures: of any ladder [benchmarks/default_sampler.py ising_mnist]"""
    rung_slack: float = 1.3
    """ratio: a ladder that should be longer than this times itself is laid out again, which compiles once more
    [benchmarks/first_result.py]"""
    windows: tuple[int, ...] = (8, 16, 32, 64, 64)
    """rounds: after which the ladder moves; the last ones measure it [benchmarks/default_sampler.py torus_cold]"""
    block: int = 100
    """rounds: kept between two looks at the ladders [test_warmup: exploration keeps to its seconds]"""
    fewest_rounds: int = 8
    """rounds: kept, however little time there is [test_warmup: exploration keeps to its seconds]"""
    fewest_kept: int = 32
    """draws a ladder: with fewer, neither agreement nor log Z can be judged; nine looked independent by chance
    [test_warmup: too few rounds]"""
    starting_part: int = 3
    """one in so many: of the rounds kept, the first ones, which may still carry the starts and are left out
    [test_warmup: lost modes]"""
    even_blocks: int = 4
    """blocks: in which every round is kept; then the thinning doubles with every second block [test_warmup]"""
    held_out_share: float = 0.2
    """of the draws: kept from training, to judge a transport [test_warmup: the divergence predicts]"""
    sweeps_a_round: float = 0.25
    """sweeps: of local moves between two swaps of a ladder; one move at least [benchmarks/default_sampler.py]"""
    tied_sweeps_a_round: float = 0.5
    """sweeps: the same, of joint redraws, where single sites are cut off [test_never_wrong: tied bits]"""
    good_r_hat: float = 1.02
    """R-hat: of ladders, or of starts, that agree [test_warmup: lost modes]"""
    good_ess: float = 400.0
    """effective draws: with which exploration may end (Vehtari et al. 2021) [test_warmup: lost modes]"""
    log_z_error: float = 0.1
    """nats: the standard error of log Z to which ladders that agree go on; Bayes factors are read in whole nats
    [benchmarks/structured_defaults.py ising]"""
    log_z_patience: float = 4.0
    """ratio: for so many times the rounds that agreement took, at most, which halves the error [the same]"""
    least_rounds: int = 200
    """rounds: of an exploration that does not converge, at least [benchmarks/default_sampler.py]"""
    most_rounds: int = 12_000
    """rounds: the same, at most; ladders of a spin glass agreed after 15 s on two cores, and not within 2,000 rounds,
    which took 8 [benchmarks/structured_defaults.py glass]"""
    phase_seconds: float = 60.0
    """seconds: without a limit, what exploration may take, drawing at the most, and the drawing that a transport is
    judged by [benchmarks/first_result.py]"""
    most_watched: int = 128
    """coordinates: that are watched while exploring and trying; statistics of all 4,096 of a lattice took longer than
    the moves themselves [benchmarks/default_sampler.py ising_mnist, benchmarks/structured_defaults.py ising]"""

    # ---- candidates
    largest_covariance: int = 512
    """coordinates: whose covariance integer Metropolis can learn [benchmarks/which_sampler.py]"""
    cluster_share: float = 0.95
    """of couplings: as many must favour equal values for cluster moves to be tried; frustrated models are far below
    [test_structured_candidates]"""
    no_field: float = 1e-6
    """of the largest coupling: smaller fields are the rounding of float32 [test_structured_candidates]"""
    tree_degree: float = 8.0
    """neighbours a site, on average, up to which redraws of whole trees are tried [test_structured_candidates]"""
    largest_block: int = 256
    """configurations: of a block that is redrawn jointly [test_never_wrong: asia]"""

    metropolis_moves: int = 16
    """steps: of integer Metropolis that are tried as one sweep [benchmarks/which_sampler.py]"""
    langevin_moves: int = 4
    """steps: of discrete Langevin, the same [benchmarks/which_sampler.py]"""

    # ---- the trial
    tuning_steps: int = 400
    """steps: of all chains, in which the parameters of a candidate are found [benchmarks/default_sampler.py]"""
    brief_tuning_steps: int = 40
    """steps: the same for discontinuous HMC, which has one parameter and long steps [the same]"""
    settling_share: float = 0.25
    """of a stretch: run before it, and not recorded [the same]"""
    records: int = 64
    """draws a chain: of a stretch [benchmarks/default_sampler.py]"""
    fewest_records: int = 8
    """draws a chain: of a stretch whose steps take seconds [benchmarks/default_sampler.py selection_400]"""
    trial_seconds: float = 1.5
    """seconds: of a candidate, at least [benchmarks/default_sampler.py iris --chains 16 --seconds 290]"""
    trial_share: float = 0.008
    """of max_seconds: of a candidate, where that is longer [the same]"""
    timing_seconds: float = 0.2
    """seconds: in which a step is timed [the same]"""
    timing_share: float = 0.5
    """of `timing_seconds`, and of what `timing_growth` times the steps should take: a timed stretch that takes less is
    followed by a longer one [benchmarks/structured_defaults.py glass]"""
    timing_growth: int = 4
    """ratio: of the steps of two timed stretches [the same]"""
    most_timed: int = 4096
    """steps: of one timed stretch [the same]"""
    clear_ess: float = 8.0
    """effective draws a chain: that end a candidate's trial [the same]"""
    saturated_share: float = 0.5
    """of the records: effective, as few as noise may show of independent ones; the stretch was too long
    [test_warmup: independent records]"""
    longer_stretch: float = 8.0
    """ratio: of stretches in which chains hardly met [benchmarks/default_sampler.py breast_cancer]"""
    shorter_stretch: float = 0.25
    """ratio: of stretches in which all records were independent [test_warmup: independent records]"""
    resolved_ess: float = 4.0
    """effective draws a chain: below it, stuck and slow chains look alike [test_warmup: stuck]"""
    longer_look: float = 3.0
    """ratio: of seconds; the best local moves have a second look where no chains have met [test_warmup]"""
    far_apart_r_hat: float = 2.0
    """R-hat: beyond it, nothing shows whether ladders would ever meet [benchmarks/default_sampler.py wine]"""
    far_slower: float = 3.0
    """ratio: a local kernel whose chains have not met is passed over if the best is so much faster where chains are
    [test_warmup: of local kernels that never met]"""
    nearly: float = 0.9
    """of the best worth: closer than trials this short can tell [test_warmup: in limited time]"""
    low_quantile: float = 0.05
    """of the coordinates: the worst of them are left out of the least ESS [benchmarks/default_sampler.py]"""
    least_left: float = 1e-3
    """of what tells chains apart: less than this is not told from nothing in a trial [test_warmup: stuck]"""
    stuck_share: float = 0.5
    """of what tells chains apart: left after half of a trial; the rest may never decay [test_warmup: stuck]"""
    low_acceptance: float = 0.05
    """probability: of an independence move; below it, moves that keep part of z may do better, and weights are of no
    use for log Z [test_warmup: can pay]"""
    pcn_scales: tuple[float, ...] = (0.25, 0.6)
    """scales: of moves that keep part of z [benchmarks/hybrid_logistic.py]"""
    most_pairs: int = 5
    """candidates: numbers of local moves beside a jump that are tried [benchmarks/default_sampler.py breast_cancer]"""
    pair_growth: int = 4
    """ratio: between these numbers [the same]"""
    drawing_seconds: float = 2.0
    """seconds: without a limit, what drawing takes at most before draws are thinned less than to independence, if
    enough of them are effective [benchmarks/first_result.py two_modes, benchmarks/structured_defaults.py glass]"""
    enough_ess: float = 200.0
    """effective draws a chain: with them R-hat is about 1.005, since that of halves of chains is above 1 by about one
    over their effective draws; with 100 it was 1.0108. Fewer are drawn only in limited time
    [benchmarks/structured_defaults.py ising]"""
    trying_seconds: float = 5.0
    """seconds: what one more candidate costs, compilation included; trying ends when it has cost half of what the draws
    need, which a better candidate may save [benchmarks/first_result.py]"""
    brief_seconds: float = 20.0
    """seconds: draws that take no longer are made by loops compiled with less effort, which takes half of the time and
    makes steps up to a quarter slower [benchmarks/first_result.py]"""
    compiles_while_timing: bool = False
    """whether: programs are compiled while steps are timed; on a CPU both would take the same cores
    [benchmarks/structured_defaults.py glass]"""
    rounds_a_step: int = 1
    """rounds: of the hybrid in one step; on an accelerator proposals of several are drawn side by side
    [benchmarks/default_sampler.py iris]"""
    most_rounds_a_step: int = 1
    """rounds: the same where the thinning was asked for: its largest divisor up to this [the same]"""

    # ---- the transport
    largest_learned: int = 128
    """coordinates: up to which a transport is learned unasked; a step of training takes as many network passes
    [benchmarks/default_sampler.py]"""
    learning_run_seconds: float = 90.0
    """seconds: of a whole run; in a shorter one there is no time to compile and train a transport
    [benchmarks/default_sampler.py --seconds]"""
    learning_seconds: float = 30.0
    """seconds: what learning, weighing and trying a transport costs on two cores (24 to 60 measured); none is begun to
    save less [benchmarks/first_result.py]"""
    independent_gap: float = 1.25
    """steps a draw: of single local moves that leave nothing for jumps to gain [test_warmup: no transport]"""
    forward_share: float = 0.2
    """of the steps: maximum likelihood on the tempered draws [benchmarks/training_loop.py]"""
    forward_patience: int = 1
    """checks: on a finite set of draws the held-out likelihood soon turns, and then only falls [the same]"""
    forward_weight: float = 0.1
    """of the loss: maximum likelihood beside the reverse KL, which keeps modes [test_warmup: lost modes]"""
    enough_is_ess: float = 0.95
    """of the draws: effective by weight; more training gains nothing [benchmarks/default_sampler.py]"""
    most_buffered: int = 2**17
    """draws: that are trained on [benchmarks/default_sampler.py]"""
    checks: int = 32
    """checks: of a stage, at least [benchmarks/default_sampler.py breast_cancer]"""
    fewest_checks: int = 3
    """checks: from which progress is extrapolated [the same]"""
    longest_check: int = 100
    """steps: between two checks, at most [the same]"""
    training_work: int = 64_000
    """steps times coordinates: of training; a step takes d network passes [benchmarks/default_sampler.py]"""
    least_steps: int = 600
    """steps: of training, at least [the same]"""
    most_steps: int = 2000
    """steps: of training, at most [the same]"""
    batch_size: int = 128
    """draws a step [the same]"""
    patience: int = 3
    """checks: without improvement before the learning rate is cut [the same]"""
    learning_rate: float = 2e-3
    """of Adam: above the default of training, for there are fewer steps [the same]"""
    start_beta: float = 1.0
    """inverse temperature: no annealing; the first stage has learned the modes from tempered draws [the same]"""
    first_steps: int = 40
    """steps: of the second stage, in which the divergence falls by `first_fall`: from 74 to 31 in 50 (Iris), 225 to 73
    in 38 (Wine), 1023 to 169 in 25 (Breast cancer) [test_warmup: can pay]"""
    first_fall: float = 3.0
    """ratio: see above [the same]"""
    first_power: float = 0.3
    """power of the steps: with which it falls from there (0.2 to 0.3 seen) [the same]"""
    many_steps: int = 2000
    """steps: with so many, or more, anything may come of a bad beginning [the same]"""
    bulk: float = 0.5
    """of the divergence: what describes the bulk of the weights (Iris, J = 7.1: acceptance 0.157, not 0.059)
    [test_warmup: the divergence predicts]"""
    optimism: float = 2.0
    """ratio: of powers; progress is not even [test_warmup: progress]"""
    pushed_a_chain: int = 16
    """draws a chain: of a transport, among which possible starts are looked for [test_inference]"""
    own_draws: int = 8192
    """draws: of the transport that are weighed [test_warmup: lost modes]"""
    most_weighed: int = 4096
    """draws: tempered or final ones that are weighed [test_warmup: lost modes]"""

    # ---- burn-in and other starts
    watched_share: float = 0.1
    """of the draws: burn-in in which a choice is held to its promise; records of chains started elsewhere
    [benchmarks/default_sampler.py]"""
    fewest_watched: int = 24
    """records: of either, at least [test_never_wrong: the table]"""
    most_watched_records: int = 256
    """records: of chains started elsewhere, at most; as many come before [test_never_wrong: the table]"""
    broken_promise: float = 4.0
    """ratio: so much below its trial, a choice gives way to the next [benchmarks/default_sampler.py breast_cancer]"""
    others_share: float = 0.15
    """of the seconds left: for chains started elsewhere [test_never_wrong: the table in 30 seconds]"""
    drawing_share: float = 0.8
    """of the seconds left: what thinning may plan with [test_warmup: seconds are kept to]"""

    # ---- the hunt
    hunt_rows: int = 256
    """configurations: quenched side by side [test_never_wrong: the hunt]"""
    hunt_evaluations: int = 2**24
    """evaluations: of a hunt, at most [test_never_wrong: the table]"""
    hunt_seconds: float = 3.0
    """seconds: of a hunt, at most [test_never_wrong: the table]"""
    hunt_share: float = 0.05
    """of max_seconds: the same [test_never_wrong: the table in 30 seconds]"""
    most_parts: int = 16
    """parts: of the function, that lead to starts [test_never_wrong: parts of a mixture]"""
    guided_evaluations: int = 2**19
    """evaluations: of one sweep that follows the parts, at most; 256 configurations of 60 bits take 15,360
    [test_never_wrong: parts of a mixture]"""
    most_optima: int = 64
    """optima: that are kept [test_never_wrong: the table]"""
    hunt_cycle: int = 4
    """batches: of which one begins from draws and one from the best of many random configurations, the others from
    plain random ones [test_never_wrong: the table]"""
    shaken_share: float = 0.5
    """of the sites: redrawn in draws to quench from, where nearly all configurations are impossible [the same]"""
    scanned: int = 2**14
    """configurations: random ones, of which the best are quenched [test_never_wrong: narrow modes]"""
    stirring_sweeps: int = 4
    """Gibbs sweeps: from an optimum into what is typical around it [test_never_wrong: narrow modes]"""
    mode_copies: int = 64
    """draws: of each mode that was missed, to learn from [test_never_wrong: narrow modes]"""
    modes_share: float = 0.25
    """of the chains: start in modes that were missed; moves that cannot leave them are then seen to fail [the same]"""
    apart_share: float = 0.1
    """of the coordinates: optima that differ in fewer are taken for one [test_never_wrong: the table]"""
    negligible: float = 1e-3
    """of Z: a mode that no one would miss [test_never_wrong: chains that stay]"""
    mode_draws: int = 4096
    """draws: of the product that weighs a mode [test_never_wrong: the weight of a mode]"""
    smoothing: float = 0.5
    """draws: spread over the values of a site of that product [the same]"""

    # ---- reach
    reach_draws: int = 16
    """draws: that are looked around from [test_never_wrong: tied bits]"""
    reach_tried: tuple[tuple[int, int], ...] = ((2, 384), (3, 256), (4, 128))
    """(sites, changes): random changes of so many sites, of each draw [test_never_wrong: tied bits, asia]"""
    reach_swaps: int = 128
    """exchanges: of two values, of each draw [test_never_wrong: the table]"""
    reach_batch: int = 2**24
    """numbers: of the configurations that are evaluated in one call, 64 MiB [test_never_wrong: tied bits]"""
    comparable: float = 4.605
    """nats: a configuration so much below the draw is not worth reaching (a factor 100) [test_never_wrong: slopes]"""
    blocked: float = 12.0
    """nats: a step that is taken once in 160,000 tries [test_never_wrong: slopes]"""

    # ---- comparing
    alpha: float = 1e-4
    """probability: of a false alarm of each comparison [test_warmup: false alarms; test_never_wrong: the table]"""
    most_compared: int = 2**24
    """numbers: of the final draws that are compared; beyond it they are thinned [test_warmup: many draws]"""
    most_compared_draws: int = 2**18
    """draws: the same [test_warmup: many draws]"""
    explored_r_hat: float = 1.1
    """R-hat: of an exploration that may confirm [test_never_wrong: too short an exploration]"""
    explored_draws: int = 64
    """draws a ladder: the same [test_never_wrong: too short an exploration]"""
    share_beyond: float = 0.02
    """of tempered draws: heavier than any of the transport's own, without a note [test_warmup: lost modes]"""
    sure_errors: float = 3.0
    """standard errors: by which a share must be above that for the note [test_warmup: lost modes]"""
    point_share: float = 0.98
    """of tempered draws: in the one configuration of all chains [test_never_wrong: the table]"""
    evidence_gap: float = 5.0
    """standard errors: between two estimates of log Z; few ladders make heavy tails [test_warmup: lost modes]"""
    small_gap: float = 0.02
    """nats: of log Z that no one minds, whatever the standard errors claim [test_never_wrong: log Z]"""
    pareto_k: float = 0.7
    """Pareto k: of weights whose mean has an error (Vehtari et al. 2024) [test_never_wrong: log Z]"""
    looked_at: int = 64
    """draws, and coordinates: at which constants are looked at [test_never_wrong: a constant]"""
    looked_values: int = 8
    """values: other ones of a constant that are tried [test_never_wrong: a constant]"""
    changes_due: float = 10.0
    """changes: that a constant should have had; more of them fail [test_never_wrong: a constant]"""

    mixed: MixedPolicy = MIXED
    """numbers: of runs with real variables [test_mixed_choice]"""


CPU = Policy()
ACCELERATOR = dataclasses.replace(
    CPU, exploring_least_seconds=20.0, exploring_least_share=0.08, ladders=32, wide_ladders=16, filling=2**19,
    first_rungs=24, least_rounds=1000, largest_learned=256, training_work=768_000, least_steps=3000, most_steps=12_000,
    batch_size=4096, patience=6, compiles_while_timing=True, rounds_a_step=8, most_rounds_a_step=16,
)  # fmt: skip


def default_policy() -> Policy:
    """The policy of the device at hand."""
    return CPU if jax.default_backend() == "cpu" else ACCELERATOR
