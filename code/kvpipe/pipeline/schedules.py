"""The pipeline schedules of chapter 2, each as a list of operations per rank.

Most of them are three choices: the order in which forwards run, the order in which backwards
run, and how many forwards run ahead of the first backward (`alternate`). Sources: GPipe
(arXiv 1811.06965), 1F1B (PipeDream-Flush, arXiv 2006.09503), interleaved 1F1B (Megatron-LM,
arXiv 2104.04473), ZB-H1 and ZBV (zero bubble, arXiv 2401.10241 and 2405.15362), Seq1F1B
(arXiv 2406.03488).
"""

from collections.abc import Callable, Iterator, Sequence

from kvpipe.pipeline.ops import Op, Schedule


def gpipe(n_ranks: int, n_microbatches: int) -> Schedule:
    """Every forward, then every backward: each rank holds all micro-batches at once."""
    _positive(n_ranks=n_ranks, n_microbatches=n_microbatches)

    def order(rank: int) -> list[Op]:
        forwards, backwards = _stream(rank, n_microbatches)
        return alternate(forwards, backwards, ahead=n_microbatches)

    return _schedule("gpipe", n_microbatches, loop(n_ranks), order)


def one_f_one_b(n_ranks: int, n_microbatches: int) -> Schedule:
    """One forward, one backward: rank r holds at most P - r micro-batches."""
    _positive(n_ranks=n_ranks, n_microbatches=n_microbatches)

    def order(rank: int) -> list[Op]:
        forwards, backwards = _stream(rank, n_microbatches)
        return alternate(forwards, backwards, ahead=n_ranks - 1 - rank)

    return _schedule("1f1b", n_microbatches, loop(n_ranks), order)


def interleaved_1f1b(n_ranks: int, n_microbatches: int, chunks_per_rank: int = 2) -> Schedule:
    """1F1B over v chunks per rank: the bubble shrinks by v, the traffic grows by v."""
    _positive(n_ranks=n_ranks, n_microbatches=n_microbatches, chunks_per_rank=chunks_per_rank)
    rounds = _rounds(n_ranks, n_microbatches)
    # Megatron's lead. One forward per hop gives the same bubble and a lower activation peak
    # while transfers are free, but then every transfer shows in the makespan.
    per_hop = 2 if chunks_per_rank > 1 else 1

    def order(rank: int) -> list[Op]:
        forwards, backwards = _interleave(rank, n_ranks, chunks_per_rank, rounds)
        ahead = (chunks_per_rank - 1) * rounds[0] + per_hop * (n_ranks - 1 - rank)
        return alternate(forwards, backwards, ahead)

    placement = loop(n_ranks, chunks_per_rank)
    return _schedule("interleaved-1f1b", n_microbatches, placement, order)


def zb_h1(n_ranks: int, n_microbatches: int, chunks_per_rank: int = 1) -> Schedule:
    """1F1B with the backward split: weight gradients, which nobody waits for, fill the bubble.

    Rank r runs its weight gradients r behind its input gradients, so every rank holds at most
    P micro-batches: the memory of 1F1B's first rank. More than one chunk per rank gives the
    interleaved form.
    """
    _positive(n_ranks=n_ranks, n_microbatches=n_microbatches, chunks_per_rank=chunks_per_rank)
    rounds = _rounds(n_ranks, n_microbatches)

    def order(rank: int) -> list[Op]:
        forwards, backwards = _interleave(rank, n_ranks, chunks_per_rank, rounds)
        ahead = (chunks_per_rank - 1) * rounds[0] + n_ranks - 1 - rank
        return split_backward(alternate(forwards, backwards, ahead), behind=rank)

    placement = loop(n_ranks, chunks_per_rank)
    return _schedule("zb-h1", n_microbatches, placement, order)


