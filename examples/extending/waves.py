from ratrain.program.skeletons import B, F, Place, Skeleton, Steps, declare_skeleton


def waves(place: Place) -> Steps:
    """Breadth-first in waves of twice the pipeline's length, any number of stages per rank."""
    length = 2 * place.ranks
    for first in range(0, place.micro_batches, length):
        wave = range(first, min(first + length, place.micro_batches))
        for kind, chunks in ((F, range(place.chunks)), (B, reversed(range(place.chunks)))):
            for chunk in chunks:
                for micro_batch in wave:
                    yield kind, chunk * place.ranks + place.rank, micro_batch


declare_skeleton(
    "waves",
    Skeleton(
        waves,
        chunks=True,  # a rank may hold several stages
        arrival_places=True,  # gradients arrive long before backward takes them
        held=lambda place: [(min(2 * place.ranks, place.micro_batches),) * place.chunks],
        repeats=lambda ranks, chunks: 2 * ranks,
    ),
)
