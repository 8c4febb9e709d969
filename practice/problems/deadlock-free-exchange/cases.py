"""Cases of the exchange; the judge runs the programs by a logical clock and draws what it saw."""

import random
from collections import Counter
from functools import partial

from kvpipe_practice.case import Case

TICKS_SHOWN = 8
CELL = 13


def short(instruction: tuple) -> str:
    return " ".join(map(str, instruction))


def neighbours(kind: str, r: int, P: int) -> tuple[int | None, int | None]:
    """The rank a result comes from and the rank it goes to, None where there is none."""
    source, target = (r - 1, r + 1) if kind == "F" else (r + 1, r - 1)
    return (source if 0 <= source < P else None, target if 0 <= target < P else None)


def check(order: list, got: object) -> str:
    """What is wrong with the programs: their form, what they do, or how they run."""
    complaint = form(got, len(order))
    if complaint:
        return complaint
    programs = [[tuple(instruction) for instruction in program] for program in got]
    for r, program in enumerate(programs):
        complaint = operations(order[r], program, r) or messages(order[r], program, r, len(order))
        if complaint:
            return complaint
    return run(programs)


def form(got: object, P: int) -> str:
    if type(got) not in (list, tuple) or len(got) != P:
        return f"your result must be a list of {P} programs, one for each rank"
    for r, program in enumerate(got):
        if type(program) not in (list, tuple):
            return f"the program of rank {r} is not a list"
        for i, instruction in enumerate(program):
            if type(instruction) not in (list, tuple) or len(instruction) not in (2, 3):
                return f"instruction {i} of rank {r} is not a tuple of two or three"
            *verb, kind, m = instruction
            right_verb = not verb or verb[0] in ("send", "recv")
            if not right_verb or kind not in ("F", "B") or type(m) is not int:
                return (
                    f"instruction {i} of rank {r} is none of (kind, m), ('send', kind, m) and "
                    "('recv', kind, m) with kind 'F' or 'B' and a whole number m"
                )
    return ""


def operations(order: list, program: list, r: int) -> str:
    """Are the rank's operations those given?"""
    given, found = [tuple(op) for op in order], [op for op in program if len(op) == 2]
    if found == given:
        return ""
    i = next((i for i, (a, b) in enumerate(zip(given, found, strict=False)) if a != b), None)
    if i is None:
        return f"rank {r} computes {len(found)} operations; its order has {len(given)}"
    return (
        f"rank {r} computes {short(found[i])} where its order has {short(given[i])}; "
        "operations keep their order"
    )


def messages(order: list, program: list, r: int, P: int) -> str:
    """Does the rank send and receive what it must, once, and nothing else?"""
    due = Counter()
    for kind, m in order:
        source, target = neighbours(kind, r, P)
        if source is not None:
            due["recv", kind, m] += 1
        if target is not None:
            due["send", kind, m] += 1
    found = Counter(op for op in program if len(op) == 3)
    for op in found | due:
        if found[op] < due[op]:
            return f"rank {r} never does {short(op)}"
        if not due[op]:
            return not_due(op, r, P)
        if found[op] > due[op]:
            return f"rank {r} does {short(op)} {found[op]} times"
    return ""


def not_due(message: tuple, r: int, P: int) -> str:
    """Why a rank must not send or receive this at all."""
    verb, kind, m = message
    source, target = neighbours(kind, r, P)
    if (target if verb == "send" else source) is not None:
        return f"rank {r} does {short(message)}, but its order has no {kind} {m}"
    beyond = r + 1 if (verb, kind) in (("send", "F"), ("recv", "B")) else r - 1
    if verb == "send":
        return (
            f"rank {r} sends {kind} {m}, but there is no rank {beyond}: "
            "the backward of rank 0 and the forward of the last rank go nowhere"
        )
    return (
        f"rank {r} receives {kind} {m}, but there is no rank {beyond}: "
        "the forward of rank 0 and the backward of the last rank need nobody else"
    )


def run(programs: list) -> str:
    """Let all ranks run; at each tick every rank that can do its next instruction does it."""
    P = len(programs)
    position, has, log = [0] * P, [set() for _ in programs], []
    while True:
        heads = [p[i] if i < len(p) else None for p, i in zip(programs, position, strict=True)]
        for r, head in enumerate(heads):
            complaint = head and too_early(head, has[r], r, P)
            if complaint:
                return "\n".join((complaint, *drawn(log, heads)))
        going = [head is not None and can_run(heads, r, P) for r, head in enumerate(heads)]
        if not any(going):
            break
        log.append([head if goes else None for head, goes in zip(heads, going, strict=True)])
        for r, head in enumerate(heads):
            if going[r]:
                position[r] += 1
                has[r].add(("done", *head) if len(head) == 2 else head)
    if heads == [None] * P:
        return ""
    waiting = [waits(r, head, P) for r, head in enumerate(heads) if head]
    lines = ("deadlock: no rank can go on", *waiting, *drawn(log, heads))
    return "\n".join(lines)


