"""A slow, small, unequal cluster in one machine, made from the cluster file that is planned for.

    with Lab(cluster, devices=4) as lab:
        child = Popen(command, env={**os.environ, **place_to_env(lab.places[0])})

and in the child, before numpy or torch is imported:

    place = place_from_env(os.environ)
    if place is not None:
        enter(place)
"""

from ratrain.lab.cluster import Lab
from ratrain.lab.place import Place, enter, place_from_env, place_to_env

__all__ = ["Lab", "Place", "enter", "place_from_env", "place_to_env"]
