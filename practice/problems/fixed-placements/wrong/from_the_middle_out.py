"""Outwards: your bipolar takes the layers round the middle of the second half; take its two ends.

case: example
kind: value
"""


def placements(n_layers: int, budget: int) -> dict:
    first = n_layers // 2
    width = n_layers - 1 - first
    uniform = [n_layers - 1]
    if budget > 1:
        uniform = [first + round(i * width / (budget - 1)) for i in range(budget)]
    start = (first + n_layers - budget) // 2
    bipolar = list(range(start, start + budget))
    return {"uniform": uniform, "bipolar": bipolar}
