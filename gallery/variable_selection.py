"""Which measurements predict diabetes?

Ten measurements of 442 patients and the progress of their diabetes a year later (Efron et al., 2004; shipped with
scikit-learn). With squares and products of two measurements there are 64 candidate columns. Which belong in a
linear regression? Each column is a bit, so that there are 2^64 models; coefficients and noise are integrated out.

`tz.problems.selection_target` is this log-probability for any data. It knows how the fit changes when one column
comes in or goes (the sweep operator), so that no matrix is factorised anew for each column. It needs float64, which
is switched on in the first line.

No time limit is set. With `max_seconds=60` and `100` on the same busy machine the exploration was too short: one
run had a single draw a chain and was not trusted, two others were "unchecked", with the same probabilities to
within 0.01.

Figure: Horizontal bars of the probability that a column belongs in the regression, for the fifteen most probable
columns.
"""

import jax

jax.config.update("jax_enable_x64", True)

import numpy as np
from sklearn.datasets import load_diabetes
from sklearn.preprocessing import PolynomialFeatures

import terrazzo as tz
from terrazzo.paper.plots import new_figure, themed

data = load_diabetes()
expand = PolynomialFeatures(2, include_bias=False)
columns = expand.fit_transform(data.data)
names = np.array([name.replace(" ", " x ") for name in expand.get_feature_names_out(data.feature_names)])
is_new = names != "sex^2"  # sex has two values: its square says nothing new
columns, names = columns[:, is_new], names[is_new]
columns = (columns - columns.mean(axis=0)) / columns.std(axis=0)
progress = (data.target - data.target.mean()) / data.target.std()

result = tz.sample(tz.problems.selection_target(columns, progress), seed=0, draws=500)
print(result.verdict)
print("moves:", result.choice)

chance = result["theta"].mean(axis=(0, 1))
size = result["theta"].sum(axis=2)
print(f"columns in the model: {size.mean():.1f} +- {size.std():.1f} of {len(names)}")
best = np.argsort(-chance)[:15]
for i in best:
    print(f"{names[i]:<12} {chance[i]:.3f}")

with themed():
    figure = new_figure(6.0, 4.2)
    axis = figure.subplots()
    axis.barh(names[best][::-1], chance[best][::-1])
    axis.set(xlabel="probability of belonging in the regression", xlim=(0, 1))
    figure.savefig("variable_selection.png", dpi=90)
