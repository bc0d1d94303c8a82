"""The default sampler: explore by tempering, try local moves, learn a transport where it can pay, and choose."""

from terrazzo.auto.agreement import all_checks as all_checks
from terrazzo.auto.agreement import comparison as comparison
from terrazzo.auto.agreement import estimates as estimates
from terrazzo.auto.budget import Budget as Budget
from terrazzo.auto.candidates import SAFE_FLAG as SAFE_FLAG
from terrazzo.auto.candidates import may_hang as may_hang
from terrazzo.auto.census import Census as Census
from terrazzo.auto.census import take_census as take_census
from terrazzo.auto.context import Context as Context
from terrazzo.auto.evidence import log_sum_of_seen as log_sum_of_seen
from terrazzo.auto.evidence import settle_evidence as settle_evidence
from terrazzo.auto.mixing import worst_agreement as worst_agreement
from terrazzo.auto.plan import Plan as Plan
from terrazzo.auto.plan import plan_arrays as plan_arrays
from terrazzo.auto.plan import plan_header as plan_header
from terrazzo.auto.plan import restored_plan as restored_plan
from terrazzo.auto.planning import Request as Request
from terrazzo.auto.planning import make_plan as make_plan
from terrazzo.auto.policy import CPU as CPU
from terrazzo.auto.policy import Policy as Policy
from terrazzo.auto.settling import Keys as Keys
from terrazzo.auto.settling import settle as settle
from terrazzo.auto.settling import thin_in_time as thin_in_time

__all__ = [
    "CPU", "SAFE_FLAG", "Budget", "Census", "Context", "Keys", "Plan", "Policy", "Request", "all_checks", "comparison",
    "estimates", "log_sum_of_seen", "make_plan", "may_hang", "plan_arrays", "plan_header", "restored_plan",
    "settle", "settle_evidence", "take_census", "thin_in_time", "worst_agreement",
]  # fmt: skip
