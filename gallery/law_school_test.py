"""How hard are five questions, and how able are the people who answered them?

A thousand people answered five questions of a test for law schools (section 6 of the LSAT; Bock and Lieberman,
1970); every fifth of them is taken here, to be quick. Each answer is right or wrong. In the model of Rasch a person
has an ability, a question has a difficulty, and the probability of a right answer depends on their difference. Here
ability has one of seven levels: five difficulties and one spread are real, two hundred abilities are integers.

It is a NumPyro model, handed over as it is. People are independent given the questions. Terrazzo notices it, sums
the abilities out, and draws them exactly afterwards.

Figure: Left, the difficulties of the five questions as dots with 90 % intervals. Right, a picture of the
probabilities of the seven levels for people with 0 to 5 right answers: more right answers, higher levels, but widely
spread.
"""

import numpy as np
import numpyro
import numpyro.distributions as dist

import terrazzo as tz
from terrazzo.paper.plots import new_figure, themed

counts = [
    3, 6, 2, 11, 1, 1, 3, 4, 1, 8, 0, 16, 0, 3, 2, 15, 10, 29, 14, 81, 3, 28, 15, 80, 16, 56, 21, 173, 11, 61, 28, 298,
]  # fmt: skip
patterns = (np.arange(32)[:, None] >> np.arange(4, -1, -1)) & 1  # 00000, 00001, ..., 11111
answers = np.repeat(patterns, counts, axis=0)[::5]  # every fifth person
num_people, num_items = answers.shape


def rasch(answers):
    spread = numpyro.sample("spread", dist.LogNormal(0.0, 0.5))
    with numpyro.plate("question", num_items, dim=-1):
        hard = numpyro.sample("hard", dist.Normal(0.0, 2.0))
    with numpyro.plate("person", num_people, dim=-2):
        level = numpyro.sample("level", dist.Binomial(6, 0.5))
        ability = spread * (level - 3) / np.sqrt(1.5)  # mean 0, standard deviation `spread`
        with numpyro.plate("question", num_items, dim=-1):
            numpyro.sample("answers", dist.Bernoulli(logits=ability - hard), obs=answers)


result = tz.sample(tz.from_numpyro(rasch, answers), seed=0)
print(result.verdict)
print(result.choice)
print(f"spread of the abilities: {result['spread'].mean():.2f} +- {result['spread'].std():.2f}")
for i in range(num_items):
    share, hard = answers[:, i].mean(), result["hard"][..., i]
    print(f"question {i + 1}: {100 * share:.0f} % right, difficulty {hard.mean():+.2f} +- {hard.std():.2f}")
level, right = result["level"][..., 0], answers.sum(axis=1)
table = np.array([[np.mean(level[..., right == k] == j) for k in range(6)] for j in range(7)])
print("mean level, by right answers:", *(f"{k}: {np.arange(7) @ table[:, k]:.2f}" for k in range(6)))

with themed():
    figure = new_figure(7.5, 3.0)
    left, right = figure.subplots(1, 2)
    for i in range(num_items):
        hard = result["hard"][..., i]
        left.plot([i + 1, i + 1], np.quantile(hard, [0.05, 0.95]), color="#9aa3af")
        left.plot(i + 1, hard.mean(), "o", color="#0072b2")
    left.set(xlabel="question", ylabel="difficulty", xticks=range(1, 6))
    picture = right.imshow(table, origin="lower", aspect="auto", vmin=0)
    right.set(xlabel="right answers", ylabel="level of ability", xticks=range(6))
    figure.colorbar(picture, label="probability")
    figure.savefig("law_school_test.png", dpi=90)
