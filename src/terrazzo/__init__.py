"""Terrazzo: exact, diagnosed draws from any unnormalised distribution over integers."""

from terrazzo import errors as errors
from terrazzo import problems as problems
from terrazzo import samplers as samplers
from terrazzo.conditionals import condition as condition
from terrazzo.conditionals import sample_conditional as sample_conditional
from terrazzo.inference import sample as sample
from terrazzo.optimisation import maximize as maximize
from terrazzo.results import Result as Result
from terrazzo.running_conditionals import AbstractRunningConditionals as AbstractRunningConditionals
from terrazzo.samplers import run_tempering as run_tempering
from terrazzo.samplers import smc as smc
from terrazzo.spaces import Space as Space
from terrazzo.spaces import binary as binary
from terrazzo.spaces import categorical as categorical
from terrazzo.spaces import integers as integers
from terrazzo.targets import Target as Target
from terrazzo.targets import blackbox as blackbox
from terrazzo.training import fit as fit
from terrazzo.training import forward_kl as forward_kl
from terrazzo.training import reverse_kl as reverse_kl
from terrazzo.transports import autoregressive_transport as autoregressive_transport
from terrazzo.transports import coupling_order as coupling_order
from terrazzo.transports import flow_transport as flow_transport
from terrazzo.transports import product_transport as product_transport
from terrazzo.transports import sample_transport as sample_transport

__version__ = "0.1.0"
