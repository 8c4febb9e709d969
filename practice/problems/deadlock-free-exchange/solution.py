"""Decide for all ranks together: one message is one event of a single global order.

The loop runs through the whole step, as if all ranks were one. When an operation runs, its message
is written down at once for both sides: as the sender's next instruction and as the receiver's. Each
program is then one rank's part of one global order, and that is all the proof it takes: of all
events that have not happened yet, the earliest is the next one on every rank it concerns, so it can
happen. No rule about who goes first, such as "even ranks send, odd ranks receive", is needed; such
rules hold for the schedules they were made for and fail for others.

The price is time, not safety: a receiver may be asked to take a message earlier than it needs it. A
runtime takes the order of messages from here and posts its receives ahead.
"""


def exchange_order(order: list[list[tuple[str, int]]]) -> list[list[tuple]]:
    """Operations per rank -> the same with ("send", kind, m) and ("recv", kind, m) between them."""
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
            programs[r].append((kind, m))
            if 0 <= target <= last:
                programs[r].append(("send", kind, m))
                programs[target].append(("recv", kind, m))
                received[target].add((kind, m))
            n_done[r] += 1
            moved = True
    return programs
