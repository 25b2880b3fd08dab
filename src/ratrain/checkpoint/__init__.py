"""Checkpoints: sharded, complete or absent, every byte under a checksum, readable by any layout.

disk             bytes to and from files; a full disk reported in one message
entries          what a rank file holds: ranges of the units' flat buffers
tensor_file      the safetensors header of a rank file
shard_writer     one rank's file, written tensor by tensor
manifest         the list of everything that makes a checkpoint whole
folder           begin, commit, discard: how a checkpoint appears by one rename
best             which checkpoint did best on held-out text
listing          which checkpoints a folder holds; the latest; removing old ones
reader           ranges of a checkpoint, stitched from the files that hold them
comparison       two checkpoints, bit by bit
"""
