"""The largest attention logit of each head, over all pairs that the mask leaves."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["largest_logits"]

_QUERIES = 256  # of each sample at once: scratch of (B, H, 256, T) elements


def largest_logits(q: Tensor, k: Tensor, scale: float, mask: Tensor | None = None, window: int | None = None) -> Tensor:
    """q (B, H, T, D), k (B, G, S, D), the queries last among the S keys -> (B, H) float32: the largest of
    scale x q_i . k_j over the keys j <= i, 0 where it is not finite. Each of the G heads of keys serves H / G heads of
    queries in a row. `window`: only the last so many keys before a query, itself included. `mask` (B or 1, 1 or H, T,
    S), in place of both: bool, true where a key is seen, or numbers that are added, 0 where it is seen."""
    b, h, t, d = q.shape
    g, s = k.shape[1], k.shape[2]
    grouped = (q.detach() * scale).view(b, g, h // g, t, d)
    keys = k.detach()[:, :, None].transpose(3, 4)  # (B, G, 1, D, S)
    largest = torch.full((b, h), -torch.inf, device=q.device)
    for begin in range(0, t, _QUERIES):
        part = grouped[:, :, :, begin : begin + _QUERIES]
        end = min(s, s - t + begin + part.shape[3])
        logits = (part @ keys[..., : s if mask is not None else end]).view(b, h, part.shape[3], -1)
        if mask is not None:
            seen = mask[:, :, begin : begin + part.shape[3], :s]
            seen = seen if seen.dtype == torch.bool else seen == 0
        else:
            query = torch.arange(s - t + begin, end, device=q.device)[:, None]
            key = torch.arange(end, device=q.device)
            seen = (key <= query) if window is None else (key <= query) & (key > query - window)
        largest = torch.maximum(largest, logits.masked_fill(~seen, -torch.inf).amax((2, 3)).float())
    return largest.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
