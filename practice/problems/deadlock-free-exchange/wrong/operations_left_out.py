"""Messages only: your programs lack the operations; they belong between sends and receives.

case: example
kind: value
"""


def exchange_order(order: list[list[tuple[str, int]]]) -> list[list[tuple]]:
    last = len(order) - 1
    programs: list[list[tuple]] = [[] for _ in order]
    received, n_done, moved = [set() for _ in order], [0] * len(order), True
    while moved:
        moved = False
        for r, rank in enumerate(order):
            if n_done[r] == len(rank):
                continue
            kind, m = rank[n_done[r]]
            source, target = (r - 1, r + 1) if kind == "F" else (r + 1, r - 1)
            if 0 <= source <= last and (kind, m) not in received[r]:
                continue
            if 0 <= target <= last:
                programs[r].append(("send", kind, m))
                programs[target].append(("recv", kind, m))
                received[target].add((kind, m))
            n_done[r] += 1
            moved = True
    return programs
