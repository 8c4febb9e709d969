"""All receives first: your rank waits for results that others compute only after it has sent its
own.

case: example
kind: value
"""


def exchange_order(order: list[list[tuple[str, int]]]) -> list[list[tuple]]:
    last = len(order) - 1
    programs = []
    for r, rank in enumerate(order):
        receives, rest = [], []
        for kind, m in rank:
            source, target = (r - 1, r + 1) if kind == "F" else (r + 1, r - 1)
            if 0 <= source <= last:
                receives.append(("recv", kind, m))
            rest.append((kind, m))
            if 0 <= target <= last:
                rest.append(("send", kind, m))
        programs.append(receives + rest)
    return programs
