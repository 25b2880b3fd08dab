"""Files of Sailor: a plan, the training configuration, what a node of each GPU is, measured layer
times, and fits of the network's bandwidth.

A stage lists one tensor group for each replica, so the i-th groups of all stages are a replica. Its
network files hold fits in the form that a RATrain link takes (`log_quadratic`).
"""
