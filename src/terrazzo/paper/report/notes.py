"""What a reader must know to read a table rightly: facts that hold for every run."""

INTRODUCTION = (
    "Jaini, Nielsen and Welling (2021) sample discrete distributions by random-walk Metropolis in the latent space of "
    "a SurVAE flow. Every experiment of theirs is run here again: their recipe (“Flow + MH”), the baselines they name, "
    "and Terrazzo's own default (“ours”). Every sampler leaves the target exactly invariant; what differs is how "
    "fast its chains mix, and whether they find the posterior at all."
)

NOTES = {
    "mixture": (
        "The paper shows pictures only. All 4096 states can be enumerated, so the distance to the exact law is known. "
        "The four mixtures are ours: the paper does not give its parameters.",
    ),
    "ising": (
        "The energy is that of the authors' code: periodic lattice, every edge counted from both of its ends, β = 1, "
        "field 2.1. Their log π near 4056 follows from it. (Setting “text” counts every edge once.)",
        "The posterior mean of log π is 4081.0 (long parallel tempering, chain means within 0.1), its exact maximum "
        "4083.6 (minimum cut). No sampler of the paper's table reaches it: their chains sit in patches, and ESS inside "
        "a patch says nothing about the rest of the space.",
        "A step of Gibbs is one site, as in the paper; a step of coloured Gibbs is a whole sweep, and one of dHMC is a "
        "trajectory of five sweeps. These two are thinned, and warmed up, ten times less.",
    ),
    "logistic": (
        "Each fold's posterior is given four fifths of the rows, so log π differs from a run on all rows. "
        "The paper announces Digits (650 weights) and prints no row for it.",
        "A trajectory of dHMC is five sweeps of coordinate updates; it is thinned, and warmed up, ten times less.",
    ),
    "selection": (
        "The posterior: in the noise-free setting all mass sits on the true support (or next to it), at a log π far "
        "above zero; the two columns “true support” and “empty model” show how far apart they are.",
        "The paper's rows lie at −1055 to −5307. In a re-run of the authors' code the flow's chains sit in the "
        "empty model, Gibbs finds the true support, and the released scripts score the chains on freshly drawn, "
        "unrelated data, which reverses the ranking; in float32 the same model differs by up to 2,195 nats between two "
        "evaluations. The paper's numbers are therefore no target to reach, and stand here for completeness.",
        "With noise (sd 10) a feature without effect keeps an inclusion probability of about 1 / (1 + √(1 + n / 10)), "
        "0.18 for 100 features: the prior of a coefficient has variance 10, whatever the data. The exact support is "
        "then one of very many sets, and what can be compared are inclusion probabilities.",
        "A high ESS at a low log π is a chain that moves freely where there is no mass.",
    ),
}