def too_early(head: tuple, has: set, r: int, P: int) -> str:
    """Is the instruction impossible whatever the others do, as this rank lacks what it needs?"""
    *verb, kind, m = head
    if verb == ["send"] and ("done", kind, m) not in has:
        return f"rank {r} is about to send {kind} {m}, which it has not computed yet"
    source, _ = neighbours(kind, r, P)
    if not verb and source is not None and ("recv", kind, m) not in has:
        return f"rank {r} is about to compute {kind} {m} before it has received it"
    return ""


def can_run(heads: list, r: int, P: int) -> bool:
    """Operations always can; a send and its receive need each other."""
    *verb, kind, m = heads[r]
    if not verb:
        return True
    source, target = neighbours(kind, r, P)
    if verb == ["send"]:
        return heads[target] == ("recv", kind, m)
    return heads[source] == ("send", kind, m)


def waits(r: int, head: tuple, P: int) -> str:
    verb, kind, _ = head
    source, target = neighbours(kind, r, P)
    other, does = (target, "receive") if verb == "send" else (source, "send")
    return f"rank {r} waits in {short(head)} for rank {other} to {does}"


def drawn(log: list, heads: list) -> list[str]:
    """The last ticks as a table: one column for each rank, a dot where it waits."""
    lines = ["", "time  " + "".join(f"{f'rank {r}':{CELL}}" for r in range(len(heads)))]
    first = max(0, len(log) - TICKS_SHOWN)
    if first:
        lines.append(f"      ... {first} ticks before these")
    for tick, row in enumerate(log[first:], first):
        lines.append(f"{tick:4}  " + "".join(f"{short(op) if op else '.':{CELL}}" for op in row))
    cells = (short(head) + " ?" if head else "(ended)" for head in heads)
    lines.append("next  " + "".join(f"{cell:{CELL}}" for cell in cells))
    return [line.rstrip() for line in lines]


def gpipe(P: int, M: int, kinds: str = "FB") -> list:
    return [[(kind, m) for kind in kinds for m in range(M)] for _ in range(P)]


def one_f_one_b(P: int, M: int) -> list:
    """A forward while fewer than P - r micro-batches are held, otherwise the oldest backward."""
    order = [[] for _ in range(P)]
    for r, rank in enumerate(order):
        forwards = backwards = 0
        while backwards < M:
            if forwards < M and forwards - backwards < P - r:
                rank.append(("F", forwards))
                forwards += 1
            else:
                rank.append(("B", backwards))
                backwards += 1
    return order


def one_by_one(draw: random.Random, P: int, left: list[list]) -> tuple[list, list]:
    """Let one operation after the other run, drawn by lot, and each message at its moment.

    `left` holds, for each rank, its operations in lists of which only the heads may run. Returns
    the order that each rank has followed, and a right answer for it.
    """
    order, programs, has = [[] for _ in left], [[] for _ in left], [set() for _ in left]
    while any(any(queues) for queues in left):
        ready = []
        for r, queues in enumerate(left):
            for queue in filter(None, queues):
                kind, m = queue[0]
                awaits_other = neighbours(kind, r, P)[0] is not None
                held = kind == "F" or ("F", m) in order[r]
                if held and not (awaits_other and (kind, m) not in has[r]):
                    ready.append((r, queue))
        r, queue = draw.choice(ready)
        kind, m = queue.pop(0)
        order[r].append((kind, m))
        programs[r].append((kind, m))
        target = neighbours(kind, r, P)[1]
        if target is not None:
            programs[r].append(("send", kind, m))
            programs[target].append(("recv", kind, m))
            has[target].add((kind, m))
    return order, programs


def random_order(draw: random.Random, P: int, M: int) -> list:
    """Every rank in an order of its own, also of the micro-batches."""
    ops = [(kind, m) for kind in "FB" for m in range(M)]
    return one_by_one(draw, P, [[[op] for op in ops] for _ in range(P)])[0]


def cases(seed: int):
    draw = random.Random(seed)

    def case(name: str, tests: str, order: list, **options) -> Case:
        _, right = one_by_one(draw, len(order), [[list(rank)] for rank in order])
        return Case(name, tests, {"order": order}, right, check=partial(check, order), **options)

    yield case("example", "the example of the statement: 1F1B on two ranks", one_f_one_b(2, 2))
    yield case("one-rank", "one rank has nobody to talk to", one_f_one_b(1, 3))
    yield case("forward-only", "inference: forwards alone", gpipe(3, 3, "F"))
    yield case("gpipe", "GPipe: all forwards, then all backwards", gpipe(3, 4))
    yield case("1f1b", "1F1B on four ranks", one_f_one_b(4, 6))
    yield case("fewer-microbatches", "1F1B with fewer micro-batches than ranks", one_f_one_b(5, 2))
    yield case(
        "irregular",
        "an order that is possible but follows no schedule",
        random_order(random.Random(0), 3, 4),
    )
    for i in range(4):
        hidden = i > 1
        yield case(
            f"random-hidden-{i - 1}" if hidden else f"random-{i + 1}",
            "another random order" if hidden else "a random possible order",
            random_order(draw, draw.randint(3, 5), draw.randint(3, 5)),
            hidden=hidden,
        )
