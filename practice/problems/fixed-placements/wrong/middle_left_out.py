"""Middle left out: your second half begins after the middle of an odd number of layers.

case: odd-layers
kind: value
"""


def placements(n_layers: int, budget: int) -> dict:
    first, front = (n_layers + 1) // 2, budget // 2
    width = n_layers - 1 - first
    uniform = [n_layers - 1]
    if budget > 1:
        uniform = [first + round(i * width / (budget - 1)) for i in range(budget)]
    bipolar = [*range(first, first + front), *range(n_layers - (budget - front), n_layers)]
    return {"uniform": uniform, "bipolar": bipolar}
