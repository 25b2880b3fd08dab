"""Files of Metis: the ranked list that its planner prints, hosts and what they are, and a layer
profile per GPU, tensor degree and batch.

A line of the list has a data degree and a tensor degree for each stage. A replica of a RATrain plan
is a pipeline of fixed ranks, so plans whose stages have one data degree can be said; others are
refused by their line.
"""