def zbv(n_ranks: int, n_microbatches: int) -> Schedule:
    """Two chunks per rank placed as a V, so the first rank also owns the end of the model.

    Made for equal F, I and W: then no rank waits between its first and its last operation.
    Fewer than 2P - 1 micro-batches cannot fill the V; the order is then that of 2P - 1 with
    the surplus left out, and the bubble shows.
    """
    _positive(n_ranks=n_ranks, n_microbatches=n_microbatches)
    filled = max(n_microbatches, 2 * n_ranks - 1)

    def order(rank: int) -> list[Op]:
        after = n_ranks - rank
        down, up = rank, 2 * n_ranks - 1 - rank
        phases = [  # how often, then what; 0 is the chunk on the way down, 1 on the way up
            (2 * after - 1, "F0"),
            (rank, "F1 F0"),
            (after, "F1 I1 W1"),
            (filled - n_ranks - after + 1, "F0 I0 W0 F1 I1 W1"),
            (after - 1, "I0 W0 F1 I1 W1"),
            (rank, "I0 I1"),
            (after, "I0 W0"),
            (rank, "W1"),
            (rank, "W0"),
        ]
        ops = _count(phases, (down, up))
        return [op for op in ops if op.microbatch < n_microbatches]

    return _schedule("zbv", n_microbatches, v_shape(n_ranks), order)


def seq1f1b(n_ranks: int, n_microbatches: int, segments: int | Sequence[int] = 2) -> Schedule:
    """1F1B over segments of the sequence: bubble and activations shrink by about k.

    `segments` is their number, or their lengths in tokens (see `kvpipe.pipeline.segments`).
    Micro-batches leave in the order they came, the segments inside one in the reverse order:
    a segment's keys and values collect gradients from all later segments.
    """
    tokens = () if isinstance(segments, int) else tuple(segments)
    k = segments if isinstance(segments, int) else len(tokens)
    _positive(n_ranks=n_ranks, n_microbatches=n_microbatches, segments=k)
    for length in tokens:
        _positive(segment_tokens=length)

    def order(rank: int) -> list[Op]:
        microbatches = range(n_microbatches)
        forwards = [Op("F", m, rank, s) for m in microbatches for s in range(k)]
        backwards = [Op("B", m, rank, s) for m in microbatches for s in reversed(range(k))]
        return alternate(forwards, backwards, ahead=n_ranks - 1 - rank + k - 1)

    return _schedule(
        "seq1f1b", n_microbatches, loop(n_ranks), order, n_segments=k, segment_tokens=tokens
    )


def round_robin(n_ranks: int, n_batches: int, n_steps: int = 1) -> Schedule:
    """Decoding with several batches in flight: step after step, batch after batch.

    Step s + 1 of a batch waits for the token of step s, which travels from the last rank to
    the first. With fewer batches than ranks some rank always waits.
    """
    _positive(n_ranks=n_ranks, n_batches=n_batches, n_steps=n_steps)

    def order(rank: int) -> list[Op]:
        return [Op("F", m, rank, s) for s in range(n_steps) for m in range(n_batches)]

    return _schedule(
        "round-robin",
        n_batches,
        loop(n_ranks),
        order,
        n_segments=n_steps,
        trains=False,
        feeds_back=True,
    )


def build(
    name: str,
    n_ranks: int,
    n_microbatches: int,
    chunks_per_rank: int | None = None,
    segments: int | Sequence[int] | None = None,
) -> Schedule:
    """A schedule by name; an option it has no use for is refused with the reason.

    For `round-robin`, `n_microbatches` counts batches and `segments` decoding steps.
    """
    if name not in BUILDERS:
        raise ValueError(f"unknown schedule {name!r}; there are {', '.join(BUILDERS)}")
    builder, option = BUILDERS[name]
    given = {"chunks_per_rank": chunks_per_rank, "segments": segments}
    fixed = {"chunks_per_rank": 2 if name == "zbv" else 1, "segments": 1}
    for key, value in given.items():
        if key != option and value not in (None, fixed[key]):
            takers = [other for other, (_, takes) in BUILDERS.items() if takes == key]
            raise ValueError(
                f"{name} works with {key}={fixed[key]} only, got {value}; "
                f"{key} is an option of {', '.join(takers)}"
            )
    value = given.get(option)
    return builder(n_ranks, n_microbatches, *([] if value is None else [value]))


