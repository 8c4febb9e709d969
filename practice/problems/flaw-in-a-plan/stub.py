"""The flaw in a plan: read what a plan promises, and number the first thing that is wrong."""


def flaw_in_a_plan(plan: dict) -> int:
    """A plan -> the number of its first flaw, 0 for none."""
    raise NotImplementedError("write flaw_in_a_plan here")
