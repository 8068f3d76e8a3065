"""Which part of a machine a control speaks for that does not diverge: only where a reading tells the parts apart. Pure.

A step reads its batch, computes the loss from the weights, then the gradients, then Adam's state, then the update.
What differs first from the control, at the first step that differs, names the part only where what comes before it was
measured, and was the same:

- batch's digest, LR, length: the trainer read other data or settings
- the gradient's norm or its spread, at the same loss: the gradients
- Adam's variance or momentum, at the same loss and gradient norm: Adam's state
- the norm of the weights, at the same loss, gradient norm, variance and momentum: the weights
- the loss: the weights where their norm or that of their update then grew 100-fold, which no update by Adam does; else
  the weights or the forward pass, and the part is not known.
"""

from __future__ import annotations

from sentinel.lab.probes.probe import ProbeResult, Window

CHANCE = "chance"
WEIGHTS, ADAM, GRADIENTS = "hardware: the weights", "hardware: Adam's state", "hardware: the gradients of a rank"
MACHINE = "hardware: the part is not known"
OTHER_INPUT = "the trainer read other data or settings"

_READ = ("batch_digest", "lr", "seqlen")
_LOSS = ("loss", "loss_spread")
_GRADIENT = ("grad_norm", "grad_norm_spread")
_ADAM = ("adam_variance_l1", "adam_variance_max", "momentum_l2")
_WEIGHTS = ("update_norm", "param_norm")
_PARTS = (  # (what differs first, which readings before it have to be measured, the part)
    (_GRADIENT, ("loss",), GRADIENTS),
    (_ADAM, ("loss", "grad_norm"), ADAM),
    (_WEIGHTS, ("loss", "grad_norm", "adam_variance_l1", "momentum_l2"), WEIGHTS),
)
_OUT_OF_PROPORTION = 100.0


def part_of(control: ProbeResult, window: Window) -> tuple[str, str]:
    """(the cause that the first reading speaks for, why no part is told, as a phrase or "")."""
    if control.differs_at is None or not control.differs_in:
        return CHANCE, ""
    what, run = control.differs_in[0], window.after.get(control.differs_at)
    if what in _READ:
        return OTHER_INPUT, ""
    if what in _LOSS:
        if _weights_grew(window, control.differs_at):
            return WEIGHTS, ""
        return MACHINE, "the weights or the forward pass: no reading tells them apart"
    for names, before, part in _PARTS:
        if what in names:
            missing = [name for name in before if run is None or getattr(run, name) is None]
            return (MACHINE, f"{', '.join(missing)} is not measured at that step") if missing else (part, "")
    return MACHINE, ""


def _weights_grew(window: Window, at: int) -> bool:
    """Whether the first norm of the weights that was measured from that step on is out of all proportion."""
    for name in _WEIGHTS:
        line = [(s.global_step, getattr(s, name)) for s in (*window.before, *window.after.values())]
        known = sorted((step, value) for step, value in line if value is not None)
        usual = [value for step, value in known if step < at][-1:]
        then = [value for step, value in known if step >= at][:1]
        if usual and then and not then[0] <= _OUT_OF_PROPORTION * usual[0]:
            return True
    return False