# Name -> (builder, the option it takes beside P and M).
BUILDERS: dict[str, tuple[Callable[..., Schedule], str | None]] = {
    "gpipe": (gpipe, None),
    "1f1b": (one_f_one_b, None),
    "interleaved-1f1b": (interleaved_1f1b, "chunks_per_rank"),
    "zb-h1": (zb_h1, "chunks_per_rank"),
    "zbv": (zbv, None),
    "seq1f1b": (seq1f1b, "segments"),
    "round-robin": (round_robin, "segments"),
}


def loop(n_ranks: int, chunks_per_rank: int = 1) -> tuple[int, ...]:
    """Chunk -> rank, round and round: 0 1 2 3 0 1 2 3."""
    return tuple(range(n_ranks)) * chunks_per_rank


def v_shape(n_ranks: int) -> tuple[int, ...]:
    """Chunk -> rank, down and up again: 0 1 2 3 3 2 1 0."""
    return (*range(n_ranks), *reversed(range(n_ranks)))


def alternate(forwards: Sequence[Op], backwards: Sequence[Op], ahead: int) -> list[Op]:
    """`ahead` forwards first, then forward and backward in turn, then the backwards left over."""
    ahead = min(ahead, len(forwards))
    pairs = zip(forwards[ahead:], backwards, strict=False)
    steady = [op for pair in pairs for op in pair]
    return [*forwards[:ahead], *steady, *backwards[len(forwards) - ahead :]]


def split_backward(ops: Sequence[Op], behind: int) -> list[Op]:
    """Each B becomes I and W, with every W `behind` input gradients later than its own."""
    split: list[Op] = []
    pending: list[Op] = []
    for op in ops:
        if op.kind != "B":
            split.append(op)
            continue
        split.append(op._replace(kind="I"))
        pending.append(op._replace(kind="W"))
        if len(pending) > behind:
            split.append(pending.pop(0))
    return split + pending


def _schedule(
    name: str,
    n_microbatches: int,
    placement: tuple[int, ...],
    order: Callable[[int], list[Op]],
    **options: object,
) -> Schedule:
    ranks = tuple(tuple(order(rank)) for rank in range(max(placement) + 1))
    return Schedule(name, n_microbatches, placement, ranks, **options)


def _stream(rank: int, n_microbatches: int) -> tuple[list[Op], list[Op]]:
    forwards = [Op("F", m, rank) for m in range(n_microbatches)]
    return forwards, [op._replace(kind="B") for op in forwards]


def _rounds(n_ranks: int, n_microbatches: int) -> list[int]:
    """Micro-batches per round: as many rounds as there are full sets of P, of even size.

    A round shorter than P would make the first rank wait for work that is still on its way.
    """
    n_rounds = max(1, n_microbatches // n_ranks)
    size, larger = divmod(n_microbatches, n_rounds)
    return [size + (i < larger) for i in range(n_rounds)]


def _interleave(
    rank: int, n_ranks: int, chunks_per_rank: int, rounds: Sequence[int]
) -> tuple[list[Op], list[Op]]:
    """Each round goes through the rank's chunks in turn: forwards up, backwards down."""
    chunks = [rank + n_ranks * i for i in range(chunks_per_rank)]
    forwards: list[Op] = []
    backwards: list[Op] = []
    first = 0
    for size in rounds:
        microbatches = range(first, first + size)
        forwards += [Op("F", m, c) for c in chunks for m in microbatches]
        backwards += [Op("B", m, c) for c in reversed(chunks) for m in microbatches]
        first += size
    return forwards, backwards


def _count(phases: Sequence[tuple[int, str]], chunks: tuple[int, int]) -> Iterator[Op]:
    """Number the micro-batches of repeated patterns such as `I0 W0`: each word counts alone."""
    seen: dict[str, int] = {}
    for times, pattern in phases:
        for word in pattern.split() * times:
            microbatch = seen[word] = seen.get(word, -1) + 1
            yield Op(word[0], microbatch, chunks[int(word[1])])


def _positive(**counts: int) -> None:
    for name, value in counts.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")
