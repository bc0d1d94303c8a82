"""The verdict and its checks in plain words, for someone who has never seen them."""

from terrazzo.verdict.checks import (
    DRAWS,
    ELIMINATED,
    ENUMERATED,
    EXACT,
    INDEPENDENT,
    INTERRUPTED,
    MOVED,
    NOT_TRUSTED,
    POINT_MASS,
    STORED,
    TRUSTED,
    UNCHECKED,
    Check,
)

TONES = {EXACT: "good", TRUSTED: "good", UNCHECKED: "open", NOT_TRUSTED: "bad"}
MEANINGS = {
    EXACT: "All configurations were summed. The draws are independent draws of the target, and log Z is the sum "
    "itself: the only error left is that of a finite number of draws.",
    TRUSTED: "The chains agree with each other, there are enough effective draws, and every comparison with something "
    "other than the chains themselves was made and passed.",
    UNCHECKED: "Nothing is known to be wrong: the chains agree. But something that could have contradicted them was "
    "not looked at, so a part of the distribution that all chains missed would go unnoticed.",
    NOT_TRUSTED: "At least one check failed. Do not use these draws for conclusions: what follows says which check, by "
    "how much, and what to do.",
}
ASKED = {
    INTERRUPTED: "Did the run reach its end?",
    DRAWS: "Were as many draws made as were asked for?",
    "chains": "Are there several chains to compare?",
    MOVED: "Did anything change from draw to draw?",
    "worst R-hat": "Do the chains agree? The coordinate on which they agree least; 1 is perfect.",
    "least ESS": "How many independent draws are the draws worth, for the worst coordinate?",
    "lowest acceptance": "How often does the chain that moves least accept a move?",
    "Pareto k": "Do a few draws carry most of the weight? Above 0.7 their average has no reliable error.",
    ENUMERATED: "How many configurations were evaluated: all of them.",
    ELIMINATED: "All sites were summed out exactly; the treewidth says how hard that was.",
    "error of the terms (nats)": "How far can the terms that were read from the function be from the function itself?",
    INDEPENDENT: "How many checks rest on something other than the chains and their starts?",
    POINT_MASS: "All chains sit in one configuration: does tempering find the same?",
    STORED: "Was everything written to the checkpoint?",
    "rounding of log pi (nats)": "How large is the rounding error of a difference of log pi?",
    "draws of the exploration": "Did the tempered exploration make enough draws to compare with?",
    "R-hat of the exploration": "Do the tempered ladders agree with each other?",
    "difference from tempered draws (s.e.)": "Do the draws agree with those of tempering, in standard errors?",
    "chains from hunted starts": "How many further chains were started where an optimiser found other modes?",
    "chains that stay where they were started": "How many of those never came to where the draws are?",
    "share of modes left out": "How much of Z lies in modes that the chains leave out?",
    "R-hat between starts": "Do chains from different starts agree?",
    "tempered draws beyond the transport": "Which share of the tempered draws does the learned map not reach?",
    "the same, tempered against final (s.e.)": "Do the draws agree with reweighted tempered draws, in standard errors?",
    "comparisons made": "Were all comparisons with the exploration made?",
    "a reference that the chains did not make": "Did the tempered ladders start from a distribution that you gave, "
    "such as the prior? One that was fitted to the chains cannot see all that they missed.",
    "difference from the exploration (standard errors)": "Do the draws agree with those of tempered ladders?",
    "least ESS of the exploration": "Do the tempered ladders have enough effective draws to contradict the chains?",
    "share of divergent trajectories": "How many trajectories of the reals broke off where the density is too steep?",
    "changes due of constants": "How many changes should coordinates have shown that never changed?",
}


def question(check: Check) -> str:
    """What a check asks, in words; empty for one that is not known here."""
    if check.name.startswith("log Z, "):
        return "Do two ways to estimate log Z agree, in standard errors?"
    return ASKED.get(check.name, "")


def tone(check: Check) -> str:
    """Which sign a check gets."""
    if check.passed:
        return "good"
    return {NOT_TRUSTED: "bad", UNCHECKED: "open"}.get(check.grade, "note")


def answer(check: Check) -> str:
    """Whether it passed, in a word."""
    return {"good": "passed", "bad": "failed", "open": "open", "note": "note"}[tone(check)]
