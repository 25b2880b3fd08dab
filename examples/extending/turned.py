from ratrain.plan.search import Draft, Drafts, Move, Space, declare_move, sides_of


def turned(space: Space, draft: Draft) -> Drafts:
    """Every pipeline from its last device to its first, its layers divided anew."""
    sides = [side._replace(members=side.members[::-1], layers=None) for side in sides_of(draft)]
    yield space.draft(sides, draft.state)


declare_move("turned", Move("all pipelines the other way round", turned))
