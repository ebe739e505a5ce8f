"""What of kombu is there in the versions that the tests may run with; `make versions` has older ones."""

from __future__ import annotations

import kombu
import pytest

#: Messages of one batch go out in one step with the schedule, or in one round trip, from kombu 5.7 on.
BATCHES = tuple(kombu.VERSION[:2]) >= (5, 7)

needs_batches = pytest.mark.skipif(not BATCHES, reason="this kombu publishes no batches, and no queue of it expires")
