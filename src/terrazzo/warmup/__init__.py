"""Warm-up as a pipeline: explore by tempering, learn a transport, try what is worth what, and freeze."""

from terrazzo.warmup.agreement import Agreement as Agreement
from terrazzo.warmup.agreement import best_estimate as best_estimate
from terrazzo.warmup.budget import Budget as Budget
from terrazzo.warmup.learning import default_training as default_training
from terrazzo.warmup.locals import SAFE_FLAG as SAFE_FLAG
from terrazzo.warmup.locals import may_hang as may_hang
from terrazzo.warmup.pipeline import Plan as Plan
from terrazzo.warmup.pipeline import make_plan as make_plan
from terrazzo.warmup.pipeline import placed as placed
from terrazzo.warmup.pipeline import plan_arrays as plan_arrays
from terrazzo.warmup.pipeline import plan_header as plan_header
from terrazzo.warmup.pipeline import restored_plan as restored_plan
