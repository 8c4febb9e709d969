"""Simulate a schedule: when does the last operation end, if each starts as soon as it can?"""


def makespan(order: list[list[tuple[str, int]]], cost: list[dict], transfer: int) -> int | None:
    """Operations and their times per rank -> the end of the last one, None if one never starts."""
    raise NotImplementedError("write makespan here")
