"""GPTQ as its paper begins: one weight at a time, with the inverse Hessian of the weights that are left, in f64.

Frantar et al. 2022 (arXiv 2210.17323), equation 2. What the paper goes on to (Cholesky's factor, blocks of columns)
only makes it fast. Nothing here is shared with the engine.
"""

import numpy as np


def rounded(
    weight: np.ndarray, hessian: np.ndarray, *, bits: int, group: int, damping: float, by_activation: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Codes [out, in], scales [out, groups] that f16 holds, and the group of each input, of `weight` [out, in]."""
    inputs, middle = weight.shape[1], 2 ** (bits - 1)
    weight, hessian = weight.astype(np.float64), hessian.astype(np.float64)
    order = np.argsort(-np.diag(hessian), kind="stable") if by_activation else np.arange(inputs)
    hessian = hessian + damping * np.diag(hessian).mean() * np.eye(inputs)
    group = inputs if group == -1 else group
    codes, groups, scales = np.zeros(weight.shape, int), np.zeros(inputs, int), []
    for place, column in enumerate(order):
        if place % group == 0:
            largest = np.abs(weight[:, order[place : place + group]]).max(1)
            scales.append((2 * largest / (2**bits - 1)).astype(np.float16).astype(np.float64))
        left = order[place:]
        inverse = np.linalg.inv(hessian[np.ix_(left, left)])
        nearest = np.clip(np.rint(weight[:, column] / scales[-1]), -middle, middle - 1)
        lost = weight[:, column] - nearest * scales[-1]
        weight[:, left] -= np.outer(lost / inverse[0, 0], inverse[0])
        codes[:, column], groups[column] = nearest + middle, len(scales) - 1
    return codes, np.stack(scales, axis=1), groups
