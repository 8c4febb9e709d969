"""Whole network: your placements spread over all layers; both rules stay in the second half.

case: example
kind: value
"""


def placements(n_layers: int, budget: int) -> dict:
    first, front = 0, budget // 2
    width = n_layers - 1 - first
    uniform = [n_layers - 1]
    if budget > 1:
        uniform = [first + round(i * width / (budget - 1)) for i in range(budget)]
    bipolar = [*range(first, first + front), *range(n_layers - (budget - front), n_layers)]
    return {"uniform": uniform, "bipolar": bipolar}
