"""Division by zero: one layer has no step; it is the last one.

case: one
kind: exception
"""


def placements(n_layers: int, budget: int) -> dict:
    first, front = n_layers // 2, budget // 2
    width = n_layers - 1 - first
    uniform = [first + round(i * width / (budget - 1)) for i in range(budget)]
    bipolar = [*range(first, first + front), *range(n_layers - (budget - front), n_layers)]
    return {"uniform": uniform, "bipolar": bipolar}
