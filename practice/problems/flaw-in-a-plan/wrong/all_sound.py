"""Always sound: your answer is 0 for every plan.

case: other-stage
kind: value
"""


def flaw_in_a_plan(plan: dict) -> int:
    return 0
