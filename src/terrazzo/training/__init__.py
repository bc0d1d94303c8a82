"""Training: what a transport is fitted for, and the loop that fits it."""

from terrazzo.training.fit import Fitted as Fitted
from terrazzo.training.fit import fit as fit
from terrazzo.training.objectives import ForwardKL as ForwardKL
from terrazzo.training.objectives import ReverseKL as ReverseKL
from terrazzo.training.objectives import forward_kl as forward_kl
from terrazzo.training.objectives import reverse_kl as reverse_kl
from terrazzo.training.settings import Training as Training
