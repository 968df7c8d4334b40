"""The names of dp_accounting that an example of JAX uses; no budget is computed."""

from __future__ import annotations

import types
from typing import Any


class _Accountant:
    def __init__(self, orders: Any) -> None:
        self.orders = [float(order) for order in orders]

    def compose(self, event: Any, steps: Any) -> Any:
        """Take an event."""

    def get_epsilon(self, delta: Any) -> Any:
        """Return no budget."""
        return 0.0


rdp = types.SimpleNamespace(rdp_privacy_accountant=types.SimpleNamespace(RdpAccountant=_Accountant))
dp_event = types.SimpleNamespace(
    PoissonSampledDpEvent=lambda q, event: event, GaussianDpEvent=lambda multiplier: multiplier
)
