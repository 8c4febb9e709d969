"""Bubble fraction: the three numbers that go by the name, from one timeline."""


def bubbles(timeline: list[list[tuple[float, float]]]) -> dict:
    """(start, end) of each rank's operations -> the bubble under three named metrics."""
    raise NotImplementedError("write bubbles here")
