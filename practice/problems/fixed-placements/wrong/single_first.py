"""Single one first: your only uniform layer is the first of the second half; it is the last.

case: one
kind: value
"""


def placements(n_layers: int, budget: int) -> dict:
    first, front = n_layers // 2, budget // 2
    width = n_layers - 1 - first
    uniform = [first]
    if budget > 1:
        uniform = [first + round(i * width / (budget - 1)) for i in range(budget)]
    bipolar = [*range(first, first + front), *range(n_layers - (budget - front), n_layers)]
    return {"uniform": uniform, "bipolar": bipolar}
