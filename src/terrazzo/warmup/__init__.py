"""Warm-up as a pipeline: explore by tempering, learn a transport, try what is worth what, and freeze."""

from terrazzo.warmup.agreement import Agreement as Agreement
from terrazzo.warmup.agreement import log_sum_of_seen as log_sum_of_seen
from terrazzo.warmup.agreement import settle_evidence as settle_evidence
from terrazzo.warmup.budget import Budget as Budget
from terrazzo.warmup.census import Census as Census
from terrazzo.warmup.census import take_census as take_census
from terrazzo.warmup.exploration import worst_agreement as worst_agreement
from terrazzo.warmup.hunt import OtherStarts as OtherStarts
from terrazzo.warmup.hunt import hunt as hunt
from terrazzo.warmup.hunt import modes_apart as modes_apart
from terrazzo.warmup.hunt import pick_starts as pick_starts
from terrazzo.warmup.learning import default_training as default_training
from terrazzo.warmup.locals import SAFE_FLAG as SAFE_FLAG
from terrazzo.warmup.locals import may_hang as may_hang
from terrazzo.warmup.mixing import least_ess as least_ess
from terrazzo.warmup.pipeline import Plan as Plan
from terrazzo.warmup.pipeline import Planner as Planner
from terrazzo.warmup.pipeline import placed as placed
from terrazzo.warmup.pipeline import plan_arrays as plan_arrays
from terrazzo.warmup.pipeline import plan_header as plan_header
from terrazzo.warmup.pipeline import restored_plan as restored_plan
from terrazzo.warmup.reach import cut_off as cut_off
