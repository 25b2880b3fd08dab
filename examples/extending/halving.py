from ratrain.cost.algorithms import Message, Round, declare_algorithm, ring


def halving(hosts):
    """Half of the parts to the rank n/2 away, a quarter to the one n/4 away, and so on."""
    n = len(hosts)
    if n & (n - 1):  # not a power of two
        yield from ring(hosts)
        return
    away = n // 2
    while away:
        yield Round(Message(rank, rank ^ away, parts(rank ^ away, away)) for rank in range(n))
        away //= 2


def parts(rank, away):
    """Those that the rank or its side of the exchange ends with."""
    first = rank // away * away
    return tuple(range(first, first + away))


declare_algorithm("halving", halving)
