"""Ends of the network: your bipolar takes the first layers of the model; it takes those of its
second half.

case: example
kind: value
"""


def placements(n_layers: int, budget: int) -> dict:
    first, front = n_layers // 2, budget // 2
    width = n_layers - 1 - first
    uniform = [n_layers - 1]
    if budget > 1:
        uniform = [first + round(i * width / (budget - 1)) for i in range(budget)]
    bipolar = [*range(front), *range(n_layers - (budget - front), n_layers)]
    return {"uniform": uniform, "bipolar": bipolar}
