"""Pass about gradients that are rounded when they are sent: what rounding took away comes later."""

from __future__ import annotations

from dataclasses import replace

from ratrain.program.program import Program


def feed_errors_back(program: Program, residuals: int) -> Program:
    """Error feedback: each rank adds what rounding took away from the gradient that it last sent
    to the one that it sends next.

    Moves nothing. Each GradSync then reads a residual, which outlives the step, and writes the next
    one. With `residuals` 2 it writes beside the residual before, and UpdateShard replaces that one
    in a step that is not skipped. It changes what training computes, and says so by its name
    (1-bit SGD, Seide et al. 2014; EF-SGD, Karimireddy et al. 2019, arXiv 1901.09847). A program
    that reduces no gradient stays as it is.
    """
    if not program.setup.reduces:
        return program
    setup = replace(program.setup, error_feedback=residuals)
    return replace(program, setup=setup, passes=(*program.passes, "error-feedback"))
