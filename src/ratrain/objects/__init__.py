"""Object stores (S3, Google Cloud Storage, Azure): objects by URL, whole or by ranges.

remote   the name of an object, or of all below it
bucket   what is asked of a store, by fsspec: tried again up to a deadline, told in words
agent    the process that asks
client   a process's way to its agent
mirror   objects as files here
owner    which launch writes below a URL

A process that trains asks through an agent, a process of its own: what clients of stores allocate
and the threads that they start are then no part of it.
"""
